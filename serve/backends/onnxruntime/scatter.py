"""Splits the outputs of a run into one part per request, along the batch axis or by the shapes of an input."""

import math
from collections.abc import Mapping, Sequence
from itertools import repeat

import numpy as np
from gather import Tensors
from graph_contract import configured_dims, shape_text
from numpy.typing import NDArray
from tensor_types import Config

Array = NDArray[np.generic]


class ScatterError(ValueError):
    """An output cannot be split into one part per request."""


class Scatter:
    """Splits the outputs of a run into one part per request; parts are views, nothing is copied."""

    def __init__(self, config: Config) -> None:
        batching = config["max_batch_size"] > 0
        dims = {tensor["name"]: configured_dims(tensor) for tensor in config["output"]}
        self._batching = batching
        self._dims = dims
        self.names = list(dims)
        self._sources: Mapping[str, str] = {
            target: entry["source_input"][0]
            for entry in config.get("batch_output", [])
            for target in entry["target_name"]
        }
        self._shapes = {name: ([-1, *dims[name]] if batching else dims[name]) for name in self._sources}

    def __call__(self, outputs: Sequence[Array], requests: Sequence[Tensors]) -> list[Sequence[Array]]:
        """The outputs of each request, in the order of `names`; `outputs` are those of one run, in that order.

        Raises `ScatterError` if an output does not have exactly the rows or elements of the requests.
        """
        if len(requests) == 1 and self._is_whole(outputs, requests[0]):
            return [outputs]
        parts = [*map(self._parts, self.names, outputs, repeat(requests))]
        return [*zip(*parts, strict=True)]

    def _is_whole(self, outputs: Sequence[Array], request: Tensors) -> bool:
        """Whether the outputs are the answer without a split, which is the most common case."""
        if self._sources or not self._batching:
            return False
        rows = next(iter(request.values())).shape[:1]
        return [output.shape[:1] for output in outputs] == [rows] * len(outputs)

    def _parts(self, name: str, output: Array, requests: Sequence[Tensors]) -> list[Array]:
        if name in self._sources:
            source = self._sources[name]
            return by_shape(name, output, self._shapes[name], [request[source].shape for request in requests])
        rows = [next(iter(request.values())).shape[0] for request in requests] if self._batching else [1]
        if output.ndim == 0 and rows == [1]:
            # A scalar gets the dims of config.pbtxt, which are all 1.
            return [output.reshape(self._dims[name] or (1,))]
        return by_rows(name, output, rows) if self._batching else [output]


def by_rows(name: str, output: Array, rows: Sequence[int]) -> list[Array]:
    """Split `output` of shape (sum(rows), ...) into views of `rows[0]`, `rows[1]`, ... rows.

    Raises `ScatterError` for fewer or more rows. The C++ backend drops surplus rows silently, which hides a model whose
    output does not have one row per input row.
    """
    total = sum(rows)
    if output.ndim == 0 or output.shape[0] != total:
        raise ScatterError(
            f"failed to split the output tensor '{name}' in responses: expected batch size of {total}, "
            f"model returned shape {list(output.shape)}. The output is not one row per input row: set "
            "max_batch_size: 0, export the model with the batch axis kept, or add a batch_output."
        )
    parts, start = [], 0
    for count in rows:
        parts.append(output[start : start + count])
        start += count
    return parts


def by_shape(name: str, output: Array, shape: Sequence[int], sources: Sequence[Sequence[int]]) -> list[Array]:
    """BATCH_SCATTER_WITH_INPUT_SHAPE: split the flat `output` into one part per request.

    A part has `shape`, with each -1 replaced by the dimension of the same index in that request's source input. Raises
    `ScatterError` for another number of elements. The C++ backend reads past the end of a shorter output and drops the
    rest of a longer one.
    """
    shapes = [
        [source[index] if dim == -1 else dim for index, dim in enumerate(shape)] for source in map(tuple, sources)
    ]
    counts = [math.prod(part) for part in shapes]
    if output.size != sum(counts):
        raise ScatterError(
            f"failed to split the output tensor '{name}' in responses: the requests are due {sum(counts)} elements "
            f"(shapes {', '.join(map(shape_text, shapes[:8]))}{', ...' if len(shapes) > 8 else ''}), model returned "
            f"{output.size} (shape {list(output.shape)}). Correct the output's dims or the source_input of its "
            "batch_output."
        )
    flat, parts, start = output.reshape(-1), [], 0
    for count, part in zip(counts, shapes, strict=True):
        parts.append(flat[start : start + count].reshape(part))
        start += count
    return parts
