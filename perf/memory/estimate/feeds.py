"""Inputs to run a model with, whatever its kind: random ones, or for a ragged model what Triton would feed it."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from export.graph.onnx_graph import graph_inputs, load
from export.graph.ragged_feed import draw_items, feed, is_ragged
from export.repository import REPOSITORY, config_file, model_folder, models, read_config
from triton_batching.terminal import Mistake

Array = NDArray[np.generic]
Feeds = Callable[[int], Mapping[str, Array]]
"""Makes the inputs of one run from the batch size: rows, or items of a ragged model."""

# Lengths of a ragged model's items, in turn.
LENGTHS = (16, 5, 9, 12, 3)


def feeds_of(name: str, path: Path) -> Feeds:
    """For a model of the repository as its configuration says, else random values of the graph's inputs."""
    if name in models():
        config = read_config(config_file(model_folder(name, REPOSITORY), None))
        if is_ragged(config):
            return lambda batch: feed(config, draw_items(config, [LENGTHS[at % len(LENGTHS)] for at in range(batch)]))
    inputs = graph_inputs(load(path))
    return lambda batch: {value.name: _random(value, batch) for value in inputs}


def _random(value: onnx.ValueInfoProto, batch: int) -> Array:
    """Seeded values; whole numbers are 0 or 1. Raises `Mistake` for a dynamic dimension behind the first."""
    tensor = value.type.tensor_type
    shape = [dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim]
    if None in shape[1:]:
        raise Mistake(f'input "{value.name}" has dynamic dimensions besides the batch; check a model without them.')
    whole = [batch if dim is None else dim for dim in shape]
    kind, rng = helper.tensor_dtype_to_np_dtype(tensor.elem_type), np.random.default_rng(batch)
    drawn: Array = (rng.random(whole) if kind.kind == "f" else rng.integers(0, 2, whole)).astype(kind)
    return drawn
