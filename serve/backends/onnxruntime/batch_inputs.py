"""Makes batch inputs: index tensors that tell a graph where each request of a ragged batch begins and ends.

The kinds and their values are those of Triton's C++ backends (`BackendInputCollector`). For three requests of shapes
[1,3], [2,2] and [1,5], whose elements come as one tensor of 12:

BATCH_ELEMENT_COUNT                        [3, 4, 5]             elements of each request
BATCH_ACCUMULATED_ELEMENT_COUNT            [3, 7, 12]            where each request ends
BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO  [0, 3, 7, 12]         the same after a zero (cu_seqlens)
BATCH_MAX_ELEMENT_COUNT_AS_SHAPE           five zeros            its shape is the longest request
BATCH_ITEM_SHAPE                           [[3], [2], [2], [5]]  shape of each row
BATCH_ITEM_SHAPE_FLATTEN                   [3, 2, 2, 5]          the same, flat
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tensor_types import NUMPY_TYPES, Config

Shape = Sequence[int]
"""The shape of the source input in one request, batch dimension included."""

EXACT_IN_FP32 = 2**24
"""Every whole number up to this one is exact as a 32-bit float."""


class BatchInputError(ValueError):
    """A value of a batch input is too large for its data type."""


def _counts(shapes: Sequence[Shape]) -> NDArray[np.int64]:
    return np.array([math.prod(shape) for shape in shapes], dtype=np.int64)


def _ends(shapes: Sequence[Shape]) -> NDArray[np.int64]:
    return np.cumsum(_counts(shapes))


def _starts_and_end(shapes: Sequence[Shape]) -> NDArray[np.int64]:
    return np.concatenate([[0], _ends(shapes)])


def _longest_as_shape(shapes: Sequence[Shape]) -> NDArray[np.int64]:
    return np.zeros(max(math.prod(shape) for shape in shapes), dtype=np.int64)


def _item_shapes(shapes: Sequence[Shape]) -> NDArray[np.int64]:
    dims = np.array([shape[1:] for shape in shapes], dtype=np.int64)
    return np.repeat(dims, [shape[0] for shape in shapes], axis=0)


def _item_shapes_flat(shapes: Sequence[Shape]) -> NDArray[np.int64]:
    return _item_shapes(shapes).reshape(-1)


KINDS: dict[str, Callable[[Sequence[Shape]], NDArray[np.int64]]] = {
    "BATCH_ELEMENT_COUNT": _counts,
    "BATCH_ACCUMULATED_ELEMENT_COUNT": _ends,
    "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO": _starts_and_end,
    "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE": _longest_as_shape,
    "BATCH_ITEM_SHAPE": _item_shapes,
    "BATCH_ITEM_SHAPE_FLATTEN": _item_shapes_flat,
}


@dataclass(frozen=True, kw_only=True)
class BatchInput:
    """One `batch_input` of config.pbtxt: graph input `target` is computed from the shapes of input `source`."""

    target: str
    source: str
    kind: str
    data_type: str

    @property
    def rank(self) -> int:
        """Number of dimensions: two (rows x dims) for BATCH_ITEM_SHAPE, else one."""
        return 2 if self.kind == "BATCH_ITEM_SHAPE" else 1

    def tensor(self, shapes: Sequence[Shape]) -> NDArray[np.generic]:
        """The tensor for requests whose source inputs have these shapes, in this order.

        Raises `BatchInputError` if the data type cannot hold a value exactly. The C++ backend rounds or wraps such a
        value, and the graph then splits the batch at the wrong elements.
        """
        values = KINDS[self.kind](shapes)
        limit = EXACT_IN_FP32 if self.data_type == "TYPE_FP32" else np.iinfo(np.int32).max
        if values.size and values.max() > limit:
            raise BatchInputError(
                f"batch input '{self.target}' ({self.kind}) would hold {values.max()}, and {self.data_type} is exact "
                f"only up to {limit}. Lower max_batch_size, or use TYPE_INT32 in config.pbtxt and in the graph."
            )
        return values.astype(NUMPY_TYPES[self.data_type])


def batch_inputs(config: Config) -> list[BatchInput]:
    """The batch inputs of a configuration; core has checked that each has one source and TYPE_INT32 or TYPE_FP32."""
    return [
        BatchInput(
            target=target,
            source=entry["source_input"][0],
            kind=entry.get("kind", "BATCH_ELEMENT_COUNT"),
            data_type=entry["data_type"],
        )
        for entry in config.get("batch_input", [])
        for target in entry.get("target_name", [])
    ]
