"""The bytes of an inference request and of its answer.

A request is concatenated from parts: protobuf merges the fields of messages that follow each other. So the part with
names, shapes and dtypes is encoded once per shape, and the bytes of a tensor are copied once.
"""

import functools
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from . import protocol as pb
from .errors import InvalidInputError, ServerFailureError

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
"""numpy's dtype for each datatype of the protocol; numpy has no BF16 of its own."""

_DATATYPES = {dtype: name for name, dtype in DTYPES.items()}

HEADS = 256
"""How many encoded request heads a client keeps before it drops all of them."""

# Field 7, raw_input_contents, of wire type 2: the bytes follow their length.
_RAW = bytes([7 << 3 | 2])
_RAW_OUTPUT = 6


def head(model: str, version: str, shapes: Iterable[tuple[str, str, tuple[int, ...]]]) -> bytes:
    """The encoded part of a request with the model and its inputs, each as (name, datatype, shape)."""
    request = pb.ModelInferRequest(model_name=model, model_version=version)
    for name, datatype, shape in shapes:
        request.inputs.add(name=name, datatype=datatype, shape=shape)
    return bytes(request.SerializeToString())


def options(
    request_id: str = "",
    *,
    priority: int = 0,
    server_timeout_us: int = 0,
    parameters: Mapping[str, Parameter] | None = None,
) -> bytes:
    """The encoded part of a request with what one caller adds; b"" for the defaults."""
    request = pb.ModelInferRequest(id=request_id)
    if priority:
        request.parameters["priority"].uint64_param = int(priority)
    if server_timeout_us:
        request.parameters["timeout"].int64_param = server_timeout_us
    for name, value in (parameters or {}).items():
        setattr(request.parameters[name], FIELDS[type(value)], value)
    return bytes(request.SerializeToString())


_LENGTH = struct.Struct("<I")

_PLAIN = "".join(dtype.char for dtype in DTYPES.values() if dtype.isbuiltin == 1 and not dtype.hasobject)
"""numpy's letters for the dtypes that Python's own memoryview knows."""


def contents(array: Array) -> memoryview:
    """The bytes of a tensor as the protocol sends them."""
    if array.dtype.char in _PLAIN and array.size and array.flags.c_contiguous:
        return array.data.cast("B")
    if array.dtype.hasobject:
        return memoryview(_joined_texts(array))
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def size(array: Array) -> int:
    """The bytes of a tensor in a request; strings count with their content, not with the pointers to it."""
    if not array.dtype.hasobject:
        return array.nbytes
    return array.size * _LENGTH.size + sum(map(len, array.flat))


def _joined_texts(array: Array) -> bytes:
    """The elements of a BYTES tensor, each after its length; raises `InvalidInputError` for one above 4 GiB."""
    parts: list[bytes] = []
    try:
        for element in array.flat:
            content = element if isinstance(element, bytes) else element.encode()
            parts += (_LENGTH.pack(len(content)), content)
    except struct.error as error:
        raise InvalidInputError(
            f"an element of an input has {len(content)} bytes, and the protocol 4 bytes for its length. Send less than "
            "4 GiB."
        ) from error
    return b"".join(parts)


def joined(message: bytes, tensors: Sequence[memoryview]) -> bytes:
    """A whole request: the message, and its tensors after it."""
    return b"".join(pieces(message, tensors))


def pieces(message: bytes, tensors: Sequence[memoryview]) -> list[bytes | memoryview]:
    """The pieces of a whole request, with the tensors in the caller's own memory."""
    parts: list[bytes | memoryview] = []
    for tensor in tensors:
        parts += (message + _RAW + _varint(len(tensor)), tensor)
        message = b""
    return parts or [message]


