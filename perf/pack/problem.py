"""The packing problem of the algorithms: numbered items, and which sets of them fit into one bin."""

from dataclasses import dataclass, field
from typing import Protocol

Items = frozenset[int]


class Problem(Protocol):
    """Items 0 to `count` - 1. Every subset of a set that fits also fits."""

    @property
    def count(self) -> int:
        """The number of items."""

    def size(self, item: int) -> float:
        """The size of an item as a share of a bin, for the order of packing."""

    def fullness(self, items: Items) -> float | None:
        """The share of a bin that these items take, at most 1; None if they do not fit."""


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

    def size(self, item: int) -> float:
        """The size of an item; not counted."""
        return self.problem.size(item)

    def fullness(self, items: Items) -> float | None:
        """The share of a bin that these items take; None if they do not fit."""
        if self.checked >= self.most:
            raise SpentError
        self.checked += 1
        return self.problem.fullness(items)
