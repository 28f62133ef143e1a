"""A ratio of two measurements, or the mean of one, with its confidence interval."""

import math
from dataclasses import dataclass, replace

LEVEL = 0.95


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A ratio, or a mean, and the interval that holds the true one with probability `level`.

    `count` is the number of measurements a side, `method` how the interval was made, in words.
    """

    value: float
    low: float
    high: float
    level: float
    count: int
    method: str

    @property
    def excludes_one(self) -> bool:
        """Whether the interval is on one side of 1."""
        return self.low > 1 or self.high < 1

    @property
    def bounded(self) -> bool:
        """Whether it has both ends; one round has none."""
        return self.low > 0 and math.isfinite(self.high)

    @property
    def level_text(self) -> str:
        """The level in words: `95 %`, `98.21 %`."""
        return f"{100 * self.level:.4g} %"

    def widened(self, factor: float) -> "Interval":
        """With both ends further away by `factor` or its inverse."""
        wider = max(factor, 1 / factor)
        return replace(self, low=self.low / wider, high=self.high * wider)

    def __str__(self) -> str:
        ends = f"{_text(self.low)} to {_text(self.high)}" if self.low or math.isfinite(self.high) else "no interval"
        return f"{self.value:.3f} ({ends})"


def exponential(value: float) -> float:
    """The exponential of the logarithm of a ratio, infinite if it is too large for a float."""
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def _text(value: float) -> str:
    return f"{value:.3f}" if value < 1000 else f"{value:.3g}"
