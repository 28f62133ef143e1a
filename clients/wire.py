"""The bytes of an inference request and of its answer.

A request is written as the concatenation of parts: protobuf merges the fields of messages that follow each other, so
the part that names shapes and dtypes is made once per shape, and a tensor's bytes are copied once.
"""

import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc.service_pb2 import ModelInferRequest, ModelInferResponse
from tritonclient.utils import np_to_triton_dtype, serialize_byte_tensor, triton_to_np_dtype

from clients.device_memory import DeviceArray

Array = NDArray[Any]
Parameter = bool | int | float | str
FIELDS = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}
"""The protocol's field for a parameter of each type."""

HEADS = 256
"""How many layouts a client remembers; more are made anew."""

# Field 7, raw_input_contents, of wire type 2: the bytes follow their length.
_RAW = bytes([7 << 3 | 2])


def head(model: str, version: str, shapes: Iterable[tuple[str, str, tuple[int, ...]]]) -> bytes:
    """Model and inputs (name, datatype, shape) of a request."""
    request = ModelInferRequest(model_name=model, model_version=version)
    for name, datatype, shape in shapes:
        request.inputs.add(name=name, datatype=datatype, shape=shape)
    return bytes(request.SerializeToString())


def options(
    request_id: str = "",
    *,
    priority: int = 0,
    queue_timeout_us: int = 0,
    parameters: Mapping[str, Parameter] | None = None,
) -> bytes:
    """What a caller adds to one request; nothing gives no bytes."""
    request = ModelInferRequest(id=request_id)
    if priority:
        request.parameters["priority"].uint64_param = priority
    if queue_timeout_us:
        request.parameters["timeout"].int64_param = queue_timeout_us
    for name, value in (parameters or {}).items():
        setattr(request.parameters[name], FIELDS[type(value)], value)
    return bytes(request.SerializeToString())


_LENGTH = struct.Struct("<I")


def contents(array: Array | DeviceArray) -> memoryview:
    """The bytes of a tensor as the protocol sends them; one on a GPU is copied from there."""
    held: Array = array.to_host() if isinstance(array, DeviceArray) else array
    if held.dtype.hasobject:
        texts = serialize_byte_tensor(held)
        return memoryview(texts.item() if texts.size else b"")
    return np.ascontiguousarray(held).reshape(-1).view(np.uint8).data


def joined(message: bytes, tensors: Sequence[memoryview]) -> bytes:
    """A whole request: the message, and behind it its tensors."""
    parts: list[bytes | memoryview] = [message]
    for tensor in tensors:
        parts += (_RAW, _varint(len(tensor)), tensor)
    return b"".join(parts)


def _varint(value: int) -> bytes:
    """A length as protobuf writes it: 7 bits a byte, the lowest first."""
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


def datatype(array: Array) -> str:
    """The protocol's name of an array's dtype."""
    return str(np_to_triton_dtype(array.dtype))


def tensor(content: bytes | memoryview, kind: str, shape: Iterable[int]) -> Array:
    """An array of its own out of the bytes of a tensor, and whatever follows them."""
    dims = tuple(shape)
    if kind == "BYTES":
        return _texts(content, math.prod(dims)).reshape(dims)
    return np.frombuffer(content, triton_to_np_dtype(kind), math.prod(dims)).reshape(dims).copy()


def _texts(content: bytes | memoryview, count: int) -> Array:
    """Elements of type BYTES: each follows its length, in 4 bytes."""
    texts = np.empty(count, dtype=np.object_)
    begin = 0
    for number in range(count):
        (length,) = _LENGTH.unpack_from(content, begin)
        begin += _LENGTH.size + length
        texts[number] = bytes(content[begin - length : begin])
    return texts


def answers(response: ModelInferResponse) -> dict[str, Array]:
    """The outputs of an answer by name, in the server's order."""
    raws = response.raw_output_contents
    return {
        output.name: tensor(raws[number], output.datatype, output.shape)
        for number, output in enumerate(response.outputs)
    }
