"""G1: shapes of inputs and outputs, compared with the ONNX graph."""

from collections.abc import Iterator

from serve.doctor.configuration import Configuration
from serve.doctor.differences import differences
from serve.doctor.finding import Problem, Severity
from serve.doctor.rule import Example, rule

HEAD = '<ir_version: 8, opset_import: ["": 17]>\n'
FREE = HEAD + "example (float[N,2] x) => (float[N,2] y) { y = Identity(x) }"
FIXED = HEAD + "example (float[1,2] x) => (float[1,2] y) { y = Identity(x) }"
LONG = HEAD + "example (float[N,L] x) => (float[N,L] y) { y = Identity(x) }"


def tensor(kind: str, name: str, dims: str, rest: str = "") -> str:
    """One input or output of an example."""
    return f'{kind} [ {{ name: "{name}" data_type: TYPE_FP32 dims: [ {dims} ]{rest} }} ]'


@rule(
    "G104",
    Severity.ERROR,
    bad=Example("max_batch_size: 8", files={"1/model.onnx": FIXED}),
    good=Example("max_batch_size: 8", files={"1/model.onnx": FREE}),
    refused="for the model to support batching the shape should have at least 1 dimension and the first dimension",
)
def graph_can_batch(config: Configuration) -> Iterator[Problem]:
    """`max_batch_size` is above 0 and the graph's first axis has a fixed size.

    The backend refuses the model: "for the model to support batching the shape should have at least 1 dimension and the
    first dimension must be -1". torch's exporter writes the sizes of the example input unless `dynamic_axes` names the
    dynamic axes.

    Source: onnxruntime_backend, ValidateInputs; onnxruntime_backend/issues/111.
    Fix: export with a dynamic first axis (`dynamic_axes`), or set max_batch_size: 0 to serve it without batching.
    """
    return differences(config, "G104")


@rule(
    "G105",
    Severity.ERROR,
    bad=Example(f"max_batch_size: 8\n{tensor('input', 'x', '-1, 2')}", files={"1/model.onnx": FREE}),
    good=Example(f"max_batch_size: 8\n{tensor('input', 'x', '2')}", files={"1/model.onnx": FREE}),
    refused="the model expects 2 dimensions",
)
def dims_leave_the_batch_axis_out(config: Configuration) -> Iterator[Problem]:
    """`dims` repeat the batch axis.

    With max_batch_size above 0 tritonserver adds the batch axis to every shape, so dims [-1, 2] mean three axes. If the
    graph has two, the backend refuses the model.

    Source: server/issues/1338, 4903, 5866; docs/user_guide/model_configuration.md, maximum batch size.
    Fix: remove the first of the dims (`--fix` does). If none is left write `dims: [ 1 ] reshape { shape: [ ] }`.
    """
    return differences(config, "G105")


@rule(
    "G106",
    Severity.ERROR,
    bad=Example(tensor("input", "x", "3"), files={"1/model.onnx": FREE}),
    good=Example(tensor("input", "x", "2"), files={"1/model.onnx": FREE}),
    refused="the model expects 2 dimensions",
)
def input_dims_fit_the_graph(config: Configuration) -> Iterator[Problem]:
    """An input's dims do not fit the graph.

    The backend refuses the model if the number of axes or a size differs, or if a size is -1 and the graph has a fixed
    one. A fixed size for a dynamic axis of the graph is allowed.

    Source: onnxruntime_backend, CompareDimsSupported.
    Fix: write the graph's sizes (`--fix` does).
    """
    return differences(config, "G106")


@rule(
    "G107",
    Severity.ERROR,
    bad=Example(f"{tensor('input', 'x', '-1')}\n{tensor('output', 'y', '2')}", files={"1/model.onnx": LONG}),
    good=Example(f"{tensor('input', 'x', '-1')}\n{tensor('output', 'y', '-1')}", files={"1/model.onnx": LONG}),
    refused="the model expects 2 dimensions",
)
def output_dims_are_the_graphs(config: Configuration) -> Iterator[Problem]:
    """An output's dims are not exactly the graph's.

    Unlike an input's they may not be narrower: where the graph says -1 the configuration must, and the other way round,
    or the backend refuses the model.

    Source: onnxruntime_backend, ValidateOutputs, CompareDims with exact.
    Fix: write the graph's sizes (`--fix` does).
    """
    return differences(config, "G107")
