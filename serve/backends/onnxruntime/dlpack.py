"""The memory of a `pb_utils.Tensor` as an array; Triton's Python interface shows it only through DLPack."""

import ctypes
import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray


class Header(ctypes.Structure):
    """`DLTensor` of dlpack.h, the first field of a `DLManagedTensor`."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)


def array_of(tensor: Any, dtype: DTypeLike) -> NDArray[Any]:
    """The tensor's values: a view that keeps the memory alive. `dtype` has the tensor's size of a value."""
    capsule = tensor.to_dlpack()
    header = header_of(capsule)
    return array_at((header.data or 0) + header.byte_offset, tuple(header.shape[: header.ndim]), dtype, owner=capsule)


def header_of(capsule: Any) -> Header:
    """The description of a tensor in the capsule itself, as long as that lives: what is written there changes it."""
    return Header.from_address(_pointer_of(capsule, b"dltensor"))


def array_at(address: int, shape: tuple[int, ...], dtype: DTypeLike, owner: Any) -> NDArray[Any]:
    """An array of the memory at `address`; it keeps `owner` alive."""
    if 0 in shape:
        return np.empty(shape, dtype=dtype)
    memory = (ctypes.c_byte * (math.prod(shape) * np.dtype(dtype).itemsize)).from_address(address)
    memory.owner = owner  # type: ignore[attr-defined]  # the array keeps `memory`
    return np.ndarray(shape, dtype=dtype, buffer=memoryview(memory))
