"""What lets requests of different length share a batch: padding in the server, ragged input, padding in the clients."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from tritonclient.grpc.model_config_pb2 import ModelConfig

from export.graph.signature import Signature
from export.repository import ONNXRUNTIME
from perf.simulate.batcher.rules import Rules
from perf.why.change import Change, Edit
from perf.why.lengths import Lengths


def alternatives(
    config: ModelConfig, rules: Rules, lengths: Lengths, edited: Edit, graph: Signature | None
) -> Iterator[Change]:
    """Yield what the model's graph allows, the best for most models first."""
    names = lengths.names
    if takes_rows(config, names, graph):
        yield from _padded(lengths, edited)
    else:
        yield _ragged(lengths, edited)
    sizes = ", ".join(f"{name} {list(shape)}" for name, shape in lengths.largest.items())
    yield Change(
        text=f"the clients pad to {sizes}",
        note="Every request then costs as much as the longest, and the model must ignore the padding.",
        rules=dataclasses.replace(rules, equal_shape=rules.equal_shape - set(names)),
        computed=lengths.maximum,
    )


def takes_rows(config: ModelConfig, names: Sequence[str], graph: Signature | None) -> bool:
    """Whether the graph takes these inputs as rows of one length, so that ragged batches would not load (R305).

    Without the graph: whether the configuration lacks the batch inputs that a flat graph needs.
    """
    if config.backend not in ONNXRUNTIME:
        return False
    if graph is None:
        return not config.batch_input
    return any(len(graph.inputs[name].shape) > 1 for name in names if name in graph.inputs)


def _ragged_inputs(names: Sequence[str], pad_lengths: str = "") -> Callable[[ModelConfig], object]:
    def edit(changed: ModelConfig) -> None:
        for tensor in changed.input:
            if tensor.name in names:
                tensor.allow_ragged_batch = True
        if pad_lengths:
            changed.parameters["pad_lengths"].string_value = pad_lengths

    return edit


def _padded(lengths: Lengths, edited: Edit) -> Iterator[Change]:
    command, names = "export.add --variable-length", " and ".join(lengths.names)
    padded = edited(
        f"{command}: the server pads {names}",
        "The graph takes rows of one length, so allow_ragged_batch alone would not load. A batch then takes as long as "
        "its longest request; padding_budget splits it where that is faster.",
        _ragged_inputs(lengths.names),
    )
    yield dataclasses.replace(padded, computed=lengths.longest)
    buckets = " ".join(map(str, lengths.buckets))
    bucketed = edited(
        f"{command} and pad_lengths: {buckets}",
        "The server pads to the next of these lengths, so that a GPU sees few shapes. A longer request is refused.",
        _ragged_inputs(lengths.names, buckets),
    )
    yield dataclasses.replace(bucketed, computed=lengths.bucketed)


def _ragged(lengths: Lengths, edited: Edit) -> Change:
    ragged = edited(
        "allow_ragged_batch: true on " + " and ".join(lengths.names),
        "The model must take requests of different length in one execution. Padding to one length in the clients lets "
        "as many run together.",
        _ragged_inputs(lengths.names),
    )
    return dataclasses.replace(ragged, computed=lengths.own)
