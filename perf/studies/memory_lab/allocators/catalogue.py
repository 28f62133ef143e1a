"""The allocators that need no plan, by name, and the simplest of them: no allocator at all."""

from collections.abc import Callable

from perf.memory.allocators.bfc import onnxruntime_power, onnxruntime_same, tensorflow
from perf.memory.allocators.device import Allocator, Device
from perf.studies.memory_lab.allocators.best_fit import BestFit
from perf.studies.memory_lab.allocators.buddy import Buddy
from perf.studies.memory_lab.allocators.caching import Caching
from perf.studies.memory_lab.allocators.slab import Slab


class Naive(Allocator):
    """Every request is a cudaMalloc, every release a cudaFree: PyTorch with `PYTORCH_NO_CUDA_MEMORY_CACHING=1`."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def allocate(self, size: int) -> int:
        """A region of the device."""
        return self.device.malloc(size)

    def free(self, address: int) -> None:
        """Return the region to the device."""
        self.device.free(address)


ONLINE: dict[str, Callable[[Device], Allocator]] = {
    "naive": Naive,
    "tensorflow bfc": tensorflow,
    "onnxruntime power": onnxruntime_power,
    "onnxruntime same": onnxruntime_same,
    "pytorch caching": Caching,
    "best fit": BestFit,
    "buddy": Buddy,
    "slab": Slab,
}
