"""How much error each look may use, if rounds are added until a comparison is certain.

Whoever tests at 5 % after every round, and stops when it is significant, is wrong far more often than in 5 % of the
cases. Lan and DeMets (Biometrika 70, 1983) give a function of the share of the rounds that are done: the error spent so
far. A look has what was added since the last one. Errors of several looks add up at most (Bonferroni), so nothing is
assumed on how the looks depend on each other.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from perf.stats.interval import LEVEL


@dataclass(frozen=True, kw_only=True)
class Looks:
    """Looks after `at` rounds, in rising order; all intervals hold together with probability `level`.

    The last look is at the largest number of rounds that is ever measured.
    """

    at: Sequence[int]
    level: float = LEVEL

    def level_at(self, rounds: int) -> float:
        """The level of the interval at the look after `rounds` rounds; raises `ValueError` if that is no look."""
        if rounds not in self.at:
            raise ValueError(f"no look is planned after {rounds} rounds, only after {list(self.at)}")
        place = list(self.at).index(rounds)
        before = self._spent(self.at[place - 1]) if place else 0.0
        return 1 - (self._spent(rounds) - before)

    def _spent(self, rounds: int) -> float:
        """The error spent after `rounds` rounds: Pocock's spending function of Lan and DeMets."""
        return (1 - self.level) * math.log1p((math.e - 1) * rounds / self.at[-1])


def anew(noun: str) -> str:
    """What a tool that looks once says beside a number of rounds to measure; `noun` is what it calls them.

    Two of the same differ in about a tenth of the cases if five rounds are tested at 5 %, and then the proposed ones
    together with these again.
    """
    return (
        f"Testing the same {noun} twice finds differences that are not there. So do not add {noun} to these: measure "
        "all of them anew, or use perf.compare.versus --most-rounds, which corrects for several looks."
    )
