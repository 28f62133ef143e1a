"""Ragged batches: turn a model of padded items into one that takes Triton's ragged input, padding inside the graph.

Triton runs requests of different length together only when their input says `allow_ragged_batch: true`. The
onnxruntime backend then hands the graph ONE rank-1 tensor, the elements of all requests one after the other, and index
tensors (`batch_input`) that say where each request begins. No exporter makes such a graph. This recipe does:

1. Have a torch module `model(padded, lengths)`: `padded` (N, *item) with one open axis, `lengths` (N,) int64 along it.
   Nothing beyond an item's own length may reach its answer. For attention that is a mask; for convolutions
   see `keep`: a convolution sees zeros beyond a picture's edge, so zero them again after every layer.
2. Wrap it: `Ragged(model, item=(-1,))` for tokens, `(1, 32, -1)` for pictures 32 pixels high and of any width,
   `(-1, 80)` for frames of 80 features. The answer's first axis is the item; it is cut into replies as every batch is.
   `scatter=True` instead flattens an answer (N, length, ...), and each reply has its own length.
   `packed=True` calls `model(flat, packing)`: layers that treat every element alone then compute no padding at all, and
   only those that look across an item use `packing.pad` and `packing.pack` around them
   (export/models/ragged_encoder.py).
3. `ragged_onnx.write(...)` it with torch's own exporter. The file takes the flat tensor and
   - `counts="offsets"`: BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO, in other words cu_seqlens, and
     BATCH_MAX_ELEMENT_COUNT_AS_SHAPE, whose shape is what the batch is padded to. A request is one item (batch axis 1);
   - `counts="item_shape"`: BATCH_ITEM_SHAPE alone, and requests of several equal items work too.
4. Declare it (data type INT32: with a graph that takes INT64 counts the model loads and fails at its first request):

       input [ { name: "TOKENS" data_type: TYPE_INT32 dims: [ -1 ] allow_ragged_batch: true } ]
       batch_input [
         { kind: BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO
           target_name: "OFFSETS" data_type: TYPE_INT32 source_input: "TOKENS" },
         { kind: BATCH_MAX_ELEMENT_COUNT_AS_SHAPE
           target_name: "LONGEST" data_type: TYPE_INT32 source_input: "TOKENS" }
       ]
       dynamic_batching { }

   with scatter=True also (a -1 of the output's dims becomes the request's dim at the same place):

       batch_output [ { kind: BATCH_SCATTER_WITH_INPUT_SHAPE target_name: "VECTORS" source_input: "TOKENS" } ]

5. Prove it: `python -m export.verify` runs random mixes of lengths against each item alone.

All of it is index arithmetic and gathers: no loop over the items. Semantics: Triton's user_guide/ragged_batching and
backend/src/backend_input_collector.cc. Asked for in onnxruntime_backend#192 and server#3741, #5872, #6984.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

Counts = Literal["offsets", "item_shape"]


@dataclass(frozen=True, kw_only=True)
class Item:
    """One item: its `shape` with exactly one -1, the axis along which lengths differ.

    `before` and `after` are the elements in the dims on either side of that axis, so an item of length n has
    before x n x after elements. Raises `ValueError` for a shape without, or with a second, open axis.
    """

    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.shape.count(-1) != 1 or any(dim < 1 for dim in self.shape if dim != -1):
            raise ValueError(
                f"item shape {list(self.shape)}: exactly one dim must be -1 (the length) and the others at least 1. "
                "For tokens write (-1,), for pictures 32 high (1, 32, -1), for frames of 80 features (-1, 80)."
            )

    @property
    def axis(self) -> int:
        """Which dim is open."""
        return self.shape.index(-1)

    @property
    def before(self) -> int:
        """Elements across the dims before the open one."""
        return math.prod(self.shape[: self.axis])

    @property
    def after(self) -> int:
        """Elements across the dims after it."""
        return math.prod(self.shape[self.axis + 1 :])


@dataclass(frozen=True, kw_only=True)
class Packing:
    """Where the N items of one batch lie in the flat tensor of `total` vectors.

    `places` (N, before, longest): the vector at each padded place, `total` beyond an item's end; `lengths` (N,) int64.
    """

    places: Tensor
    lengths: Tensor
    total: int

    def pad(self, vectors: Tensor, fill: float = 0.0) -> Tensor:
        """(total, ...) to (N, before, longest, ...); the places beyond an item's end hold `fill`."""
        padding = torch.full((1, *vectors.shape[1:]), fill, dtype=vectors.dtype)
        # Every place beyond an end reads the one vector after the last.
        return torch.cat([vectors, padding])[self.places]

    def pack(self, padded: Tensor) -> Tensor:
        """(N, before, longest, ...) to (total, ...): the inverse of `pad`."""
        places = self.places.flatten()
        numbers = torch.arange(places.shape[0])
        # The number of each vector's padded place; the padding all lands on the surplus last one.
        found = torch.zeros(self.total + 1, dtype=torch.int64).index_put((places,), numbers)[:-1]
        return padded.flatten(0, 2)[found]

    def positions(self) -> Tensor:
        """(total,): the place of each vector along its own item, from 0; only for items with nothing before."""
        return self.pack(torch.arange(self.places.shape[2]).expand(self.places.shape))


