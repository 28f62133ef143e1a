"""What an interval on a ratio means: faster, slower, the same within x, or cannot tell and how many more rounds.

The one place that decides it; everything that compares two measurements asks here.
"""

import math
from dataclasses import dataclass

import scipy  # its `special` is loaded at the first verdict

from perf.stats.interval import LEVEL, Interval

FASTER, SLOWER, SAME, CANNOT_TELL = "faster", "slower", "the same", "cannot tell"
# Smaller differences do not count: that much a model differs from itself on a quiet machine.
MARGIN = 0.03
# More rounds than this are not proposed.
MOST_ROUNDS = 200


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The verdict on B / A as one of four words, and how many more rounds it takes if it is not certain.

    `more_rounds` is None for a certain verdict, and if more than `MOST_ROUNDS` were needed or one round says nothing on
    the spread.
    """

    word: str
    margin: float
    more_rounds: int | None = None

    @property
    def certain(self) -> bool:
        """Whether the measurements decide."""
        return self.word != CANNOT_TELL

    def __str__(self) -> str:
        if self.word == SAME:
            return f"the same within {self.margin:.0%}"
        if self.certain or self.more_rounds is None:
            return self.word
        return f"cannot tell, measure {self.more_rounds} more rounds"


def verdict(interval: Interval, *, more_is_better: bool, margin: float = MARGIN) -> Verdict:
    """The verdict on a ratio B / A of a quantity.

    The same: the whole interval is within `margin` of 1 (an equivalence test; its two one-sided tests are at half of
    the interval's error each: Schuirmann, J. Pharmacokinetics 15, 1987). Faster or slower: it excludes 1.
    """
    if interval.low >= 1 / (1 + margin) and interval.high <= 1 + margin:
        return Verdict(word=SAME, margin=margin)
    if interval.excludes_one:
        return Verdict(word=FASTER if (interval.low > 1) == more_is_better else SLOWER, margin=margin)
    return Verdict(word=CANNOT_TELL, margin=margin, more_rounds=more_rounds(interval, margin=margin))


def more_rounds(interval: Interval, *, margin: float = MARGIN) -> int | None:
    """About how many more rounds make it certain, if the ratio and the spread stay as they are.

    The interval must end before 1, or fit into the margin if the ratio is in it: whichever takes fewer rounds.
    """
    if interval.count < 2 or not (interval.low > 0 and math.isfinite(interval.high)):
        return None
    distance = abs(math.log(interval.value))
    wanted = max(distance, math.log1p(margin) - distance)
    half = (math.log(interval.high) - math.log(interval.low)) / 2
    deviation = half / _quantile(interval.level, interval.count - 1) * math.sqrt(interval.count)
    for rounds in range(interval.count + 1, interval.count + MOST_ROUNDS + 1):
        if _quantile(interval.level, rounds - 1) * deviation / math.sqrt(rounds) < wanted:
            return rounds - interval.count
    return None


def level_of_each(comparisons: int, level: float = LEVEL) -> float:
    """The level of each of several intervals that hold together with probability `level` (Bonferroni)."""
    return 1 - (1 - level) / max(comparisons, 1)


def _quantile(level: float, freedom: float) -> float:
    return float(scipy.special.stdtrit(freedom, (1 + level) / 2))
