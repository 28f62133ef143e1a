"""The tensors of a configuration, paired with those of its graph."""

from collections.abc import Iterator
from dataclasses import dataclass

from tritonclient.grpc.model_config_pb2 import ModelInput

from export.graph.signature import Tensor
from serve.doctor.configuration import Configuration


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One input or output that configuration and graph have.

    `shape` are its dims for the backend (after `reshape`), `shape_steps` their path in the file. `graph` is the graph's
    tensor with its batch axis.
    """

    kind: str
    name: str
    shape: tuple[int, ...]
    shape_steps: tuple[str | int, ...]
    graph: Tensor


def pairs(config: Configuration) -> Iterator[Pair]:
    """Every declared tensor whose rank the graph has, without ragged inputs and outputs of `batch_output`."""
    graph = config.graph
    if graph is None:
        return
    scattered = {name for entry in config.proto.batch_output for name in entry.target_name}
    for index, tensor in enumerate(config.proto.input):
        if not tensor.allow_ragged_batch:
            yield from _pair(config, "input", index, graph.signature.inputs)
    for index, output in enumerate(config.proto.output):
        if output.name not in scattered:
            yield from _pair(config, "output", index, graph.signature.outputs)


def _pair(config: Configuration, kind: str, index: int, tensors: object) -> Iterator[Pair]:
    assert isinstance(tensors, dict)
    assert config.graph is not None
    tensor = getattr(config.proto, kind)[index]
    provided = tensors.get(tensor.name)
    if provided is None or tensor.name in config.graph.unshaped:
        return
    reshaped = tensor.HasField("reshape")
    yield Pair(
        kind=kind,
        name=tensor.name,
        shape=tuple(tensor.reshape.shape if reshaped else tensor.dims),
        shape_steps=(kind, index, "reshape", "shape") if reshaped else (kind, index, "dims"),
        graph=provided,
    )


def repeats_batch_axis(config: Configuration, pair: Pair) -> bool:
    """Whether the dims contain the batch axis, which max_batch_size adds."""
    return (
        config.proto.max_batch_size > 0
        and len(pair.shape) == len(pair.graph.shape) > 0
        and pair.graph.shape[0] == -1
        and pair.shape[0] in (-1, 1, config.proto.max_batch_size)
        and _fits(pair.shape[1:], pair.graph.shape[1:])
    )


def variable_inputs(config: Configuration) -> Iterator[tuple[int, ModelInput]]:
    """Index and declaration of every input whose rows may differ in shape, without ragged ones.

    A -1 that repeats the batch axis (G105) is not of the rows.
    """
    repeated = {pair.name for pair in pairs(config) if pair.kind == "input" and repeats_batch_axis(config, pair)}
    for index, tensor in enumerate(config.proto.input):
        dims = tensor.dims[1:] if tensor.name in repeated else tensor.dims
        if -1 in dims and not tensor.allow_ragged_batch:
            yield index, tensor


def lacks_batch_axis(config: Configuration, pair: Pair) -> bool:
    """Whether the dims lack the graph's first axis although max_batch_size is 0."""
    return config.proto.max_batch_size == 0 and len(pair.shape) == len(pair.graph.shape) - 1


def batch_axis_is_fixed(config: Configuration, pair: Pair) -> bool:
    """Whether the graph cannot take a batch: its first axis has a fixed size, or it has no axis at all."""
    return config.proto.max_batch_size > 0 and pair.graph.shape[:1] != (-1,)


def expected_shape(config: Configuration, pair: Pair) -> tuple[int, ...]:
    """The right dims: the graph's shape without the batch axis; [1] for a scalar."""
    return pair.graph.shape[1:] if config.proto.max_batch_size > 0 else pair.graph.shape or (1,)


def _fits(shape: tuple[int, ...], graph: tuple[int, ...]) -> bool:
    return all(ours == theirs or -1 in (ours, theirs) for ours, theirs in zip(shape, graph, strict=True))
