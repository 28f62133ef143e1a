"""What every allocator answers: an address for a size, and that address back."""

from abc import ABC, abstractmethod

from perf.memory.allocators.device import Device


class Allocator(ABC):
    """Gives out addresses within regions that it takes from `device`."""

    device: Device

    def begin(self) -> None:  # noqa: B027 - a hint, which all but one have no use for
        """An inference begins; only an allocator with a plan heeds it."""

    @abstractmethod
    def allocate(self, size: int) -> int:
        """Address of `size` > 0 bytes; raises `OutOfMemory`."""

    @abstractmethod
    def free(self, address: int) -> None:
        """Take back what `allocate` gave; raises `KeyError` for an address that is not live."""
