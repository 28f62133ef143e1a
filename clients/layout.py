"""Where the tensors of a request lie in its regions, and the request that says so."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tritonclient.grpc import service_pb2 as pb

from clients import wire
from clients.contract import Array, Metadata
from clients.device_memory import DeviceArray
from clients.regions import Region
from clients.steps import Steps, Work

ALIGNMENT = 64


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Each tensor's place in the region, (offset, bytes). Inputs on a GPU have a region of their own and are not in it.

    Outputs of unknown size are not either: they come in the message.
    """

    inputs: Mapping[str, tuple[int, int]]
    outputs: Mapping[str, tuple[int, int]]
    size: int


def lay_out(
    metadata: Metadata, arrays: Mapping[str, Array], tensors: Sequence[memoryview | None], largest: Mapping[str, int]
) -> Layout:
    """Inputs in front, outputs behind them; `largest` has the bytes that outputs have taken so far."""
    end = 0
    inputs, outputs = {}, {}
    for name, tensor in zip(arrays, tensors, strict=True):
        if tensor is not None:
            inputs[name] = (end, len(tensor))
            end = _aligned(end + len(tensor))
    rows = len(next(iter(arrays.values()))) if metadata.max_batch_size and arrays else 1
    for output in metadata.outputs:
        if size := max((output.row_bytes or 0) * rows, largest.get(output.name, 0)):
            outputs[output.name] = (end, size)
            end = _aligned(end + size)
    return Layout(inputs=inputs, outputs=outputs, size=max(end, 1))


def head(metadata: Metadata, version: str, region: Region, layout: Layout, arrays: Mapping[str, Array]) -> bytes:
    """The request with every tensor's place; the region keeps it for the next request of the same layout."""
    devices = tuple(region.devices[name].name for name in arrays if name not in layout.inputs)
    key = (tuple((name, array.shape) for name, array in arrays.items()), *layout.outputs.items(), devices)
    if known := region.heads.get(key):
        return known
    request = pb.ModelInferRequest(model_name=metadata.name, model_version=version)
    for name, array in arrays.items():
        tensor = request.inputs.add(name=name, datatype=wire.datatype(array), shape=array.shape)
        if name in layout.inputs:
            _refer(tensor, region.name, layout.inputs[name])
        else:
            _refer(tensor, region.devices[name].name, (0, array.nbytes))
    for output in metadata.outputs:
        requested = request.outputs.add(name=output.name)
        if output.name in layout.outputs:
            _refer(requested, region.name, layout.outputs[output.name])
    # The bytes of strings differ with the same shape, and with them the places.
    if not any(array.dtype.hasobject for array in arrays.values()):
        if len(region.heads) >= wire.HEADS:
            region.heads.clear()
        region.heads[key] = request.SerializeToString()
        return region.heads[key]
    return bytes(request.SerializeToString())


def contents(arrays: Iterable[Array | DeviceArray], *, on_device: bool = False) -> Steps[list[memoryview | None]]:
    """The bytes of each tensor; None for one that stays `on_device`, on its GPU."""
    given = list(arrays)
    remote = [isinstance(array, DeviceArray) for array in given]

    def read() -> list[memoryview | None]:
        return [None if stays and on_device else wire.contents(one) for one, stays in zip(given, remote, strict=True)]

    if on_device or not any(remote):
        return read()
    # To copy from a GPU is to wait for what it does.
    found: list[memoryview | None] = yield Work(read, lambda _: None)
    return found


def _aligned(offset: int) -> int:
    return math.ceil(offset / ALIGNMENT) * ALIGNMENT


def _refer(tensor: Any, name: str, place: tuple[int, int]) -> None:
    tensor.parameters["shared_memory_region"].string_param = name
    tensor.parameters["shared_memory_byte_size"].int64_param = place[1]
    if place[0]:
        tensor.parameters["shared_memory_offset"].int64_param = place[0]
