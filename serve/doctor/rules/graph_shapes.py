"""G1: shapes of inputs and outputs, compared with the ONNX graph."""

from collections.abc import Iterator, Sequence

from export.graph.signature import fits
from serve.doctor.configuration import Configuration
from serve.doctor.finding import Problem, Severity
from serve.doctor.pairs import Pair, batch_axis_is_fixed, expected_shape, lacks_batch_axis, pairs, repeats_batch_axis
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
    for pair in pairs(config):
        if batch_axis_is_fixed(config, pair):
            yield Problem(
                config.at("max_batch_size"),
                f'{pair.kind} "{pair.name}" has shape {list(pair.graph.shape)} in the graph, without a dynamic batch '
                f"axis, and max_batch_size is {config.proto.max_batch_size}, so the model cannot load. Export with a "
                "dynamic first axis.",
            )


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
    for pair in pairs(config):
        if repeats_batch_axis(config, pair):
            yield _mismatch(config, pair, "repeat the batch axis, which max_batch_size adds by itself")


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
    for pair in _comparable(config, "input"):
        if not fits(pair.shape, expected_shape(config, pair), exact=False):
            yield _mismatch(config, pair, _why(config, pair))


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
    for pair in _comparable(config, "output"):
        if not fits(pair.shape, expected_shape(config, pair), exact=True):
            yield _mismatch(config, pair, _why(config, pair))


def _comparable(config: Configuration, kind: str) -> Iterator[Pair]:
    """Pairs whose batch axis is right, so that only the other dims can be wrong."""
    for pair in pairs(config):
        if pair.kind == kind and not batch_axis_is_fixed(config, pair) and not repeats_batch_axis(config, pair):
            yield pair


def _why(config: Configuration, pair: Pair) -> str:
    if lacks_batch_axis(config, pair):
        return "lack the first axis, which only max_batch_size above 0 would add"
    return f"differ from the graph's {list(expected_shape(config, pair))}"


def _mismatch(config: Configuration, pair: Pair, why: str) -> Problem:
    """The finding, with an edit if the file writes the dims as one list."""
    field = config.document.field(*pair.shape_steps)
    written = _written(expected_shape(config, pair), pair.shape_steps[-1])
    # Only if the dims are one list without comments: the edit must neither lose a comment nor leave a second list.
    listed = field is not None and len(field.values) == len(pair.shape) and "#" not in config.document.slice(field)
    is_fixable = listed and pair.shape_steps[-1] == "dims"
    return Problem(
        config.at(*pair.shape_steps),
        f'{pair.kind} "{pair.name}": the {pair.shape_steps[-1]} {list(pair.shape)} {why}, so the model cannot load. '
        f"Write {written}.",
        fix=config.document.rewritten(written, *pair.shape_steps) if is_fixable else (),
    )


def _written(shape: Sequence[int], field: str | int) -> str:
    """The shape as the text of `dims`, or of the `shape` of a reshape; the server refuses empty dims."""
    if not shape and field == "dims":
        return "dims: [ 1 ] reshape { shape: [ ] }"
    return f"{field}: [ {', '.join(map(str, shape))} ]"
