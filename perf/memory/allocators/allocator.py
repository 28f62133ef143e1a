"""What every allocator answers: an address for a size, and that address back."""

from typing import Protocol

from perf.memory.allocators.device import Device


class Allocator(Protocol):
    """Gives out addresses within regions that it takes from `device`."""

    device: Device

    def begin(self) -> None:
        """A hint that an inference begins; only an allocator with a plan heeds it."""

    def allocate(self, size: int) -> int:
        """Address of `size` > 0 bytes; raises `OutOfMemory`."""

    def free(self, address: int) -> None:
        """Take back what `allocate` gave; raises `KeyError` for an address that is not live."""
