"""The bytes of tensors: from arrays, and to arrays."""

import math
import struct
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from .errors import InvalidInputError, ServerFailureError

Array = NDArray[Any]

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

DATATYPES = {dtype: name for name, dtype in DTYPES.items()}
"""The protocol's datatype for each of these dtypes."""

_LENGTH = struct.Struct("<I")

_PLAIN = "".join(dtype.char for dtype in DTYPES.values() if dtype.isbuiltin == 1 and not dtype.hasobject)
"""numpy's letters for the dtypes that Python's own memoryview knows."""


def contents(array: Array) -> memoryview:
    """The bytes of a tensor as the protocol sends them; those of numbers are the array's own memory."""
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
            parts += (_LENGTH.pack(len(element)), element)
    except struct.error as error:
        raise InvalidInputError(
            f"an element of an input has {len(element)} bytes, and the protocol 4 bytes for its length. Send less than "
            "4 GiB."
        ) from error
    return b"".join(parts)


def tensor(content: Any, datatype: str, shape: Sequence[int], *, whole: bool = True) -> Array:
    """A copy of the tensor at the start of `content`, a buffer; nothing may follow it if it is `whole`.

    Raises `ServerFailureError` if the bytes do not fit the datatype and the shape.
    """
    dims = tuple(shape)
    count = math.prod(dims)
    try:
        if min(dims, default=0) < 0:
            raise ValueError("a negative length")
        if datatype == "BYTES":
            array, used = _texts(content, count)
        else:
            dtype = DTYPES[datatype]
            used = count * dtype.itemsize
            array = np.frombuffer(content, dtype, count).copy() if count else np.empty(0, dtype)
        if whole and used != len(content):
            raise ValueError(f"{used} of them are used")
        return array.reshape(dims)
    except (KeyError, ValueError, OverflowError, struct.error) as error:
        raise ServerFailureError(
            f"an output of {datatype} and shape {list(dims)} came in {len(content)} bytes, which do not fit ({error}): "
            "the answer was cut short or changed on its way. Look at what is between this client and the server."
        ) from error


def _texts(content: Any, count: int) -> tuple[Array, int]:
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


def to_json(array: Array) -> list[Any]:
    """The elements for a server without binary tensors; raises `InvalidInputError` for what JSON cannot hold."""
    if array.dtype.hasobject:
        try:
            return [element.decode() for element in array.flat]
        except UnicodeDecodeError as error:
            raise InvalidInputError(
                f"an input holds bytes that are not UTF-8 ({error}), and this server takes its tensors as JSON, which "
                "has no others. Encode them as text."
            ) from error
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise InvalidInputError("an input holds NaN or infinity; this server takes JSON, which has neither.")
    return array.ravel().tolist()  # type: ignore[no-any-return]


def from_json(data: Any, datatype: str, shape: Sequence[int]) -> Array:
    """The tensor of an answer that holds its elements as JSON; raises `ValueError` and the like if they do not fit."""
    dtype = DTYPES[datatype]
    if not dtype.hasobject:
        return np.array(data, dtype).reshape(tuple(shape))
    flat = np.array(data, np.object_).ravel()
    return np.array([each.encode() for each in flat] + [None], np.object_)[:-1].reshape(tuple(shape))
