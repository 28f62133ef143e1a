"""The packing problem of the algorithms: numbered items, and which sets of them fit into one bin."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

Items = frozenset[int]


class Problem(Protocol):
    """Items 0 to `count` - 1. Every subset of a set that fits also fits."""

    @property
    def count(self) -> int:
        """The number of items."""

    @property
    def least(self) -> int:
        """A lower bound on the number of bins."""

    def size(self, item: int) -> float:
        """The size of an item as a share of a bin, for the order of packing."""

    def fullness(self, items: Items) -> float | None:
        """The share of a bin that these items take, at most 1; None if they do not fit."""


@dataclass(frozen=True, kw_only=True)
class Plain:
    """Plain bin packing: one-dimensional sizes and bins of `capacity`."""

    sizes: Sequence[int]
    capacity: int

    @property
    def count(self) -> int:
        """The number of items."""
        return len(self.sizes)

    @property
    def least(self) -> int:
        """The sum of all sizes over the capacity."""
        return -(-sum(self.sizes) // self.capacity)

    def size(self, item: int) -> float:
        """The share of a bin."""
        return self.sizes[item] / self.capacity

    def fullness(self, items: Items) -> float | None:
        """The share of a bin that these items take; None if they do not fit."""
        total = sum(self.sizes[item] for item in items)
        return total / self.capacity if total <= self.capacity else None


class SpentError(Exception):
    """More sets were checked than allowed."""


@dataclass(kw_only=True)
class Counted:
    """A problem that counts how many sets are checked; above `most` it raises `SpentError`."""

    problem: Problem
    most: int
    checked: int = field(default=0, init=False)

    @property
    def count(self) -> int:
        """The number of items."""
        return self.problem.count

    @property
    def least(self) -> int:
        """A lower bound on the number of bins."""
        return self.problem.least

    def size(self, item: int) -> float:
        """The size of an item; not counted."""
        return self.problem.size(item)

    def fullness(self, items: Items) -> float | None:
        """The share of a bin that these items take; None if they do not fit."""
        if self.checked >= self.most:
            raise SpentError
        self.checked += 1
        return self.problem.fullness(items)


def by_size(problem: Problem) -> list[int]:
    """The items, the largest first; equal items in order of their numbers."""
    return sorted(range(problem.count), key=lambda item: -problem.size(item))


def canonical(bins: Iterable[Items]) -> list[Items]:
    """The non-empty bins, in order of their smallest item."""
    return sorted(filter(None, bins), key=min)