def _varint(value: int) -> bytes:
    """A length as protobuf encodes it: 7 bits a byte, the lowest first."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def datatype(array: Array) -> str:
    """The protocol's name of an array's dtype."""
    return _DATATYPES[array.dtype]


def tensor(content: bytes | memoryview, kind: str, shape: Iterable[int], *, whole: bool = False) -> Array:
    """A copy of the tensor of datatype `kind` at the start of `content`. With `whole`, nothing may follow it.

    Raises `ServerFailureError` if the bytes do not fit the datatype and the shape.
    """
    dims = tuple(shape)
    count = math.prod(dims)
    try:
        if min(dims, default=0) < 0:
            raise ValueError("a negative length")
        if kind == "BYTES":
            array, used = _texts(content, count)
        else:
            dtype = DTYPES[kind]
            array, used = np.frombuffer(content, dtype, count).copy(), count * dtype.itemsize
        if whole and used != len(content):
            raise ValueError(f"{used} of them are used")
    except (KeyError, ValueError, OverflowError, struct.error) as error:
        raise ServerFailureError(
            f"an output of {kind} and shape {list(dims)} came in {len(content)} bytes, which do not fit ({error}): the "
            "answer was cut short or changed on its way. Look at what is between this client and the server."
        ) from error
    return array.reshape(dims)


def _texts(content: bytes | memoryview, count: int) -> tuple[Array, int]:
    """`count` elements of a BYTES tensor, each after its length in 4 bytes, and the bytes that they take."""
    if count * _LENGTH.size > len(content):
        raise ValueError(f"{count} elements")
    texts = np.empty(count, dtype=np.object_)
    begin = 0
    for index in range(count):
        (length,) = _LENGTH.unpack_from(content, begin)
        begin += _LENGTH.size + length
        texts[index] = bytes(content[begin - length : begin])
    if begin > len(content):
        raise ValueError(f"{begin} are needed")
    return texts, begin


class Parted(NamedTuple):
    """A ModelInferResponse whose tensors are where they came."""

    outputs: Any
    raw_output_contents: list[memoryview]


def parted(content: memoryview) -> Parted | None:
    """The parts of a serialised ModelInferResponse; None for one with fields of other kinds."""
    head, tensors, begin = bytearray(), list[memoryview](), 0
    while begin < len(content):
        tag, place, size, shift = content[begin], begin + 1, 0, 0
        if tag & 7 != 2 or tag > 127:
            return None
        while True:
            byte = content[place]
            place, size, shift = place + 1, size | (byte & 127) << shift, shift + 7
            if byte < 128:
                break
        end = place + size
        if end > len(content):
            raise ValueError(f"a field of {size} bytes")
        if tag >> 3 == _RAW_OUTPUT:
            tensors.append(content[place:end])
        else:
            head += content[begin:end]
        begin = end
    return Parted(pb.ModelInferResponse.FromString(bytes(head)).outputs, tensors)


def answers(response: Any) -> dict[str, Array]:
    """The outputs of a ModelInferResponse by name, in the server's order; views of one that is `Parted`, else copies.

    Raises `ServerFailureError` if outputs and tensors do not match.
    """
    raws = response.raw_output_contents
    if len(raws) != len(response.outputs):
        raise ServerFailureError(f"an answer named {len(response.outputs)} outputs and brought {len(raws)} tensors.")
    outputs, is_own = dict[str, Array](), isinstance(response, Parted)
    for output, raw in zip(response.outputs, raws, strict=True):
        shape = tuple(output.shape)
        dtype, size = _plain(output.datatype, shape)
        if dtype is not None and size == len(raw):
            array: Array = np.ndarray(shape, dtype, raw)
            outputs[output.name] = array if is_own and array.flags.aligned else array.copy()
        else:
            outputs[output.name] = tensor(raw, output.datatype, shape, whole=True)
    return outputs


@functools.lru_cache(HEADS)
def _plain(kind: str, shape: tuple[int, ...]) -> tuple[np.dtype[Any] | None, int]:
    """The dtype and the bytes of a tensor; None for strings and for what does not exist."""
    dtype = DTYPES.get(kind)
    if dtype is None or dtype.hasobject or min(shape, default=0) < 0:
        return None, 0
    return dtype, math.prod(shape) * dtype.itemsize
