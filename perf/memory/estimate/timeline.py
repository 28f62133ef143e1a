"""The state of the arena after each node of a run, and the lifetimes of its buffers."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Boundary:
    """The arena after a node has run and before its inputs are released, in bytes, weights included.

    `in_use` counts whole chunks, `requested` the requested bytes of these chunks, `peak` the most in use so far, also
    within kernels, and `held` the memory taken from the system. `next_region` is the size of the region that the arena
    would take next. Whatever other requests there are, the peak is between `least_peak` and `most_peak`. These three
    are 0 if they are not estimated.
    """

    node: str
    operator: str
    in_use: int
    requested: int
    peak: int
    held: int
    next_region: int = 0
    least_peak: int = 0
    most_peak: int = 0


@dataclass(frozen=True, kw_only=True)
class Lifetime:
    """A buffer, live from node `first` to node `last` of the order of execution, both included.

    `tensor` is the first tensor in it; for a kernel's scratch the node's first output. `address` is None if the buffer
    is within the block of a memory pattern, or empty.
    """

    tensor: str
    bytes: int
    first: int
    last: int
    scratch: bool = False
    address: int | None = None


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """One run: the boundary after each node and the lifetime of each buffer.

    `weights` are those in the arena, `regions` the bytes that the arena held at its end, by their address.
    """

    boundaries: tuple[Boundary, ...]
    lifetimes: tuple[Lifetime, ...]
    weights: tuple[Lifetime, ...] = ()
    regions: Mapping[int, int] = field(default_factory=dict)

    @property
    def peak_node(self) -> int:
        """The index of the node with the most bytes in use; the first of equals."""
        peaks = [boundary.peak for boundary in self.boundaries]
        return peaks.index(max(peaks))
