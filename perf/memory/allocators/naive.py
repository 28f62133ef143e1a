"""No allocator at all: every request is a cudaMalloc, every release a cudaFree."""

from perf.memory.allocators.allocator import Allocator
from perf.memory.allocators.device import Device


class Naive(Allocator):
    """What PyTorch does under `PYTORCH_NO_CUDA_MEMORY_CACHING=1`."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def allocate(self, size: int) -> int:
        """Straight from the device."""
        return self.device.malloc(size)

    def free(self, address: int) -> None:
        """Straight back."""
        self.device.free(address)
