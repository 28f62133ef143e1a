"""Pads requests of different length into one batch for a graph that takes [batch, length], and cuts its outputs back.

The parameters of config.pbtxt (`padded_settings`) say which axes vary and with what they are filled. Every request gets
what it would get alone as far as the graph ignores the padding; `python -m export.add --variable-length` proves that.
"""

import bisect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gather import Allocate, Buffers, Tensors
from numpy.typing import NDArray
from padded_settings import MASK_TYPES, PaddedSettings
from padding_cut import Axis
from tensor_types import GraphTensor, RequestError

Array = NDArray[np.generic]
Lengths = Mapping[Axis, int]
"""The size of each padded axis, in one request or in a batch."""


class LengthError(RequestError):
    """A request has a length that this model does not take."""


class Padded:
    """Joins requests along the batch axis, padded to the longest of them or to the next of `pad_lengths`.

    inputs: the graph's, for the types of masks and the names of its open dimensions. Inputs whose dimensions have one
    name in the graph must have one length in a request. Joined inputs and masks are in buffers of `allocate`, which the
    next call reuses; on a GPU it is page-locked memory, from which `gpu.BoundSession` binds them to the device.
    """

    def __init__(self, settings: PaddedSettings, inputs: Sequence[GraphTensor], allocate: Allocate = np.empty) -> None:
        self._settings, self._buffers = settings, Buffers(allocate)
        shapes = {tensor.name: tensor.shape for tensor in inputs}
        self._types = {tensor.name: MASK_TYPES[tensor.type] for tensor in inputs if tensor.name in settings.masks}
        names = {axis: shapes[axis.tensor][axis.index] for axis in settings.fills}
        self._cuts = [(name, cut) for name, cuts in settings.cuts.items() for cut in cuts]
        self._alike = [
            (first, second)
            for index, first in enumerate(names)
            for second in [*names][index + 1 :]
            if isinstance(names[first], str) and names[first] == names[second]
        ]

    def gather(self, requests: Sequence[Tensors]) -> dict[str, Any]:
        """The inputs of one run; raises `LengthError` for a request that does not fit."""
        own = [self.lengths(request) for request in requests]
        longest = {axis: self._padded_to(max(lengths[axis] for lengths in own)) for axis in self._settings.fills}
        feed: dict[str, Any] = {
            name: self._join(name, [request[name] for request in requests], longest) for name in requests[0]
        }
        rows = [next(iter(request.values())).shape[0] for request in requests]
        for name, axis in self._settings.masks.items():
            feed[name] = self._mask(name, rows, [lengths[axis] for lengths in own], longest[axis])
        return feed

    def fault(self, request: Tensors) -> LengthError | None:
        """Why this request cannot run, whatever it shares a batch with; None if it can."""
        try:
            for length in self.lengths(request).values():
                self._padded_to(length)
        except LengthError as error:
            return error
        return None

    def lengths(self, request: Tensors) -> Lengths:
        """The sizes of the padded axes of a request, all 1 or more; raises `LengthError` for others."""
        lengths = {axis: request[axis.tensor].shape[axis.index] for axis in self._settings.fills}
        for axis, length in lengths.items():
            if not length:
                raise LengthError(
                    f"input '{axis.tensor}' has no elements along axis {axis.index}, which is padded: the request "
                    "would be padding only. Send 1 element or more."
                )
            if length > self._settings.longest > 0:
                raise LengthError(
                    f"input '{axis.tensor}' has {length} elements along axis {axis.index}, and the model takes at most "
                    f"{self._settings.longest} (pad_longest): padded answers were proved up to that length. Send less, "
                    "or raise pad_longest in config.pbtxt if you know that longer requests answer right."
                )
        for name, cut in self._cuts:
            if not cut.size(lengths[cut.source]):
                raise LengthError(
                    f"input '{cut.source.tensor}' has {lengths[cut.source]} elements along axis {cut.source.index}, "
                    f"too few for one element of output '{name}'. Send more."
                )
        for first, second in self._alike:
            if lengths[first] != lengths[second]:
                raise LengthError(
                    f"input '{second.tensor}' has {lengths[second]} elements along axis {second.index} and "
                    f"'{first.tensor}' has {lengths[first]} along axis {first.index}; in the graph they are one "
                    "dimension. Send the same length in both."
                )
        return lengths

    def cut(
        self, names: Sequence[str], answers: Sequence[Sequence[Array]], requests: Sequence[Tensors]
    ) -> list[Sequence[Array]]:
        """The outputs `names` of each request without what belongs to padding."""
        if not self._settings.cuts:
            return list(answers)
        return [
            [self._cut(name, part, request) for name, part in zip(names, answer, strict=True)]
            for answer, request in zip(answers, requests, strict=True)
        ]

    def _cut(self, name: str, part: Array, request: Tensors) -> Array:
        for cut in self._settings.cuts.get(name, ()):
            own = cut.size(request[cut.source.tensor].shape[cut.source.index])
            if part.shape[cut.index] < own:
                raise LengthError(
                    f"output '{name}' has {part.shape[cut.index]} elements along axis {cut.index} and the request is "
                    f"due {own}. Correct the parameter 'cut' of config.pbtxt."
                )
            part = part[(slice(None),) * cut.index + (slice(0, own),)]
        return np.ascontiguousarray(part)

    def _padded_to(self, length: int) -> int:
        allowed = self._settings.lengths
        if not allowed:
            return length
        index = bisect.bisect_left(allowed, length)
        if index == len(allowed):
            raise LengthError(
                f"the request has {length} elements along a padded axis, and the largest of the model's pad_lengths is "
                f"{allowed[-1]}. Send less, or add a larger one."
            )
        return allowed[index]

    def _join(self, name: str, arrays: Sequence[Array], longest: Lengths) -> Array:
        """One array of all rows; parts that padding fills are written once, own elements once."""
        first = arrays[0]
        fills = {axis.index: fill for axis, fill in self._settings.fills.items() if axis.tensor == name}
        shape = list(first.shape)
        for axis, length in longest.items():
            if axis.tensor == name:
                shape[axis.index] = length
        if all([*array.shape[1:]] == shape[1:] for array in arrays):
            return first if len(arrays) == 1 else self._concatenated(name, arrays, shape)
        shape[0] = sum(array.shape[0] for array in arrays)
        joined, start = self._buffers(name, shape, first.dtype), 0
        for array in arrays:
            rows = joined[start : start + array.shape[0]]
            start += array.shape[0]
            if [size for index, size in enumerate(array.shape[1:], 1) if index not in fills] != [
                size for index, size in enumerate(shape[1:], 1) if index not in fills
            ]:
                raise LengthError(
                    f"input '{name}' has shape {list(array.shape)}, and another request of the batch {list(shape)}: "
                    "only padded axes may differ."
                )
            _fill(rows, array, fills)
        return joined

    def _concatenated(self, name: str, arrays: Sequence[Array], shape: list[int]) -> Array:
        shape[0] = sum(array.shape[0] for array in arrays)
        return np.concatenate(arrays, out=self._buffers(name, shape, arrays[0].dtype))

    def _mask(self, name: str, rows: Sequence[int], lengths: Sequence[int], longest: int) -> Array:
        own = np.repeat(lengths, rows)
        mask = self._buffers(name, [len(own), longest], self._types[name])
        mask[:] = np.arange(longest) < own[:, None]
        return mask


def _fill(rows: Array, array: Array, fills: Mapping[int, Any]) -> None:
    """Write a request's elements and, beyond its own size along each padded axis, the fill value."""
    own = tuple(slice(0, size) for size in array.shape)
    rows[own] = array
    for index, fill in fills.items():
        # Along axes that were filled before, only the request's own part is left.
        region = [slice(None) if other not in fills or other > index else own[other] for other in range(array.ndim)]
        region[index] = slice(array.shape[index], None)
        rows[tuple(region)] = fill
