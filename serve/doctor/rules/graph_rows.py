"""G1: nodes of an ONNX graph that mix the rows of a batch, or fix their number."""

from collections.abc import Iterator

import onnx

from export.graph.onnx_graph import label
from serve.doctor.batch_axis import DEFAULT, SOFTMAXES, Rows, integer
from serve.doctor.configuration import Configuration
from serve.doctor.finding import Position, Problem, Severity
from serve.doctor.rule import Example, rule
from serve.doctor.rules.graph_shapes import HEAD


def _graph(body: str) -> dict[str, str]:
    return {"1/model.onnx": f"{HEAD}example (float[N,2] x) => (float[N,2] y) {body}"}


def _nodes(config: Configuration, *kinds: str) -> Iterator[tuple[Rows, onnx.NodeProto]]:
    """The nodes of these kinds whose first input has the rows of a batch in its first axis."""
    graph = config.graph
    if graph is None or config.proto.max_batch_size < 2:
        return
    is_flat = {tensor.name for tensor in config.proto.input if tensor.allow_ragged_batch and not config.pads}
    batched = {name for name, tensor in graph.signature.inputs.items() if tensor.shape[:1] == (-1,)}
    declared = {tensor.name for tensor in config.proto.input}
    if is_flat or not declared <= batched:
        return
    rows = Rows.of(graph.proto.graph, declared)
    for node in graph.proto.graph.node:
        is_whole = node.op_type in kinds and node.domain in DEFAULT and node.input and node.output
        if is_whole and node.input[0] in rows.ranks:
            yield rows, node


@rule(
    "G119",
    Severity.ERROR,
    bad=Example("max_batch_size: 8\ndynamic_batching { }", files=_graph("{ y = Softmax<axis = 0>(x) }")),
    good=Example("max_batch_size: 8\ndynamic_batching { }", files=_graph("{ y = Softmax<axis = 1>(x) }")),
)
def rows_are_normalised_alone(config: Configuration) -> Iterator[Problem]:
    """A Softmax of the graph works along the batch axis, so each answer depends on the other requests.

    The model loads and answers without an error. Measured: a request of one row gets ones, because it is normalised
    over itself; in a batch of 8 equal rows it gets eighths. The rule follows the batch axis only through nodes that
    certainly keep it, so it misses some graphs.

    Source: onnx, Softmax, LogSoftmax and Hardmax.
    Fix: normalise along another axis and export again. `python -m export.add` compares batches with their rows.
    """
    for rows, node in _nodes(config, *SOFTMAXES):
        rank = rows.ranks[node.input[0]]
        assert config.graph is not None
        axis = integer(node, "axis", -1 if config.graph.opset >= 13 else 1)
        if axis in (0, -rank):
            yield Problem(
                Position(path=config.graph.path),
                f"{label(node)} normalises over the batch axis, so each answer depends on the other requests of its "
                "batch. Use another axis and export again.",
            )


@rule(
    "G120",
    Severity.ERROR,
    bad=Example(
        "max_batch_size: 8\ndynamic_batching { }",
        files=_graph("<int64[2] shape = {1, 2}> { all = Shape(x)\none = Reshape(x, shape)\ny = Reshape(one, all) }"),
    ),
    good=Example(
        "max_batch_size: 8\ndynamic_batching { }",
        files=_graph("<int64[2] shape = {0, 2}> { y = Reshape(x, shape) }"),
    ),
)
def reshapes_leave_the_rows_open(config: Configuration) -> Iterator[Problem]:
    """A Reshape of the graph has a constant shape, so batches of other sizes fail.

    An exporter writes the sizes of the example where the model asks for them in Python. The graph's inputs then say
    that the batch is dynamic, and a node inside says that it is not. Every batch of another size fails: "The input
    tensor cannot be reshaped to the requested shape" (measured: one row is answered, two are not). Where onnxruntime
    infers the shape of an output from the node, the model does not even load (measured). The rule follows the batch
    axis only through nodes that certainly keep it, so it misses some graphs.

    Source: onnxruntime, reshape_helper.h.
    Fix: write -1 or 0 for the batch and export again. `python -m export.add` mends such a graph and proves it.
    """
    for rows, node in _nodes(config, "Reshape"):
        shape = rows.numbers(node, "shape", 1)
        if shape and all(size > 0 for size in shape):
            assert config.graph is not None
            yield Problem(
                Position(path=config.graph.path),
                f"{label(node)} has the constant shape {list(shape)}, so batches of other sizes fail. Write -1 for the "
                "batch and export again, or let python -m export.add mend the graph.",
            )
