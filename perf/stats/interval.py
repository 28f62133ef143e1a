"""A ratio of two measurements with its confidence interval."""

from dataclasses import dataclass

LEVEL = 0.95


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A ratio and the interval that holds the true ratio with probability `level`.

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

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"
