"""Makes what Triton gives a ragged graph, flat tensors and the six kinds of `batch_input`, from single items.

Kinds and shapes are those of `model_config.proto`; each item is a request of one row.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc.model_config_pb2 import BatchInput, DataType, ModelConfig

from export.graph.samples import Array, draw

Items = Sequence[Mapping[str, Array]]
"""One mapping per item: input name -> array without a batch axis."""

# Triton leaves the values of BATCH_MAX_ELEMENT_COUNT_AS_SHAPE undefined, so a graph that reads them must fail here too.
UNSET = -7


def is_ragged(config: ModelConfig) -> bool:
    """Whether the model has a ragged input."""
    return any(tensor.allow_ragged_batch for tensor in config.input)


def draw_items(config: ModelConfig, lengths: Sequence[int], *, seed: int = 0) -> list[dict[str, Array]]:
    """One item per length: every dims entry of -1 becomes that length. The same seed gives the same values."""
    rng = np.random.default_rng(seed)
    return [
        {
            tensor.name: draw(DataType.Name(tensor.data_type))(rng, [length if d == -1 else d for d in tensor.dims])
            for tensor in config.input
        }
        for length in lengths
    ]


def feed(config: ModelConfig, items: Items) -> dict[str, Array]:
    """The graph's inputs for one execution of `items`, in this order."""
    arrays = {
        tensor.name: np.concatenate([item[tensor.name].ravel() for item in items])
        if tensor.allow_ragged_batch
        else np.stack([item[tensor.name] for item in items])
        for tensor in config.input
    }
    for batch in config.batch_input:
        shapes = np.array([item[batch.source_input[0]].shape for item in items])
        dtype = np.float32 if batch.data_type == DataType.TYPE_FP32 else np.int32
        arrays[batch.target_name[0]] = _index(BatchInput.Kind.Name(batch.kind), shapes).astype(dtype)
    return arrays


def _index(kind: str, shapes: NDArray[np.int64]) -> NDArray[np.int64]:
    """One batch input for items of these shapes, (items, rank)."""
    counts = shapes.prod(axis=1)
    indices: dict[str, NDArray[np.int64]] = {
        "BATCH_ELEMENT_COUNT": counts,
        "BATCH_ACCUMULATED_ELEMENT_COUNT": np.cumsum(counts),
        "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO": np.concatenate([[0], np.cumsum(counts)]),
        "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE": np.full(counts.max(), UNSET),
        "BATCH_ITEM_SHAPE": shapes,
        "BATCH_ITEM_SHAPE_FLATTEN": shapes.ravel(),
    }
    return indices[kind]
