"""Arrays on a GPU, and GPU memory that a server on the same machine can open: CUDA shared memory.

An array's `__cuda_array_interface__` tells its place, so torch, CuPy and Numba are not imported. CUDA's driver library
is loaded with the first such array. `tritonclient.utils.cuda_shared_memory` cannot take this module's place: it needs
cuda-python, copies from numpy and DLPack only, and makes regions that may share a block with other memory.
"""

import contextlib
import ctypes
import functools
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import InvalidInputError

# The unit of CUDA's allocations: a smaller piece would be part of a larger one, and a handle shares that as a whole.
BLOCK_BYTES = 2 << 20
HANDLE_BYTES = 64
DEVICE_ORDINAL = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL


class _Handle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_char * HANDLE_BYTES),)


@dataclass(frozen=True, kw_only=True)
class DeviceArray:
    """An array on a GPU: its address, shape, dtype and device; `owner` keeps the memory alive."""

    pointer: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    device: int
    owner: object

    @property
    def nbytes(self) -> int:
        """The bytes of all elements."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def to_host(self) -> NDArray[Any]:
        """A copy in host memory; raises `InvalidInputError` if CUDA refuses."""
        copy = np.empty(self.shape, self.dtype)
        try:
            with _context(self.device) as cuda:
                _done(cuda.cuMemcpyDtoH_v2(ctypes.c_void_p(copy.ctypes.data), _at(self.pointer), _size(self.nbytes)))
        except OSError as error:
            raise InvalidInputError(
                f"an array cannot be read from GPU {self.device} ({error}). Pass a copy in this machine's memory."
            ) from error
        return copy


class DeviceRegion:
    """Memory on a GPU with a handle by which another process can open it. Raises `OSError` if CUDA refuses."""

    def __init__(self, prefix: str, nbytes: int, device: int) -> None:
        self.name = f"{prefix}_{secrets.token_hex(4)}"
        self.size = -(-nbytes // BLOCK_BYTES) * BLOCK_BYTES
        self.device = device
        pointer, handle = ctypes.c_uint64(), _Handle()
        with _context(device) as cuda:
            _done(cuda.cuMemAlloc_v2(ctypes.byref(pointer), _size(self.size)))
            self._pointer = pointer.value
            _done(cuda.cuIpcGetMemHandle(ctypes.byref(handle), pointer))
        self.handle = bytes(handle)

    def fill(self, array: DeviceArray) -> None:
        """Copy an array of the same device into the region, after all work that is queued to write the array."""
        with _context(self.device) as cuda:
            _done(cuda.cuCtxSynchronize())
            _done(cuda.cuMemcpyDtoD_v2(_at(self._pointer), _at(array.pointer), _size(array.nbytes)))
            _done(cuda.cuCtxSynchronize())

    def close(self) -> None:
        """Free the memory."""
        with contextlib.suppress(OSError), _context(self.device) as cuda:
            _done(cuda.cuMemFree_v2(_at(self._pointer)))


def on_device(value: object) -> DeviceArray | None:
    """`value` as an array on a GPU, None if it is not one; raises `InvalidInputError` if it is not contiguous."""
    interface = getattr(value, "__cuda_array_interface__", None)
    if interface is None:
        return None
    try:
        shape, dtype = tuple(map(int, interface["shape"])), np.dtype(interface["typestr"])
        strides, pointer = interface.get("strides"), int(interface["data"][0] or 0)
        device = _device_of(pointer)
    except (LookupError, TypeError, ValueError, AttributeError, OSError, ctypes.ArgumentError) as error:
        raise InvalidInputError(
            f"{type(value).__name__} has a __cuda_array_interface__, but no array is found on a GPU ({error}). Pass a "
            "numpy array, or check that interface."
        ) from error
    dense = tuple(int(np.prod(shape[axis + 1 :], dtype=np.int64)) * dtype.itemsize for axis in range(len(shape)))
    if strides not in (None, dense):
        raise InvalidInputError("an array on a GPU must be contiguous: pass array.contiguous(), or a copy.")
    return DeviceArray(pointer=pointer, shape=shape, dtype=dtype, device=device, owner=value)


def _device_of(pointer: int) -> int:
    ordinal = ctypes.c_int()
    if pointer:
        _done(_cuda().cuPointerGetAttribute(ctypes.byref(ordinal), DEVICE_ORDINAL, _at(pointer)))
    return ordinal.value


@functools.cache
def _cuda() -> Any:
    cuda = ctypes.CDLL("libcuda.so.1")
    _done(cuda.cuInit(0))
    return cuda


@functools.cache
def _primary(device: int) -> ctypes.c_void_p:
    """The context that the CUDA runtime uses too."""
    handle, context = ctypes.c_int(), ctypes.c_void_p()
    _done(_cuda().cuDeviceGet(ctypes.byref(handle), device))
    _done(_cuda().cuDevicePrimaryCtxRetain(ctypes.byref(context), handle))
    return context


@contextlib.contextmanager
def _context(device: int) -> Iterator[Any]:
    cuda = _cuda()
    _done(cuda.cuCtxPushCurrent_v2(_primary(device)))
    try:
        yield cuda
    finally:
        cuda.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))


def _at(pointer: int) -> ctypes.c_uint64:
    return ctypes.c_uint64(pointer)


def _size(nbytes: int) -> ctypes.c_size_t:
    return ctypes.c_size_t(nbytes)


def _done(status: int) -> None:
    if status:
        raise OSError(f"CUDA's driver answered {status}")