class Ragged(nn.Module):
    """`model` behind Triton's ragged input; see this module's docstring.

    `fill` is the value that pads. With `scatter` the model must answer (N, longest, ...) for items whose open axis is
    the first. Zero-length items arrive as rows of padding with length 0: the model must allow for them.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        item: Sequence[int],
        counts: Counts = "offsets",
        scatter: bool = False,
        packed: bool = False,
        fill: float = 0.0,
    ) -> None:
        super().__init__()
        self.model, self.item = model, Item(shape=tuple(item))
        self.counts, self.scatter, self.packed, self.fill = counts, scatter, packed, fill
        if scatter and self.item.before != 1:
            raise ValueError(f"item shape {list(item)}: an answer can be scattered only along the first dim.")

    def forward(self, flat: Tensor, counts: Tensor, longest: Tensor) -> Tensor:
        """Answer a ragged batch of N items.

        `flat` (elements,): all items' elements. `counts` int32: element offsets (N + 1,) from 0, or item shapes
        (N, rank). `longest` int32 (elements of the longest item,): only its shape is used, its values are not set.
        """
        item = self.item
        length = longest.shape[0] // (item.before * item.after)
        packing = self._packing(counts, length, flat.shape[0] // item.after)
        vectors = flat.reshape(-1, *item.shape[item.axis + 1 :])
        if self.packed:
            answer: Tensor = self.model(vectors, packing)
            return answer
        dims = [length if dim == -1 else dim for dim in item.shape]
        padded = packing.pad(vectors, self.fill).reshape(packing.lengths.shape[0], *dims)
        answer = self.model(padded, packing.lengths)
        return packing.pack(answer[:, None]) if self.scatter else answer

    def _packing(self, counts: Tensor, length: int, total: int) -> Packing:
        starts, lengths = self._extents(counts)
        step = torch.arange(length)
        line = torch.arange(self.item.before)[:, None] * lengths[:, None, None]
        places = torch.where(step < lengths[:, None, None], starts[:, None, None] + line + step, total)
        return Packing(places=places, lengths=lengths, total=total)

    def _extents(self, counts: Tensor) -> tuple[Tensor, Tensor]:
        """Where each item starts, in vectors of `after` elements, and its length; both (N,) int64."""
        counts = counts.to(torch.int64)
        if self.counts == "offsets":
            offsets = counts // self.item.after
            return offsets[:-1], (offsets[1:] - offsets[:-1]) // self.item.before
        lengths = counts[:, self.item.axis]
        ends = torch.cumsum(lengths * self.item.before, 0)
        return ends - lengths * self.item.before, lengths


def keep(lengths: Tensor, length: int) -> Tensor:
    """1.0 for the own columns of each item and 0.0 beyond: (N, 1, 1, length) to multiply feature maps with."""
    return (torch.arange(length) < lengths[:, None])[:, None, None, :].to(torch.float32)
