"""The axes of a graph along which requests may differ in length, and the masks that say where padding begins."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from export.graph.input_values import Array, Range, Rows, inner_dims, random_rows
from export.graph.onnx_graph import dims, graph_inputs
from export.graph.padding_cut import Axis
from triton_batching.terminal import Failure, Mistake

MASK_TYPES = (
    onnx.TensorProto.BOOL,
    onnx.TensorProto.INT32,
    onnx.TensorProto.INT64,
    onnx.TensorProto.FLOAT,
    onnx.TensorProto.FLOAT16,
)
# Inputs that are masks by their names alone; others with --mask.
MASKS = ("mask", "attention_mask", "input_mask", "padding_mask")


class PaddingError(Failure):
    """Padding changes the answer, or the graph has no length that varies."""


@dataclass(frozen=True, kw_only=True)
class Variation:
    """The axes of a graph's inputs that vary, and its masks."""

    fills: Mapping[Axis, float]
    masks: Mapping[str, Axis]

    @classmethod
    def of(cls, model: onnx.ModelProto, values: Mapping[str, float], named_masks: Sequence[str] = ()) -> "Variation":
        """Read the graph; `values` are fills by input, otherwise 0, `named_masks` further masks.

        Raises `PaddingError` if nothing varies, `Mistake` for a name or a value that the graph does not take.
        """
        axes = [axis for value in graph_inputs(model) for axis in _open_axes(value)]
        if unknown := set(values) - {axis.tensor for axis in axes}:
            raise Mistake(
                f"--pad-value {min(unknown)}=...: no input of that name varies in length. These do: "
                f"{', '.join(sorted({axis.tensor for axis in axes})) or 'none'}."
            )
        masks = _masks(model, axes, named_masks)
        _check_fills(model, values)
        fills = {axis: values.get(axis.tensor, 0.0) for axis in axes if axis.tensor not in masks}
        if not fills:
            raise PaddingError(
                "no input has an open dimension beside the batch axis, so all requests have one length. Export it with "
                'dynamic_axes={"NAME": {0: "batch", 1: "length"}}; if torch fixes the length of a recurrent layer all '
                "the same, with dynamo=False too."
            )
        return cls(fills=fills, masks=masks)

    @property
    def sizes(self) -> list[str]:
        """The names of the graph's dimensions that vary."""
        return sorted({axis.size for axis in self.fills})

    def alone(
        self,
        model: onnx.ModelProto,
        valid: Mapping[str, Range],
        lengths: Mapping[str, int],
        seed: int,
        *,
        rows: int = 1,
    ) -> Rows:
        """Random requests of these lengths."""
        drawn = random_rows(model, valid, rows=rows, open_dim=max(lengths.values()), seed=seed)
        request = {name: array[self._own(name, array, lengths)] for name, array in drawn.items()}
        for name, axis in self.masks.items():
            request[name] = np.ones((rows, lengths[axis.size]), dtype=request[name].dtype)
        sizes = {str(axis): lengths[axis.size] for axis in self.fills}
        sizes |= {f"{name}[1]": lengths[axis.size] for name, axis in self.masks.items()}
        for name, bounds in valid.items():
            if bounds.follows:
                request[name] = np.full_like(request[name], sizes[bounds.follows])
        return request

    def joined(self, requests: Sequence[Rows], lengths: Mapping[str, int]) -> Rows:
        """One batch of these requests, each padded to these lengths."""
        longer = [self._padded(request, lengths) for request in requests]
        return {name: np.concatenate([each[name] for each in longer]) for name in longer[0]}

    def _padded(self, request: Rows, lengths: Mapping[str, int]) -> Rows:
        longer = {}
        for name, array in request.items():
            shape = list(array.shape)
            for axis in self.fills:
                if axis.tensor == name:
                    shape[axis.index] = lengths[axis.size]
            longer[name] = np.full(shape, self.fill(name), dtype=array.dtype)
            longer[name][tuple(map(slice, array.shape))] = array
        own = {axis.size: request[axis.tensor].shape[axis.index] for axis in self.fills}
        for name, axis in self.masks.items():
            row = (np.arange(lengths[axis.size]) < own[axis.size]).astype(request[name].dtype)
            longer[name] = np.repeat(row[None], len(request[name]), axis=0)
        return longer

    def fill(self, tensor: str) -> float:
        """What an input is filled with; 0 for one that does not vary."""
        return next((fill for axis, fill in self.fills.items() if axis.tensor == tensor), 0.0)

    def _own(self, name: str, array: Array, lengths: Mapping[str, int]) -> tuple[slice, ...]:
        sizes = {axis.index: lengths[axis.size] for axis in self.fills if axis.tensor == name}
        return tuple(slice(0, sizes.get(index)) for index in range(array.ndim))


def _open_axes(value: onnx.ValueInfoProto) -> Iterator[Axis]:
    for index, size in enumerate(inner_dims(value), 1):
        if isinstance(size, str):
            yield Axis(tensor=value.name, index=index, size=size)


def _check_fills(model: onnx.ModelProto, values: Mapping[str, float]) -> None:
    for value in graph_inputs(model):
        fill, dtype = values.get(value.name), onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        if fill is None or dtype == np.dtype(object):
            continue
        if wrong := _unfit(fill, dtype):
            raise Mistake(f"--pad-value {value.name}={written(fill)}: {wrong}.")


def _unfit(fill: float, dtype: "np.dtype[Any]") -> str:
    """Why an input of this type cannot be filled with this; "" if it can."""
    if math.isnan(fill):
        return "NaN is not a value to fill with, because it spreads. Name a number, or -inf where a maximum follows"
    if np.issubdtype(dtype, np.integer):
        info = np.iinfo(dtype)
        if math.isinf(fill) or fill != int(fill) or not info.min <= fill <= info.max:
            return f"the input is {dtype}, which holds whole numbers from {info.min} to {info.max}. Name one of them"
    if dtype == np.bool_ and fill not in (0, 1):
        return "the input is bool. Name 0 or 1"
    if dtype == np.float16 and np.finfo(np.float16).max < abs(fill) < math.inf:
        return f"the input is float16, which holds at most {np.finfo(np.float16).max:g}. Name a smaller one, or -inf"
    return ""


def written(fill: float) -> str:
    """A fill value as config.pbtxt has it."""
    return str(int(fill)) if math.isfinite(fill) and fill == int(fill) else repr(float(fill))


def _masks(model: onnx.ModelProto, axes: Sequence[Axis], named: Sequence[str]) -> dict[str, Axis]:
    """Masks that need not be sent, with the axis that they follow; raises `Mistake` for a name that cannot be one."""
    masks = {}
    for value in graph_inputs(model):
        own = [axis for axis in axes if axis.tensor == value.name]
        is_mask = value.name in (*MASKS, *named) and value.type.tensor_type.elem_type in MASK_TYPES
        if not is_mask or len(dims(value)) != 2 or len(own) != 1:
            continue
        followed = [axis for axis in axes if axis.size == own[0].size and axis.tensor not in (*MASKS, *named)]
        if followed:
            masks[value.name] = followed[0]
    if unusable := set(named) - masks.keys():
        raise Mistake(
            f"--mask {min(unusable)}: no input of shape [batch, length], of a whole or floating type, that has its "
            f"length in common with another. The inputs are: {', '.join(value.name for value in graph_inputs(model))}."
        )
    return masks
