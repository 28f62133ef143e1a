"""The last comparison of a search under its goal: whether the choice met the target, and is better."""

from dataclasses import dataclass

from perf.records.decision import UNSURE, USE, Decision, confirmed, decide
from perf.records.last_comparison import Gain, LastComparison
from perf.records.study import Trial
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
        return bool(self.final) and confirmed(self.final, self.goal)

    @property
    def compared(self) -> LastComparison:
        """The rounds of both, as everything that reads the study's record sees them."""
        return LastComparison(choice=self.final, current=self.current)

    @property
    def gains(self) -> tuple[Gain, ...]:
        """The gains in throughput and p99, the one that decides first; empty without a current configuration."""
        return self.compared.gains

    @property
    def decision(self) -> Decision:
        """Whether to use the choice, by the rule that everything that reads the study's record asks."""
        return decide(self.compared, self.goal)

    @property
    def better(self) -> bool:
        """Whether the choice is surely better than the current configuration."""
        return self.decision.word == USE

    @property
    def certain(self) -> bool:
        """Whether more rounds would decide nothing more."""
        return self.decision.word != UNSURE
