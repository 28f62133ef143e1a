"""The last comparison of a search under its goal: whether the choice met the target, and is better."""

from dataclasses import dataclass

from perf.records.last_comparison import Gain, LastComparison
from perf.records.study import Trial
from perf.stats.verdict import FASTER
from perf.tune.goal import Goal
from perf.tune.pooled_trials import PooledTrials


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The trials of the choice and, pair by pair, those of the current configuration.

    `current` is empty if the choice is the current configuration. Requests have `rows` rows.
    """

    goal: Goal
    final: tuple[Trial, ...]
    current: tuple[Trial, ...] = ()
    rows: int = 1

    @property
    def chosen(self) -> PooledTrials:
        """The choice, from these trials alone."""
        return PooledTrials.of(self.final, self.goal.target, rows=self.rows)

    @property
    def before(self) -> PooledTrials | None:
        """The current configuration, from these trials alone; None if the choice is that one."""
        return PooledTrials.of(self.current, self.goal.target, rows=self.rows) if self.current else None

    @property
    def confirmed(self) -> bool:
        """Whether the choice met the target in these trials. The margin was for them, so it is not asked for again."""
        return bool(self.final) and self.chosen.passed is not False and self.goal.within(self.chosen)

    @property
    def compared(self) -> LastComparison:
        """The rounds of both, as everything that reads the study's record sees them."""
        return LastComparison(choice=self.final, current=self.current)

    @property
    def gains(self) -> tuple[Gain, ...]:
        """The gains in throughput and p99, the one that decides first; empty without a current configuration."""
        return self.compared.gains

    @property
    def misses(self) -> bool:
        """Whether the current configuration surely misses the target, does not carry the load, or exceeds a limit."""
        before = self.before
        return before is not None and (
            before.passed is False or not self.goal.carries(before) or not self.goal.fits(before)
        )

    @property
    def better(self) -> bool:
        """Whether the choice is surely better than the current configuration.

        It meets the target where the current one surely does not, or it needs fewer instances (for the objective cost),
        or it is surely faster.
        """
        before = self.before
        if before is None or not self.confirmed:
            return False
        tier, tier_before = self.goal.value(self.chosen)[0], self.goal.value(before)[0]
        return self.misses or tier > tier_before or (tier == tier_before and self.gains[0].verdict.word == FASTER)

    @property
    def certain(self) -> bool:
        """Whether more rounds would decide nothing more."""
        return not self.current or self.better or self.gains[0].verdict.certain
