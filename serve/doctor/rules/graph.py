"""G1: names and types of inputs and outputs, compared with the ONNX graph."""

from collections.abc import Iterator

from serve.doctor.configuration import Configuration
from serve.doctor.differences import differences
from serve.doctor.finding import Problem, Severity
from serve.doctor.rule import Example, rule
from triton_batching import releases

TWO_INPUTS = """<ir_version: 8, opset_import: ["": 17]>
example (float[N,2] x, float[N,2] mask) => (float[N,2] y) { y = Mul(x, mask) }"""
ONE_INPUT = '<ir_version: 8, opset_import: ["": 17]>\nexample (float[N,2] x) => (float[N,2] y) { y = Neg(x) }'
DOUBLE = '<ir_version: 8, opset_import: ["": 17]>\nexample (double[N,2] x) => (double[N,2] y) { y = Identity(x) }'
DEFAULT = """<ir_version: 8, opset_import: ["": 17]>
example (float[N,2] x, float[2] bias = {0, 0}) => (float[N,2] y) { y = Add(x, bias) }"""
INPUT = 'input [ { name: "x" data_type: TYPE_FP32 dims: [ 2 ] } ]'


@rule(
    "G101",
    Severity.ERROR,
    bad=Example(INPUT, files={"1/model.onnx": TWO_INPUTS}),
    good=Example(
        f'{INPUT}\ninput [ {{ name: "mask" data_type: TYPE_FP32 dims: [ 2 ] }} ]', files={"1/model.onnx": TWO_INPUTS}
    ),
    refused="configuration expects 1 inputs, model provides 2",
)
def every_input_is_declared(config: Configuration) -> Iterator[Problem]:
    """The configuration does not declare an input of the graph.

    The onnxruntime backend refuses the model unless the graph has as many inputs as the configuration has inputs, batch
    inputs, sequence controls and states together. Only a file without any input is completed.

    Source: onnxruntime_backend, ValidateInputs.
    Fix: declare the input, or export the graph without it.
    """
    return differences(config, "G101")


@rule(
    "G102",
    Severity.ERROR,
    bad=Example('input [ { name: "tokens" data_type: TYPE_FP32 dims: [ 2 ] } ]', files={"1/model.onnx": ONE_INPUT}),
    good=INPUT,
    refused="unexpected inference input 'tokens'",
)
def every_tensor_is_in_the_graph(config: Configuration) -> Iterator[Problem]:
    """The configuration declares a tensor that the graph does not have.

    The backend refuses the model: "unexpected inference input 'tokens', allowed inputs are: x". Exporters rename
    tensors unless they get the names.

    Source: onnxruntime_backend, ValidateInputs and ValidateOutputs.
    Fix: use the graph's name, or remove an output that is not needed.
    """
    return differences(config, "G102")


@rule(
    "G103",
    Severity.ERROR,
    bad=Example(INPUT, files={"1/model.onnx": DOUBLE}),
    good=Example(
        'input [ { name: "x" data_type: TYPE_FP64 dims: [ 2 ] } ]\n'
        'output [ { name: "y" data_type: TYPE_FP64 dims: [ 2 ] } ]',
        files={"1/model.onnx": DOUBLE},
    ),
    refused="configuration expects datatype TYPE_FP32",
)
def types_are_the_graphs(config: Configuration) -> Iterator[Problem]:
    """A data type differs from the graph's.

    The backend refuses the model: "configuration expects datatype TYPE_FP32 for input 'x', model provides TYPE_FP64".

    Source: onnxruntime_backend, ValidateInputs and ValidateOutputs.
    Fix: write the graph's type (`--fix` does), or cast inside the graph.
    """
    return differences(config, "G103")


@rule(
    "G109",
    Severity.ERROR,
    bad=Example(
        f'{INPUT}\ninput [ {{ name: "bias" data_type: TYPE_FP32 dims: [ 2 ] optional: true }} ]',
        files={"1/model.onnx": DEFAULT},
    ),
    good=Example(INPUT, files={"1/model.onnx": DEFAULT}),
    refused="optional input 'bias' is not supported for models that support batching",
)
def optional_inputs_do_not_batch(config: Configuration) -> Iterator[Problem]:
    """An input is optional and the model batches.

    The onnxruntime backend refuses it: "optional input 'bias' is not supported for models that support batching". The
    Python backend takes it, but only requests with the same inputs share a batch.

    Source: onnxruntime_backend, ValidateInputs.
    Fix: make it required, set max_batch_size: 0, or split the model.
    """
    return differences(config, "G109")


@rule(
    "G111",
    Severity.WARNING,
    bad=Example(files={"1/model.onnx": DOUBLE.replace("17", "23").replace("double", "float")}),
    good=Example(files={"1/model.onnx": DOUBLE.replace("17", "21").replace("double", "float")}),
)
def graph_is_not_newer_than_onnxruntime(config: Configuration) -> Iterator[Problem]:
    """The ONNX file is newer than the onnxruntime of the target release.

    onnxruntime refuses a higher IR version ("Unsupported model IR version") and a newer opset, so a file that loads
    where it was exported fails in the container. 24.10 has onnxruntime 1.19, which reads opset 21 and IR version 10.

    Source: docs/introduction/compatibility.md of tritonserver; the limits were tried on onnxruntime's wheels (table in
    serve/RELEASES.md). Releases before 24.05 are not checked.
    Fix: convert the file with `python -m export.add FILE --opset 21`, which checks that the answers stay the same; or
    export with a lower opset, or name a newer release with --target.
    """
    limits = releases.readable(config.target.release)
    if limits is None or config.graph is None:
        return
    (opset, version), graph = limits, config.graph
    newer = [f"opset {graph.opset}"] if graph.opset > opset else []
    newer += [f"IR version {graph.proto.ir_version}"] if graph.proto.ir_version > version else []
    if newer:
        yield Problem(
            config.at("backend"),
            f"{graph.path.name} has {' and '.join(newer)}; the onnxruntime of {config.target.release_name} reads up to "
            f"opset {opset} and IR version {version}. Convert it: python -m export.add "
            f"{config.model.name}/{graph.path.parent.name}/{graph.path.name} --opset {opset}.",
        )
