"""Packing as the algorithms see it: numbered items, and whether a set of them fits into one bin."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

Items = frozenset[int]


class Problem(Protocol):
    """Items 0 to `count` - 1. What fits still fits when an item is taken away."""

    @property
    def count(self) -> int:
        """How many items there are."""

    @property
    def least(self) -> int:
        """A number of bins that no packing is below."""

    def size(self, item: int) -> float:
        """How large an item is, of a bin of 1, for the order in which it is packed."""

    def fullness(self, items: Items) -> float | None:
        """How full a bin of these is, at most 1; None where they do not fit."""


@dataclass(frozen=True, kw_only=True)
class Plain:
    """The plain form: one-dimensional sizes in bins of `capacity`."""

    sizes: Sequence[int]
    capacity: int

    @property
    def count(self) -> int:
        """How many items there are."""
        return len(self.sizes)

    @property
    def least(self) -> int:
        """All sizes over the capacity."""
        return -(-sum(self.sizes) // self.capacity)

    def size(self, item: int) -> float:
        """Share of a bin."""
        return self.sizes[item] / self.capacity

    def fullness(self, items: Items) -> float | None:
        """Share of the bin that is taken."""
        total = sum(self.sizes[item] for item in items)
        return total / self.capacity if total <= self.capacity else None


@dataclass(frozen=True, kw_only=True)
class Remembered:
    """A problem that is asked about each set once."""

    asked: Problem
    known: dict[Items, float | None] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many items there are."""
        return self.asked.count

    @property
    def least(self) -> int:
        """As the problem says."""
        return self.asked.least

    def size(self, item: int) -> float:
        """As the problem says."""
        return self.asked.size(item)

    def fullness(self, items: Items) -> float | None:
        """As the problem says."""
        if items not in self.known:
            self.known[items] = self.asked.fullness(items)
        return self.known[items]


def by_size(problem: Problem) -> list[int]:
    """Items, the largest first; equal ones in their own order."""
    return sorted(range(problem.count), key=lambda item: -problem.size(item))


def canonical(bins: Iterable[Items]) -> list[Items]:
    """Bins without the empty ones, in order of their smallest item."""
    return sorted((one for one in bins if one), key=min)
