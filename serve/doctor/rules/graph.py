"""G1: names and types of inputs and outputs, compared with the ONNX graph."""

from collections.abc import Iterator

from export.graph.signature import TYPES, made_masks
from serve.doctor.configuration import Configuration
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
    graph = config.graph
    if graph is None or not config.proto.input:
        return
    sequence = config.proto.sequence_batching
    declared = {tensor.name for tensor in config.proto.input}
    declared |= {name for entry in config.proto.batch_input for name in entry.target_name}
    declared |= {control.name for control in sequence.control_input} | {state.input_name for state in sequence.state}
    declared |= made_masks(config.proto) & graph.signature.inputs.keys()
    if _has_wrong_names(config, declared):
        return  # the right name may be all that is missing
    for name in sorted(graph.signature.inputs.keys() - declared):
        yield Problem(
            config.at("input"),
            f'the graph\'s input "{name}" is not declared, so the model cannot load. Declare it with data_type '
            f"{graph.signature.inputs[name].type}.",
        )


def _has_wrong_names(config: Configuration, declared: set[str]) -> bool:
    """Whether a declared name is not in the graph, or a batch input has no name of its own."""
    assert config.graph is not None
    graph, targets = config.graph.proto.graph, [list(entry.target_name) for entry in config.proto.batch_input]
    provided = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    clients = {tensor.name for tensor in config.proto.input}
    return not declared <= provided or any(not names or clients & set(names) for names in targets)


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
    graph = config.graph
    if graph is None:
        return
    defaults = {tensor.name for tensor in graph.proto.graph.initializer}
    tensors = {"input": graph.signature.inputs, "output": graph.signature.outputs}
    for kind, index, tensor in config.tensors():
        if tensor.name not in tensors[kind] and not (kind == "input" and tensor.name in defaults):
            yield Problem(
                config.at(kind, index, "name"),
                f'{kind} "{tensor.name}" is not in the graph, so the model cannot load. The graph has '
                f"{', '.join(sorted(tensors[kind])) or 'none'}.",
            )


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
    graph = config.graph
    if graph is None:
        return
    tensors = {"input": graph.signature.inputs, "output": graph.signature.outputs}
    for kind, index, tensor in config.tensors():
        provided = tensors[kind].get(tensor.name)
        declared = config.type_name(tensor.data_type)
        if provided is None or provided.type not in TYPES.values() or declared == provided.type:
            continue
        yield Problem(
            config.at(kind, index, "data_type"),
            f'{kind} "{tensor.name}" is {declared}, the graph has {provided.type}, so the model cannot load. Write '
            f"{provided.type}.",
            fix=config.document.replaced(provided.type, kind, index, "data_type"),
        )


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
    if config.backend != "onnxruntime" or config.proto.max_batch_size <= 0:
        return
    for index, tensor in enumerate(config.proto.input):
        if tensor.optional:
            yield Problem(
                config.at("input", index, "optional"),
                f'input "{tensor.name}" is optional, which the onnxruntime backend refuses if max_batch_size is '
                "above 0. Make it required.",
            )


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
