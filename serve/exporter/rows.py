"""The rows of executions as a histogram."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# The same for every model, so that models can be added up: 1, 2, 4, ... 1024.
SIZES = tuple(2**power for power in range(11))


@dataclass(frozen=True, kw_only=True)
class Rows:
    """How many executions had at most each of `SIZES` rows, how many there were, and the sum of their rows."""

    up_to: Sequence[float]
    count: float
    sum: float

    @classmethod
    def of(cls, batches: Mapping[int, int]) -> "Rows":
        """From the number of executions by their rows."""
        up_to = [sum(count for rows, count in batches.items() if rows <= size) for size in SIZES]
        return cls(up_to=up_to, count=sum(batches.values()), sum=sum(rows * count for rows, count in batches.items()))

    def __add__(self, other: "Rows") -> "Rows":
        up_to = [left + right for left, right in zip(self.up_to, other.up_to, strict=True)]
        return Rows(up_to=up_to, count=self.count + other.count, sum=self.sum + other.sum)

    def buckets(self) -> list[tuple[str, float]]:
        """The buckets of a Prometheus histogram."""
        named = [(f"{size:.1f}", float(count)) for size, count in zip(SIZES, self.up_to, strict=True)]
        return [*named, ("+Inf", float(self.count))]
