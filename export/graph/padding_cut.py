"""An axis of a tensor, and how an output follows its length: what `export.add` writes and the backend cuts by."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, order=True)
class Axis:
    """An axis of an input or output; 0 is the batch. `size` is the name of its dimension, where the graph is read."""

    tensor: str
    index: int
    size: str = ""

    def __str__(self) -> str:
        return f"{self.tensor}[{self.index}]"


@dataclass(frozen=True, kw_only=True)
class Cut:
    """An axis of an output that has floor((length + moved) / stride) elements, for the length of `source`."""

    index: int
    source: Axis
    moved: int = 0
    stride: int = 1

    def __str__(self) -> str:
        moved = f"({self.source}{self.moved:+d})" if self.moved else str(self.source)
        return moved if self.stride == 1 else f"{moved}/{self.stride}"

    def size(self, length: int) -> int:
        """The elements that belong to a request of this length."""
        return max(0, (length + self.moved) // self.stride)
