"""What one run does to the arena, as onnxruntime's profile has it: the boundary after every node."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Boundary:
    """The arena after a node ran and before its inputs are released, in bytes.

    `in_use` counts whole chunks, `requested` what was asked for, `peak` the most in use so far, also within kernels;
    `held` is what the arena has from the system. All include the reservations for weights.
    """

    node: str
    operator: str
    in_use: int
    requested: int
    peak: int
    held: int


@dataclass(frozen=True, kw_only=True)
class Lifetime:
    """A buffer, from node `first` to node `last` of the order of execution, both included; `tensor` is its first one.

    A kernel's scratch, `scratch` true, has the name of the node's output.
    """

    tensor: str
    bytes: int
    first: int
    last: int
    scratch: bool = False


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """One run: the boundary after each node, every buffer's lifetime, and the node of the peak."""

    boundaries: tuple[Boundary, ...]
    lifetimes: tuple[Lifetime, ...]

    @property
    def peak_node(self) -> int:
        """The node during which most bytes are in use; the first of equals."""
        peaks = [one.peak for one in self.boundaries]
        return peaks.index(max(peaks))
