"""Inputs of any ONNX file, drawn at random for one batch size."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import helper

from perf.memory.estimate.graph import Graph, Shape
from perf.memory.estimate.shapes import inputs_at
from triton_batching.terminal import Mistake

Array = NDArray[np.generic]
Draws = Callable[[int], Mapping[str, Array]]


def draws(path: Path, dims: Mapping[str, int] | None = None) -> Draws:
    """Maps a batch size to seeded inputs of the file; integers are 0 or 1, so that they may be indices.

    `dims` has the sizes of dynamic dimensions besides the batch. Raises `Mistake` if the file cannot be loaded, and
    when called like `inputs_at`.
    """
    graph = Graph.of(path, "disabled")
    kinds = {name: graph.values[name].type for name in graph.inputs}

    def at(batch: int) -> Mapping[str, Array]:
        shapes = inputs_at(graph, batch, dims or {})
        return {name: _values(name, kinds[name], shape, batch) for name, shape in shapes.items()}

    return at


def _values(name: str, kind: int | None, shape: Shape, seed: int) -> Array:
    dtype = None if kind is None else helper.tensor_dtype_to_np_dtype(kind)
    if dtype is None or dtype.kind not in "fiub":
        raise Mistake(
            f'input "{name}" is neither of numbers nor of bools, so no values can be drawn. Name another file.'
        )
    rng = np.random.default_rng(seed)
    values: Array = (rng.random(shape) if dtype.kind == "f" else rng.integers(0, 2, shape)).astype(dtype)
    return values
