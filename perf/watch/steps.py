"""What was read, merged in steps: fine ones for the last minutes, coarse ones for the last day."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, Self, TypeVar

MINUTES_S, DAY_S = 300.0, 86_400.0
# Each span in seconds with the length of its steps: a figure has at most 361 points, or 601 of readings each 0.5 s.
SPANS = {MINUTES_S: 0.5, 3600.0: 10.0, 21_600.0: 60.0, DAY_S: 240.0}


class Ended(Protocol):
    """Something that ended at `at_s`, in seconds since the epoch."""

    @property
    def at_s(self) -> float:
        """Its end."""

    def then(self, later: Self) -> Self:
        """The sum of this and a later one."""


T = TypeVar("T", bound=Ended)


@dataclass(kw_only=True)
class Steps(Generic[T]):
    """The same values at each of the `SPANS`. Values that end within the same step are merged."""

    by_span: dict[float, deque[T]] = field(default_factory=lambda: {span: deque() for span in SPANS})

    def add(self, value: T) -> None:
        """Add a value, later than all others."""
        for span, kept in self.by_span.items():
            if kept and kept[-1].at_s // SPANS[span] == value.at_s // SPANS[span]:
                kept[-1] = kept[-1].then(value)
            else:
                kept.append(value)
        self.forget(value.at_s)

    def of(self, span_s: float, after_s: float = -math.inf, *, before: int = 0) -> Sequence[T]:
        """The values of a span that ended after this time, and so many `before` them, in order."""
        found: deque[T] = deque()
        for value in reversed(self.by_span[span_s]):
            if value.at_s <= after_s:
                if not before:
                    break
                before -= 1
            found.appendleft(value)
        return found

    @property
    def last(self) -> T | None:
        """The last value, which may be merged from several; None without values."""
        kept = self.by_span[MINUTES_S]
        return kept[-1] if kept else None

    def forget(self, now_s: float) -> None:
        """Drop the values that are older than their span."""
        for span, kept in self.by_span.items():
            while kept and kept[0].at_s < now_s - span:
                kept.popleft()

    def __bool__(self) -> bool:
        return any(self.by_span.values())
