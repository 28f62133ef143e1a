"""CUDA instances: staging in pinned memory and onnxruntime's I/O binding. serve/GPU.md says how far it is tested."""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from gather import Allocate
from numpy.typing import NDArray

LIBRARIES = ("libcudart.so.13", "libcudart.so.12")
PORTABLE = 1
TEXT = "tensor(string)"


def pinned_memory(names: Sequence[str] = LIBRARIES) -> Allocate:
    """An allocator of page-locked arrays, which a GPU reads twice as fast; of ordinary arrays if CUDA has none.

    The memory is not freed before the process ends, because staging buffers live as long as their model.
    """
    library = next(filter(None, map(_load, names)), None)

    def allocate(size: int, dtype: "np.dtype[Any]") -> NDArray[Any]:
        address = ctypes.c_void_p()
        byte_size = ctypes.c_size_t(size * dtype.itemsize)
        if library is None or not byte_size.value or library.cudaHostAlloc(ctypes.byref(address), byte_size, PORTABLE):
            return np.empty(size, dtype=dtype)
        assert address.value is not None
        memory = (ctypes.c_uint8 * byte_size.value).from_address(address.value)
        return np.ctypeslib.as_array(memory).view(dtype)

    return allocate


def _load(name: str) -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None


class BoundSession:
    """A session whose inputs and outputs are bound to a device before each run, which saves a copy.

    onnxruntime binds no texts, so a graph with a STRING input runs without binding, and STRING outputs stay on the CPU.
    """

    def __init__(self, session: Any, device: str, device_id: int) -> None:
        self._session = session
        self._binds = all(tensor.type != TEXT for tensor in session.get_inputs())
        self._places = {
            tensor.name: ("cpu", 0) if tensor.type == TEXT else (device, device_id) for tensor in session.get_outputs()
        }

    def get_inputs(self) -> Any:
        """The graph's inputs."""
        return self._session.get_inputs()

    def run(self, names: Sequence[str], feed: dict[str, NDArray[Any]], options: Any = None) -> list[NDArray[Any]]:
        """Copy the inputs to the device, run the graph there, and copy these outputs back."""
        if not self._binds:
            return list(self._session.run(names, feed, options))
        binding = self._session.io_binding()
        for name, array in feed.items():
            binding.bind_cpu_input(name, array)
        for name in names:
            binding.bind_output(name, *self._places[name])
        self._session.run_with_iobinding(binding, options)
        # Not copy_outputs_to_cpu, which ends the process if one of them is a text.
        return [value.numpy() for value in binding.get_outputs()]
