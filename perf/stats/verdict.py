"""What an interval on a ratio means: faster, slower, the same within x, or cannot tell and how many more rounds.

The one place that decides it; everything that compares two measurements asks here.
"""

import math
from dataclasses import dataclass, replace

import scipy  # its `special` is loaded at the first verdict

from perf.stats.interval import LEVEL, Interval

FASTER, SLOWER, SAME, CANNOT_TELL = "faster", "slower", "the same", "cannot tell"
# Smaller differences do not count: that much a model differs from itself on a quiet machine.
MARGIN = 0.03
# More rounds than this are not proposed.
MOST_ROUNDS = 200
# With fewer rounds hardly anything is certain: Student's t is 12.7 for two and 4.3 for three.
LEAST_ROUNDS = 3
# Rounds that are alike do not show what happens in this share of them or less. See `rounds_for_same`.
RARE = 0.2


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The verdict on B / A as one of four words, and how many more rounds it takes if it is not certain.

    `more_rounds` is None for a certain verdict, if more than `MOST_ROUNDS` were needed, and if more do not help.
    """

    word: str
    margin: float
    more_rounds: int | None = None

    @property
    def certain(self) -> bool:
        """Whether the measurements decide."""
        return self.word != CANNOT_TELL

    def text(self, noun: str = "round") -> str:
        """The verdict in words; `noun` is what to measure more of."""
        if self.word == SAME:
            return f"the same within {self.margin:.0%}"
        if self.certain or self.more_rounds is None:
            return self.word
        return f"cannot tell, measure {self.more_rounds} more {noun}{'s' if self.more_rounds > 1 else ''}"

    def __str__(self) -> str:
        return self.text()


def verdict(
    interval: Interval, *, more_is_better: bool, margin: float = MARGIN, noise: Interval | None = None
) -> Verdict:
    """The verdict on a ratio B / A of a quantity.

    The same: the whole interval is within `margin` of 1 (an equivalence test; its two one-sided tests are at half of
    the interval's error each: Schuirmann, J. Pharmacokinetics 15, 1987), and it is of enough rounds, `rounds_for_same`.
    Faster or slower: it excludes 1, and is not wholly within `margin`.

    `noise` is the ratio of A measured again to A. If A surely differs from itself, what makes it differ may act on B as
    well, and more rounds do not remove it: the interval is widened by that ratio.
    """
    if noise is not None and differs(noise, margin=margin):
        if not (0 < noise.value < math.inf):
            return Verdict(word=CANNOT_TELL, margin=margin)
        widened = verdict(interval.widened(noise.value), more_is_better=more_is_better, margin=margin)
        return replace(widened, more_rounds=None)
    if fits(interval, margin=margin):
        lacking = rounds_for_same(interval.level) - interval.count
        return Verdict(word=CANNOT_TELL if lacking > 0 else SAME, margin=margin, more_rounds=max(lacking, 0) or None)
    if interval.excludes_one:
        return Verdict(word=FASTER if (interval.low > 1) == more_is_better else SLOWER, margin=margin)
    return Verdict(word=CANNOT_TELL, margin=margin, more_rounds=more_rounds(interval, margin=margin))


def fits(interval: Interval, *, margin: float = MARGIN) -> bool:
    """Whether the whole interval is within `margin` of 1; that is no proof that two are the same in every round."""
    return interval.low >= 1 / (1 + margin) and interval.high <= 1 + margin


def differs(interval: Interval, *, margin: float = MARGIN) -> bool:
    """Whether a ratio surely differs from 1, and not surely by less than `margin`."""
    return verdict(interval, more_is_better=True, margin=margin).word in (FASTER, SLOWER)


def rounds_for_same(level: float = LEVEL) -> int:
    """The least number of rounds that show that two are the same: one that differs is among them with `level`.

    If B is slow in one round of five (`RARE`), half of the comparisons of three rounds see no slow one, and their
    interval is as short as if there were none. Of 14 rounds there is one in 1 - 0.8^14 = 95.6 % of the cases. A
    difference between means needs no such number, since the rounds that were measured show it.
    """
    return math.ceil(math.log(1 - level) / math.log(1 - RARE))


def more_rounds(interval: Interval, *, margin: float = MARGIN) -> int | None:
    """About how many more rounds make it certain, if the ratio and the spread stay as they are.

    The interval must end before 1, or fit into the margin if the ratio is in it: whichever takes fewer rounds.
    """
    if not 0 < interval.value < math.inf:
        return None
    distance = abs(math.log(interval.value))
    differing, fitting = rounds_until(interval, distance), rounds_until(interval, math.log1p(margin) - distance)
    same = fitting and max(fitting, rounds_for_same(interval.level) - interval.count)
    return min(filter(None, (differing, same)), default=None)


def rounds_until(interval: Interval, wanted: float) -> int | None:
    """About how many more rounds until the interval ends less than `wanted` from its value, in logarithms.

    One round says nothing on the spread: then at least `LEAST_ROUNDS` in all. None for more than `MOST_ROUNDS`.
    """
    if interval.count < 2:
        return LEAST_ROUNDS - interval.count
    if not interval.bounded:
        return None
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
