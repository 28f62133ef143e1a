"""The bytes of an inference request and of its answer.

A request is written as the concatenation of parts: protobuf merges the fields of messages that follow each other, so
the part that names shapes and dtypes is made once per shape, and a tensor's bytes are copied once.
"""

import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc.service_pb2 import ModelInferRequest, ModelInferResponse

from clients.device_memory import DeviceArray
from clients.errors import InvalidInputError, ServerFailureError

Array = NDArray[Any]
Parameter = bool | int | float | str
FIELDS = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}
"""The protocol's field for a parameter of each type."""

DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "BYTES": np.dtype(np.object_),
    **{f"{sign}INT{bits}": np.dtype(f"{sign.lower()}int{bits}") for sign in ("", "U") for bits in (8, 16, 32, 64)},
}
"""The protocol's datatypes; numpy has no BF16 of its own."""

_DATATYPES = {dtype: name for name, dtype in DTYPES.items()}

HEADS = 256
"""How many request heads a client keeps before it forgets them all."""

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
        request.parameters["priority"].uint64_param = int(priority)
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
        return memoryview(_joined_texts(held))
    return np.ascontiguousarray(held).reshape(-1).view(np.uint8).data


def size(array: Array | DeviceArray) -> int:
    """How many bytes a tensor takes in a request: of strings their own bytes, not those of the pointers to them."""
    if isinstance(array, DeviceArray) or not array.dtype.hasobject:
        return array.nbytes
    return array.size * _LENGTH.size + sum(map(len, array.flat))


def _joined_texts(array: Array) -> bytes:
    """Elements of type BYTES, each behind its length; raises `InvalidInputError` for one above 4 GiB."""
    parts: list[bytes] = []
    try:
        for one in array.flat:
            content = one if isinstance(one, bytes) else one.encode()
            parts += (_LENGTH.pack(len(content)), content)
    except struct.error as error:
        raise InvalidInputError(
            f"an element of an input has {len(content)} bytes, and the protocol 4 bytes for its length. Send less than "
            "4 GiB."
        ) from error
    return b"".join(parts)


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
    return _DATATYPES[array.dtype]


def tensor(content: bytes | memoryview, kind: str, shape: Iterable[int], *, whole: bool = False) -> Array:
    """A copy of the tensor at the start of `content`. With `whole`, nothing may follow it.

    Raises `ServerFailureError` when the bytes do not fit the datatype and the shape.
    """
    dims = tuple(shape)
    count = math.prod(dims)
    try:
        if min(dims, default=0) < 0:
            raise ValueError("a negative length")
        if kind == "BYTES":
            found, used = _texts(content, count)
        else:
            dtype = DTYPES[kind]
            found, used = np.frombuffer(content, dtype, count).copy(), count * dtype.itemsize
        if whole and used != len(content):
            raise ValueError(f"{used} of them are used")
    except (KeyError, ValueError, OverflowError, struct.error) as error:
        raise ServerFailureError(
            f"an output of {kind} and shape {list(dims)} came in {len(content)} bytes, which do not fit ({error}): the "
            "answer was cut short or changed on its way. Look at what is between this client and the server."
        ) from error
    return found.reshape(dims)


def _texts(content: bytes | memoryview, count: int) -> tuple[Array, int]:
    """Elements of type BYTES, each behind its length in 4 bytes, and the bytes of them all."""
    if count * _LENGTH.size > len(content):
        raise ValueError(f"{count} elements")
    texts = np.empty(count, dtype=np.object_)
    begin = 0
    for number in range(count):
        (length,) = _LENGTH.unpack_from(content, begin)
        begin += _LENGTH.size + length
        texts[number] = bytes(content[begin - length : begin])
    if begin > len(content):
        raise ValueError(f"{begin} are needed")
    return texts, begin


def answers(response: ModelInferResponse) -> dict[str, Array]:
    """The outputs of an answer by name, in the server's order; raises `ServerFailureError` for one with gaps."""
    raws = response.raw_output_contents
    if len(raws) != len(response.outputs):
        raise ServerFailureError(f"an answer named {len(response.outputs)} outputs and brought {len(raws)} tensors.")
    return {
        output.name: tensor(raw, output.datatype, output.shape, whole=True)
        for output, raw in zip(response.outputs, raws, strict=True)
    }
