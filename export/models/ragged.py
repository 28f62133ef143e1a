"""Turns a torch model of padded items into one that takes Triton's ragged input and pads inside the graph.

Triton runs requests of different length together only if their input has `allow_ragged_batch: true`. The onnxruntime
backend then gives the graph one rank-1 tensor with the elements of all requests, and index tensors (`batch_input`) that
say where each request begins. No exporter makes such a graph. These steps do:

1. Write a torch module `model(padded, lengths)`: `padded` (N, *item) with one open axis, `lengths` (N,) int64 along it.
   Nothing beyond an item's own length may reach its answer. Attention needs a mask; for convolutions see `keep`: a
   convolution sees zeros beyond a picture's edge, so set the padding to zero again after every layer.
2. Wrap it: `Ragged(model, item=(-1,))` for tokens, `(1, 32, -1)` for pictures 32 pixels high and of any width,
   `(-1, 80)` for frames of 80 features. The first axis of the answer is the item.
   `packed=True` calls `model(flat, packing)`: layers that treat every element alone then compute no padding. Only
   layers that look across an item need `packing.pad` and `packing.pack` (export/models/ragged_encoder.py).
3. Export it with `ragged_onnx.write(...)`. The file takes the flat tensor and
   - `counts="offsets"`: BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO (cu_seqlens) and BATCH_MAX_ELEMENT_COUNT_AS_SHAPE,
     whose shape is the padded length. A request is one item (batch axis 1);
   - `counts="item_shape"`: BATCH_ITEM_SHAPE only. A request may have several items of equal shape.
4. Declare it with data type INT32: with INT64 counts the model loads, and its first request fails.

       input [ { name: "TOKENS" data_type: TYPE_INT32 dims: [ -1 ] allow_ragged_batch: true } ]
       batch_input [
         { kind: BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO
           target_name: "OFFSETS" data_type: TYPE_INT32 source_input: "TOKENS" },
         { kind: BATCH_MAX_ELEMENT_COUNT_AS_SHAPE
           target_name: "LONGEST" data_type: TYPE_INT32 source_input: "TOKENS" }
       ]
       dynamic_batching { }

5. Prove it: `python -m export.verify` compares random mixes of lengths with each item alone.

The graph has index arithmetic and gathers, and no loop over the items. Semantics: Triton's user_guide/ragged_batching
and backend/src/backend_input_collector.cc. See onnxruntime_backend#192 and server#3741, #5872, #6984.
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
    before x n x after elements. Raises `ValueError` unless the shape has exactly one open axis.
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
        """The index of the open dim."""
        return self.shape.index(-1)

    @property
    def before(self) -> int:
        """Elements in the dims before the open one."""
        return math.prod(self.shape[: self.axis])

    @property
    def after(self) -> int:
        """Elements in the dims after the open one."""
        return math.prod(self.shape[self.axis + 1 :])


@dataclass(frozen=True, kw_only=True)
class Packing:
    """Where the N items of one batch are in the flat tensor of `total` vectors.

    `places` (N, before, longest): the index of the vector at each padded place, `total` beyond an item's end.
    `lengths` (N,) int64.
    """

    places: Tensor
    lengths: Tensor
    total: int

    def pad(self, vectors: Tensor) -> Tensor:
        """(total, ...) to (N, before, longest, ...), with zeros beyond an item's end."""
        padding = torch.zeros((1, *vectors.shape[1:]), dtype=vectors.dtype)
        # Every place beyond an item's end reads this vector, which is appended at index `total`.
        return torch.cat([vectors, padding])[self.places]

    def pack(self, padded: Tensor) -> Tensor:
        """(N, before, longest, ...) to (total, ...): the inverse of `pad`."""
        places = self.places.flatten()
        numbers = torch.arange(places.shape[0])
        # The padded place of each vector; all padding goes to the last entry, which is dropped.
        sources = torch.zeros(self.total + 1, dtype=torch.int64).index_put((places,), numbers)[:-1]
        return padded.flatten(0, 2)[sources]

    def positions(self) -> Tensor:
        """(total,): the position of each vector in its item, from 0; only for items whose open axis is the first."""
        return self.pack(torch.arange(self.places.shape[2]).expand(self.places.shape))


class Ragged(nn.Module):
    """`model` behind Triton's ragged input; see this module's docstring.

    Items of length 0 are rows of padding, and the model must accept them.
    """

    def __init__(
        self, model: nn.Module, *, item: Sequence[int], counts: Counts = "offsets", packed: bool = False
    ) -> None:
        super().__init__()
        self.model, self.item = model, Item(shape=tuple(item))
        self.counts, self.packed = counts, packed

    def forward(self, flat: Tensor, counts: Tensor, longest: Tensor) -> Tensor:
        """Run a ragged batch of N items.

        `flat` (elements,): the elements of all items. `counts` int32: element offsets (N + 1,) from 0, or item shapes
        (N, rank). `longest` int32 (elements of the longest item,): only its shape is used; its values are undefined.
        """
        item = self.item
        length = longest.shape[0] // (item.before * item.after)
        packing = self._packing(counts, length, flat.shape[0] // item.after)
        vectors = flat.reshape(-1, *item.shape[item.axis + 1 :])
        answer: Tensor
        if self.packed:
            answer = self.model(vectors, packing)
            return answer
        dims = [length if dim == -1 else dim for dim in item.shape]
        padded = packing.pad(vectors).reshape(packing.lengths.shape[0], *dims)
        answer = self.model(padded, packing.lengths)
        return answer

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
    """A mask (N, 1, 1, length) for feature maps: 1.0 for an item's own columns, 0.0 beyond."""
    return (torch.arange(length) < lengths[:, None])[:, None, None, :].to(torch.float32)
