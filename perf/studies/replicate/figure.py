"""A printed figure with what is printed around it, and how often it should hold the value of a new measurement."""

import math
from dataclasses import dataclass
from typing import Self

import scipy  # its `special` is loaded at the first chance

from perf.stats.interval import LEVEL, Interval

ROUNDS, EXACT = "rounds of one run", "exact"


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A value, and the bounds that are printed with it.

    `kind` is how the bounds were made: Student's t over `count` rounds at `level`, or none since the value does not
    depend on the machine. The rounds of one run do not show how much days differ, so only `EXACT` claims to hold on
    another day.
    """

    value: float
    low: float
    high: float
    kind: str
    count: int
    level: float = 1.0

    @classmethod
    def of(cls, interval: Interval) -> Self:
        """That of a ratio over rounds; raises `ValueError` for one round, which has no interval."""
        if interval.count < 2:
            raise ValueError("one round has no interval")
        value, low, high = interval.value, interval.low, interval.high
        return cls(value=value, low=low, high=high, kind=ROUNDS, count=interval.count, level=interval.level)

    @classmethod
    def exact(cls, value: float) -> Self:
        """A value that every machine must find."""
        return cls(value=value, low=value, high=value, kind=EXACT, count=1)

    def holds(self, value: float) -> bool:
        """Whether the value is within the bounds."""
        return self.low <= value <= self.high

    def chance(self, count: int) -> float:
        """How often the bounds hold the value of `count` new rounds, if nothing has changed since.

        Less often than `level`: the new value has an error of its own. With n old rounds of standard deviation s, the
        difference of the means has the variance s^2 (1 / n + 1 / `count`), so it is Student's t with n - 1 degrees of
        freedom that must be within the quantile of the interval times sqrt(`count` / (n + `count`)).
        """
        if self.kind == EXACT:
            return 1.0
        freedom = self.count - 1
        limit = scipy.special.stdtrit(freedom, (1 + self.level) / 2) * math.sqrt(count / (self.count + count))
        return 1 - 2 * float(scipy.special.stdtr(freedom, -limit))

    def change(self, new: "Figure") -> Interval | None:
        """`new` over this figure with the interval of both errors together (Welch's t); None for exact figures.

        An interval that holds 1 shows no change: the printed interval may miss the new value since that is noisy.
        """
        if EXACT in (self.kind, new.kind):
            return None
        squares = [self._error**2, new._error**2]
        parts = [square**2 / (figure.count - 1) for square, figure in zip(squares, (self, new), strict=True)]
        freedom = sum(squares) ** 2 / sum(parts) if sum(parts) else min(self.count, new.count) - 1
        middle = math.log(new.value / self.value)
        half = float(scipy.special.stdtrit(freedom, (1 + LEVEL) / 2)) * math.sqrt(sum(squares))
        return Interval(
            value=math.exp(middle),
            low=math.exp(middle - half),
            high=math.exp(middle + half),
            level=LEVEL,
            count=min(self.count, new.count),
            method="Welch's t, rounds in pairs",
        )

    @property
    def _error(self) -> float:
        """The standard error of the logarithm, from the width of the interval."""
        return math.log(self.high / self.low) / 2 / float(scipy.special.stdtrit(self.count - 1, (1 + self.level) / 2))

    def __str__(self) -> str:
        if self.kind == EXACT:
            return f"{self.value:g}"
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"
