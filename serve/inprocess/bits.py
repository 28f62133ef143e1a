"""Reads DLPack tensors; one of BF16, which numpy does not have, as an array of uint16 with the same bits."""

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

BFLOAT = 4


class _DLTensor(ctypes.Structure):
    """`DLTensor` of dlpack.h, the first field of a `DLManagedTensor`."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
    )


_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)


class _Capsule:
    """What numpy takes, around a capsule whose type it can read."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


def from_dlpack(value: Any) -> tuple[NDArray[Any], bool]:
    """The array, and whether it holds the bits of BF16; the memory is shared and stays alive with the array."""
    capsule = value.__dlpack__() if hasattr(value, "__dlpack__") else value
    header = _DLTensor.from_address(_pointer_of(capsule, b"dltensor"))
    is_bf16 = header.code == BFLOAT
    if is_bf16:
        header.code = 1  # an unsigned integer of as many bits
    return np.from_dlpack(_Capsule(capsule)), is_bf16
