"""The last comparison: rounds of the choice beside the current configuration, all measured after the choice.

Only these trials give figures of the choice. Those that selected it are partly lucky, as the best of many is (the
winner's curse), so no printed or written figure is from them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from perf.records.study import Trial
from perf.stats.interval import Interval
from perf.stats.looks import Looks
from perf.stats.rounds import paired
from perf.stats.verdict import FASTER, Verdict, verdict
from perf.tune.goal import Goal
from perf.tune.pooled_trials import PooledTrials, p99_ms
from perf.tune.study_log import ROUNDS

# Rounds after which the comparison ends if it is certain.
LOOKS = Looks(at=(ROUNDS, 2 * ROUNDS, 4 * ROUNDS))


@dataclass(frozen=True, kw_only=True)
class Gain:
    """A quantity of the choice over that of the current configuration, with its verdict.

    Both are None if one side has no such figure; `why` then says it in words.
    """

    name: str
    interval: Interval | None = None
    verdict: Verdict | None = None
    why: str = ""

    @property
    def certain(self) -> bool:
        """Whether the rounds decide."""
        return self.verdict is not None and self.verdict.certain

    @property
    def faster(self) -> bool:
        """Whether the choice is surely better in this quantity."""
        return self.verdict is not None and self.verdict.word == FASTER

    @property
    def wanted_rounds(self) -> int | None:
        """The number of rounds in all at which it may be certain; None if it is, or if no planned number is enough."""
        if self.interval is None or self.verdict is None or self.verdict.certain:
            return None
        if self.interval.count < 2:
            return LOOKS.at[0]
        more = self.verdict.more_rounds
        return None if more is None else next((at for at in LOOKS.at if at >= self.interval.count + more), None)

    def __str__(self) -> str:
        if self.interval is None:
            return f"{self.name}: {self.why}"
        if self.interval.count < 2:
            return f"{self.name} x {self.interval.value:.3f} in one round: {self.verdict}"
        return f"{self.name} x {self.interval} in {self.interval.count} rounds: {self.verdict}"


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
    def gains(self) -> tuple[Gain, ...]:
        """The gains in throughput and p99, the one that decides first; empty without a current configuration."""
        if not self.current:
            return ()
        p99s = [p99_ms(trial) for trial in self.final], [p99_ms(trial) for trial in self.current]
        p99 = _gain("p99", *p99s, more_is_better=False)
        if self.goal.open:
            return (p99,)
        rates = [[trial.throughput_rows_per_s for trial in side] for side in (self.final, self.current)]
        return _gain("throughput", *rates, more_is_better=True), p99

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
        return self.misses or tier > tier_before or (tier == tier_before and self.gains[0].faster)

    @property
    def certain(self) -> bool:
        """Whether more rounds would decide nothing more."""
        return not self.current or self.better or self.gains[0].certain


def level(rounds: int) -> float:
    """The level of the interval after so many rounds: that of the next planned look, if none is planned there."""
    return LOOKS.level_at(next((at for at in LOOKS.at if at >= rounds), LOOKS.at[-1]))


def _gain(name: str, new: Sequence[float], old: Sequence[float], *, more_is_better: bool) -> Gain:
    rounds = min(len(new), len(old))
    for side, values in (("choice", new[:rounds]), ("current configuration", old[:rounds])):
        if without := sum(not 0 < value < float("inf") for value in values):
            lacks = (
                "answered no request"
                if more_is_better
                else "left more than 1 % of the requests without an answer, so it has no p99,"
            )
            return Gain(name=name, why=f"no ratio, the {side} {lacks} in {without} of {rounds} rounds")
    interval = paired(new[:rounds], old[:rounds], level=level(rounds))
    return Gain(name=name, interval=interval, verdict=verdict(interval, more_is_better=more_is_better))
