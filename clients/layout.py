"""The places of a request's tensors in its region, and the request message that names them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import protocol as pb
from . import wire
from .contract import Array, Metadata

if TYPE_CHECKING:
    from .regions import Region

ALIGNMENT = 64


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The place of each tensor in the region as (offset, bytes), and the bytes of all.

    Outputs of unknown size, which come in the message, have none.
    """

    inputs: Mapping[str, tuple[int, int]]
    outputs: Mapping[str, tuple[int, int]]
    size: int


def lay_out(
    metadata: Metadata, arrays: Mapping[str, Array], tensors: Sequence[memoryview], largest: Mapping[str, int]
) -> Layout:
    """Inputs first, then outputs; `largest` has the most bytes that each output of unknown size has taken so far."""
    end = 0
    inputs, outputs = {}, {}
    for name, tensor in zip(arrays, tensors, strict=True):
        inputs[name] = (end, len(tensor))
        end = _aligned(end + len(tensor))
    rows = len(next(iter(arrays.values()))) if metadata.max_batch_size and arrays else 1
    for output in metadata.outputs:
        if size := max((output.row_bytes or 0) * rows, largest.get(output.name, 0)):
            outputs[output.name] = (end, size)
            end = _aligned(end + size)
    return Layout(inputs=inputs, outputs=outputs, size=max(end, 1))


def head(metadata: Metadata, version: str, region: "Region", layout: Layout, arrays: Mapping[str, Array]) -> bytes:
    """The encoded request with the place of every tensor; the region keeps it for requests of the same layout."""
    key = (tuple((name, array.shape) for name, array in arrays.items()), *layout.outputs.items())
    if encoded := region.heads.get(key):
        return encoded
    request = pb.ModelInferRequest(model_name=metadata.name, model_version=version)
    for name, array in arrays.items():
        tensor = request.inputs.add(name=name, datatype=wire.datatype(array), shape=array.shape)
        _refer(tensor, region.name, layout.inputs[name])
    for output in metadata.outputs:
        requested = request.outputs.add(name=output.name)
        if output.name in layout.outputs:
            _refer(requested, region.name, layout.outputs[output.name])
    # Strings of the same shape differ in bytes, so their places differ.
    if not any(array.dtype.hasobject for array in arrays.values()):
        if len(region.heads) >= wire.HEADS:
            region.heads.clear()
        region.heads[key] = request.SerializeToString()
        return region.heads[key]
    return bytes(request.SerializeToString())


def _aligned(offset: int) -> int:
    return math.ceil(offset / ALIGNMENT) * ALIGNMENT


def _refer(tensor: Any, name: str, place: tuple[int, int]) -> None:
    tensor.parameters["shared_memory_region"].string_param = name
    tensor.parameters["shared_memory_byte_size"].int64_param = place[1]
    if place[0]:
        tensor.parameters["shared_memory_offset"].int64_param = place[0]
