"""A study's last comparison: rounds of the choice beside the current configuration, all measured after the choice.

`perf.tune`, `perf.report`, `perf.compare` and the pages ask here, so one study has one interval and one verdict. Only
these trials give figures of the choice. Those that selected it are partly lucky, as the best of many is (the winner's
curse).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from perf.records.candidate import Candidate
from perf.records.study import AGAINST, FINAL, NOISE, Study, Trial
from perf.records.traffic import Traffic
from perf.stats.interval import Interval
from perf.stats.looks import Looks
from perf.stats.percentile import percentile_ms
from perf.stats.rounds import paired
from perf.stats.verdict import Verdict, verdict

# Rounds after which a comparison ends if it is certain.
LOOKS = Looks(at=(6, 12, 24))


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """A value of each trial, and one of several trials `together`, as if they were one.

    `lacking` says what a trial without a usable value did.
    """

    name: str
    unit: str
    more_is_better: bool
    lacking: str
    value: Callable[[Trial], float]
    together: Callable[[Sequence[Trial]], float]

    def usable(self, trials: Sequence[Trial]) -> bool:
        """Whether every trial has a value of which a ratio can be made."""
        return all(0 < self.value(trial) < math.inf for trial in trials)


def rows_per_s(trials: Sequence[Trial]) -> float:
    """All rows of several trials over their total time; 0 without trials."""
    seconds = sum(trial.seconds for trial in trials)
    return sum(trial.throughput_rows_per_s * trial.seconds for trial in trials) / seconds if seconds else 0.0


def p99_ms(trials: Sequence[Trial]) -> float:
    """The 99th percentile of all requests of several trials."""
    return percentile_ms(np.concatenate([trial.latencies for trial in trials]), 99)


THROUGHPUT = Quantity(
    name="throughput",
    unit="rows/s",
    more_is_better=True,
    lacking="answered no request",
    value=lambda trial: trial.throughput_rows_per_s,
    together=rows_per_s,
)
P99 = Quantity(
    name="p99",
    unit="ms",
    more_is_better=False,
    lacking="left more than 1 % of the requests without an answer, so it has no p99,",
    value=lambda trial: trial.p99_ms,
    together=p99_ms,
)


@dataclass(frozen=True, kw_only=True)
class Gain:
    """A quantity of the choice over that of the current configuration.

    `choice` and `current` are those of all rounds together, `interval` is of the ratios round by round. `noise` is the
    ratio of the A/A pairs, None without one. If there is no ratio, the value of `interval` is not a number, and its
    `method` says why.
    """

    quantity: Quantity
    choice: float
    current: float
    interval: Interval
    noise: Interval | None

    @property
    def name(self) -> str:
        """The name of the quantity."""
        return self.quantity.name

    @property
    def known(self) -> bool:
        """Whether there is a ratio."""
        return not math.isnan(self.interval.value)

    @property
    def verdict(self) -> Verdict:
        """The verdict on the choice."""
        return verdict(self.interval, more_is_better=self.quantity.more_is_better, noise=self.noise)

    @property
    def wanted_rounds(self) -> int | None:
        """The number of rounds in all at which it may be certain; None if it is, or if no planned number is enough."""
        count, more = self.interval.count, self.verdict.more_rounds
        if self.known and count < 2:
            return LOOKS.at[0]
        return None if more is None else next((at for at in LOOKS.at if at >= count + more), None)

    def __str__(self) -> str:
        interval = self.interval
        if not self.known:
            return f"{self.name}: {interval.method}"
        if interval.count < 2:
            return f"{self.name} x {interval.value:.3f} in one round: {self.verdict}"
        return f"{self.name} x {interval}, {interval.level_text} interval of {interval.count} rounds: {self.verdict}"


@dataclass(frozen=True, kw_only=True)
class LastComparison:
    """The trials of the choice and, pair by pair, those of the current configuration.

    `again` are further trials of the current configuration, one in each round, if there are any. `current` is empty if
    the choice is the current configuration.
    """

    choice: tuple[Trial, ...]
    current: tuple[Trial, ...] = ()
    again: tuple[Trial, ...] = ()

    @property
    def candidate(self) -> Candidate | None:
        """The configuration that was compared with the current one; None without such trials."""
        return self.choice[0].candidate if self.choice else None

    def of(self, candidate: Candidate | None) -> tuple[Trial, ...]:
        """The trials of one of both, without the repeats in `again`."""
        return tuple(trial for trial in (*self.choice, *self.current) if trial.candidate == candidate)

    @property
    def pairs(self) -> tuple[tuple[Trial, Trial], ...]:
        """The trials of the choice, each with one of the current configuration."""
        return tuple(zip(self.choice, self.current, strict=False))

    @property
    def twins(self) -> tuple[tuple[Trial, Trial], ...]:
        """A/A pairs of trials of the current configuration: the repeats of each round, or every two, the later first.

        No trial is in two pairs, so the pairs are independent.
        """
        if self.again:
            return tuple(zip(self.again, self.current, strict=False))
        trials = self.current or self.choice
        return tuple(zip(trials[1::2], trials[::2], strict=False))

    @property
    def requests(self) -> int:
        """The requests of all pairs."""
        return sum(trial.requests for pair in self.pairs for trial in pair)

    @property
    def level(self) -> float:
        """The level of each interval: that of the next planned look."""
        return LOOKS.level_at(next((at for at in LOOKS.at if at >= len(self.pairs)), LOOKS.at[-1]))

    @property
    def gains(self) -> tuple[Gain, ...]:
        """The gains in throughput and p99, the one that decides first; empty without pairs.

        An open load that is carried has the same throughput with every configuration, so p99 decides.
        """
        if not self.pairs:
            return ()
        both = self.gain(THROUGHPUT), self.gain(P99)
        return both[::-1] if Traffic.of_record(self.choice[0].load).open else both

    def gain(self, quantity: Quantity) -> Gain:
        """The gain in one quantity; there must be a pair."""
        choice, current = zip(*self.pairs, strict=True)
        return Gain(
            quantity=quantity,
            choice=quantity.together(choice),
            current=quantity.together(current),
            interval=self._ratio(quantity, choice, current),
            noise=self.noise(quantity),
        )

    def noise(self, quantity: Quantity) -> Interval | None:
        """The ratio of the A/A pairs; None without pairs or with a value that makes no ratio."""
        sides = [[quantity.value(pair[side]) for pair in self.twins] for side in (0, 1)]
        usable = self.twins and all(map(quantity.usable, self.twins))
        return paired(*sides, level=self.level) if usable else None

    def _ratio(self, quantity: Quantity, choice: Sequence[Trial], current: Sequence[Trial]) -> Interval:
        for side, trials in (("choice", choice), ("current configuration", current)):
            if without := sum(not quantity.usable([trial]) for trial in trials):
                why = f"no ratio, the {side} {quantity.lacking} in {without} of {len(trials)} rounds"
                return Interval(value=math.nan, low=0.0, high=math.inf, level=self.level, count=len(trials), method=why)
        return paired(*([quantity.value(trial) for trial in side] for side in (choice, current)), level=self.level)


def last_comparison(study: Study) -> LastComparison:
    """The last comparison of a study, which is that of its choice if it chose another than the current configuration.

    In each round `perf.tune` measures the choice (`FINAL`) and the current configuration (`AGAINST` the first time,
    then `NOISE`). Other studies have one trial of both as `AGAINST` in each round, and one more of the current
    configuration as `NOISE`. Trials under another load than the choice's are not compared with it.
    """
    candidate = _compared(study)
    load = _load(study, candidate)
    trials = [trial for trial in study.trials if (trial.candidate, trial.load) == (candidate, load)]
    final, against = (tuple(trial for trial in trials if trial.stage == stage) for stage in (FINAL, AGAINST))
    if candidate == study.default:
        return LastComparison(choice=final)
    # An earlier choice, which failed, had trials of the current configuration of its own.
    others = [
        place
        for place, trial in enumerate(study.trials, 1)
        if trial.stage == FINAL and trial.candidate not in (candidate, study.default)
    ]
    current = [
        trial
        for trial in study.trials[max(others, default=0) :]
        if trial.stage in (AGAINST, NOISE) and (trial.candidate, trial.load) == (study.default, load)
    ]
    return _in_rounds(against or final, current)


def _compared(study: Study) -> Candidate | None:
    """The choice, or the candidate that was compared last if that is not better or failed."""
    if study.chosen not in (None, study.default):
        return study.chosen
    final = [trial.candidate for trial in study.trials if trial.stage == FINAL]
    against = [trial.candidate for trial in study.trials if trial.stage == AGAINST and trial.candidate != study.default]
    return next(reversed(final or against), None)


def _load(study: Study, candidate: Candidate | None) -> str:
    """The study's load if the candidate was compared under it, else that of its last such trial."""
    loads = [trial.load for trial in study.trials if trial.candidate == candidate and trial.stage in (FINAL, AGAINST)]
    return study.load if study.load in loads or not loads else loads[-1]


def _in_rounds(choice: Sequence[Trial], current: Sequence[Trial]) -> LastComparison:
    """Pair trials of the same round; older studies numbered each stage for itself, so theirs are paired in order."""
    rounds: dict[int, list[Trial]] = {trial.round: [] for trial in choice}
    for trial in sorted(current, key=lambda trial: trial.stage == NOISE):
        rounds.get(trial.round, []).append(trial)
    if len(rounds) < len(choice) or not all(rounds.values()):
        return LastComparison(choice=tuple(choice), current=tuple(current[-max(1, len(choice)) :]))
    again = [trials[1] for trials in rounds.values() if len(trials) > 1]
    return LastComparison(
        choice=tuple(choice),
        current=tuple(trials[0] for trials in rounds.values()),
        again=tuple(again) if len(again) == len(rounds) else (),
    )
