"""G1: nodes of an ONNX graph that mix the rows of a batch, or fix their number."""

from collections.abc import Collection, Iterator

import onnx
import onnx.shape_inference

from export.graph.onnx_graph import label
from serve.doctor.configuration import Configuration
from serve.doctor.finding import Position, Problem, Severity
from serve.doctor.rule import Example, rule
from serve.doctor.rules.graph_shapes import HEAD


def _graph(body: str) -> dict[str, str]:
    return {"1/model.onnx": f"{HEAD}example (float[N,2] x) => (float[N,2] y) {body}"}


BATCH = "the batch"
SOFTMAXES = ("Softmax", "LogSoftmax", "Hardmax")


def _nodes(config: Configuration, *kinds: str) -> Iterator[tuple[onnx.NodeProto, int]]:
    """The nodes of these kinds whose first input has the rows of a batch in its first axis, and its number of axes."""
    graph = config.graph
    if graph is None or config.proto.max_batch_size < 2:
        return
    is_flat = any(tensor.allow_ragged_batch for tensor in config.proto.input) and not config.pads
    batched = {name for name, tensor in graph.signature.inputs.items() if tensor.shape[:1] == (-1,)}
    declared = {tensor.name for tensor in config.proto.input}
    nodes = [node for node in graph.proto.graph.node if node.op_type in kinds and node.input and node.output]
    if is_flat or not declared <= batched or not nodes:
        return
    ranks = _ranks(graph.proto, declared)
    yield from ((node, ranks[node.input[0]]) for node in nodes if node.input[0] in ranks)


def _ranks(proto: onnx.ModelProto, inputs: Collection[str]) -> dict[str, int]:
    """The number of axes of each tensor whose first axis certainly is that of `inputs`, by onnx's shape inference."""
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    del model.graph.value_info[:]
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    for value in (value for value in model.graph.input if value.name in inputs):
        value.type.tensor_type.shape.dim[0].dim_param = BATCH
    try:
        graph = onnx.shape_inference.infer_shapes(model).graph
    except (onnx.shape_inference.InferenceError, RuntimeError):
        return {}
    shapes = {
        value.name: value.type.tensor_type.shape.dim for value in (*graph.input, *graph.value_info, *graph.output)
    }
    return {name: len(dims) for name, dims in shapes.items() if dims and dims[0].dim_param == BATCH}


def _numbers(graph: onnx.GraphProto, name: str) -> list[int]:
    """The whole numbers of a constant of the graph; none if it is computed, or was left out as a weight."""
    constants = [tensor for tensor in graph.initializer if tensor.name == name]
    for node in graph.node:
        if node.op_type == "Constant" and name in node.output:
            constants += [entry.t for entry in node.attribute if entry.name == "value"]
    try:
        return [int(number) for tensor in constants for number in onnx.numpy_helper.to_array(tensor).ravel()]
    except (ValueError, TypeError, KeyError):
        return []


@rule(
    "G119",
    Severity.ERROR,
    bad=Example("max_batch_size: 8\ndynamic_batching { }", files=_graph("{ y = Softmax<axis = 0>(x) }")),
    good=Example("max_batch_size: 8\ndynamic_batching { }", files=_graph("{ y = Softmax<axis = 1>(x) }")),
)
def rows_are_normalised_alone(config: Configuration) -> Iterator[Problem]:
    """A Softmax of the graph works along the batch axis, so each answer depends on the other requests.

    The model loads and answers without an error. Measured: a request of one row gets ones, because it is normalised
    over itself; in a batch of 8 equal rows it gets eighths. The batch axis is followed by onnx's shape inference, which
    loses it at some nodes: then the rule finds nothing.

    Source: onnx, Softmax, LogSoftmax and Hardmax.
    Fix: normalise along another axis and export again. `python -m export.add` compares batches with their rows.
    """
    for node, rank in _nodes(config, *SOFTMAXES):
        assert config.graph is not None
        written = (int(entry.i) for entry in node.attribute if entry.name == "axis")
        axis = next(written, -1 if config.graph.opset >= 13 else 1)
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
        "max_batch_size: 8\ndynamic_batching { }", files=_graph("<int64[2] shape = {0, 2}> { y = Reshape(x, shape) }")
    ),
)
def reshapes_leave_the_rows_open(config: Configuration) -> Iterator[Problem]:
    """A Reshape of the graph has a constant shape, so batches of other sizes fail.

    An exporter writes the sizes of the example where the model asks for them in Python. The graph's inputs then say
    that the batch is dynamic, and a node inside says that it is not. Every batch of another size fails: "The input
    tensor cannot be reshaped to the requested shape" (measured: one row is answered, two are not). Where onnxruntime
    infers the shape of an output from the node, the model does not even load (measured). The batch
    axis is followed as in G119.

    Source: onnxruntime, reshape_helper.h.
    Fix: write -1 or 0 for the batch and export again. `python -m export.add` mends such a graph and proves it.
    """
    for node, _ in _nodes(config, "Reshape"):
        assert config.graph is not None
        shape = _numbers(config.graph.proto.graph, node.input[1]) if len(node.input) > 1 else []
        if shape and all(size > 0 for size in shape):
            yield Problem(
                Position(path=config.graph.path),
                f"{label(node)} has the constant shape {list(shape)}, so batches of other sizes fail. Write -1 for the "
                "batch and export again, or let python -m export.add mend the graph.",
            )
