"""The search: measure the candidates with the best predictions, correct the predictions, and stop early.

Successive halving (Jamieson and Talwalkar, AISTATS 2016): short trials of several candidates, longer ones of the
survivors. After each round the corrections are fitted again and every candidate is judged anew. The search ends when no
candidate should beat the best by more than the model's error. While none met the target, the nearest misses are
measured. Then rounds of the best beside the current configuration confirm it (`final_rounds.py`).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from perf.records.candidate import Candidate
from perf.records.study import HALVING, Prediction, Trial
from perf.records.traffic import Traffic
from perf.report.units import ms, rate
from perf.tune.comparison import Comparison
from perf.tune.entrants import entrants, key, untried
from perf.tune.final_rounds import FinalRounds
from perf.tune.fitting import Fit
from perf.tune.goal import Goal
from perf.tune.pooled_trials import PooledTrials
from perf.tune.reasons import is_better, simplified
from perf.tune.screening import Screen, Screened
from perf.tune.simulator import LEAST_ERROR, Corrections
from perf.tune.study_log import FINAL_POINTS, LEAST_FINAL_POINTS, SURVIVORS, Budget, StudyLog

# No prediction is wrong by these factors: of the p99, and of the rows per second where an open load is not carried.
HOPELESS, HOPELESS_RATE = 3.0, 1.5


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """The last comparison of the configuration that was found; None if none met the target.

    `closest` is then the one nearest to it. `measured` has every configuration with its trials: the choice and the
    current one with those of the last comparison only.
    """

    comparison: Comparison | None
    closest: PooledTrials | None
    measured: tuple[PooledTrials, ...]
    screened: tuple[Screened, ...]
    predictions: tuple[Prediction, ...]
    corrections: Corrections

    @property
    def chosen(self) -> PooledTrials | None:
        """The configuration that was found, from the trials after its choice alone."""
        return None if self.comparison is None else self.comparison.chosen


@dataclass(kw_only=True)
class Search:
    """One search over `candidates`, of which the first is the current configuration."""

    candidates: Sequence[Candidate]
    screen: Screen
    log: StudyLog
    budget: Budget
    progress: Callable[[str], None] = lambda _: None
    corrections: Corrections = field(default_factory=Corrections)
    screened: list[Screened] = field(default_factory=list)
    traffic: dict[Candidate, Traffic] = field(default_factory=dict)
    failed: set[tuple[Candidate, str]] = field(default_factory=set)
    _pooled_at: dict[int, list[PooledTrials]] = field(default_factory=dict)

    @property
    def goal(self) -> Goal:
        """The objective and the target."""
        return self.screen.goal

    @property
    def default(self) -> Candidate:
        """The current configuration."""
        return self.candidates[0]

    @property
    def _final_rounds(self) -> FinalRounds:
        return FinalRounds(
            goal=self.goal,
            default=self.default,
            budget=self.budget,
            log=self.log,
            measure=self._measure,
            earlier=len(self.failed),
        )

    def run(self) -> SearchResult:
        """Search until the end or until the budget is spent; each trial is on disk before the next."""
        if self.goal.objective != "goodput":
            self._prepare([self.default], 1, self.budget.short_s)  # it starts while the candidates are simulated
        self.screened = self.screen.run(self.candidates, self.corrections, self.progress)
        predictions = tuple(screened.prediction for screened in self.screened)
        self.log.change(predictions=predictions)
        self.log.add_step(
            f"simulated {len(self.candidates)} configurations: {len(predictions)} of them differ under this load, "
            f"{sum(map(self.goal.met, self.screened))} are expected to stay within {self.goal.limit_ms:.4g} ms (the "
            "target less its margin)"
        )
        self._round(1, entrants(self.screened, self.goal, self.default), self.budget.short_s)
        comparison = self._choose()
        measured = self._measured()
        return SearchResult(
            comparison=comparison,
            closest=None if comparison else min(measured, key=self.goal.distance, default=None),
            measured=tuple(measured if comparison is None else self._reported(comparison, measured)),
            screened=tuple(self.screened),
            predictions=predictions,
            corrections=self.corrections,
        )

    def _choose(self) -> Comparison | None:
        """Search, and confirm the best in new trials; if it fails in them, search on."""
        while True:
            self._halve()
            best = self._best() or self._without_margin()
            if best is None:
                return None
            if not self.failed and self._verified(best):
                best = self._simplest(best)
                self.log.retire(set(self.candidates) - {best.candidate, self.default})
            comparison = self._final_rounds.of(
                best.candidate, Traffic.of_record(best.trials[0].load, rows=self.screen.traffic.rows)
            )
            if comparison is None:
                self.log.add_step(f"{best.candidate}: not chosen, since no trial is left that could confirm it")
                return None
            if comparison.confirmed:
                return comparison
            missed = "missed the target" if self.goal.carries(comparison.chosen) else "did not carry the load"
            why = self.goal.objection(comparison.chosen) or missed
            self.log.add_step(f"{best.candidate}: not chosen, it {why} in the last comparison")
            self.failed.add(key(best))
            self._fit()

    def _halve(self) -> None:
        """Measure round after round until no candidate may be better or the budget is spent."""
        compared = False
        while True:
            number, best, contender = self._next_round(), self._best(), self._contender()
            reserve = LEAST_FINAL_POINTS if best is None else FINAL_POINTS + (0 if compared else SURVIVORS)
            if contender is not None and self._affords_short(reserve):
                why = (
                    "may be better" if self.goal.met(contender) else "nothing met the target yet, this is nearest to it"
                )
                self.log.add_step(f"next: {contender.candidate} ({why}: {_figures(contender)} expected)")
                self._round(number, [contender.candidate], self.budget.short_s)
                continue
            survivors = self._survivors()
            affordable = self.budget.affords(self.log, len(survivors), self.budget.long_s)
            if compared or not survivors or not affordable:
                if contender is not None and best is not None and self._affords_short(FINAL_POINTS):
                    compared = True  # the points that were kept for survivors are free
                    continue
                self.log.add_step(self._end_of_halving(best, contender))
                return
            names = " and ".join(map(str, survivors))
            self.log.add_step(f"{names} are too close to tell apart: measured again, for longer")
            self._round(number, survivors, self.budget.long_s)
            compared = True

    def _next_round(self) -> int:
        return 1 + max((trial.round for trial in self.log.study.trials if trial.stage == HALVING), default=0)

    def _affords_short(self, reserve: int) -> bool:
        return self.budget.affords(self.log, 1, self.budget.short_s, reserve=reserve)

    def _end_of_halving(self, best: PooledTrials | None, contender: Screened | None) -> str:
        if best is None:
            margin = " with its margin" if self._without_margin() else ""
            return f"the budget of the search is spent, and no measured configuration met the target{margin}"
        if contender is not None:
            return f"{contender.candidate} might be better, but the rest of the budget is for the last comparison"
        return (
            f"no other is expected to beat {best.candidate} by more than the predictions are off, "
            f"{self.corrections.error(of_p99=self.goal.by_p99):.1%}"
        )

    def _prepare(self, candidates: Sequence[Candidate], number: int, seconds: float) -> None:
        """Start the servers of trials that are not on record, side by side."""
        for candidate in candidates:
            self.log.prepare(candidate, self._load(candidate), stage=HALVING, round=number, seconds=seconds)

    def _round(self, number: int, candidates: Sequence[Candidate], seconds: float) -> None:
        self._prepare(candidates, number, seconds)
        for candidate in candidates:
            if self.budget.affords(self.log, 1, seconds, reserve=LEAST_FINAL_POINTS):
                self._measure(candidate, self._load(candidate), HALVING, number, seconds)
        likely = self._contender()
        if likely is not None and self._affords_short(LEAST_FINAL_POINTS if self._best() is None else FINAL_POINTS):
            self._prepare([likely.candidate], number + 1, self.budget.short_s)  # it starts during the fit
        self._fit()

    def _measure(self, candidate: Candidate, traffic: Traffic, stage: str, number: int, seconds: float) -> Trial:
        trial = self.log.measure(candidate, traffic, stage=stage, round=number, seconds=seconds)
        verdict = {True: "meets the target", False: "misses the target", None: "too few requests to be sure"}
        pooled = self._pooled([trial])
        objection = self.goal.objection(pooled)
        self.log.add_step(
            f"{candidate} at {trial.load}, {trial.seconds:g} s: {rate(trial.throughput_rows_per_s)}, "
            f"p99 {ms(trial.p99_ms)}, {verdict[pooled.passed]}{objection and f', {objection}'}"
        )
        return trial

    def _load(self, candidate: Candidate) -> Traffic:
        """Return the load at which a candidate is measured: for goodput its own rate, which each fit changes."""
        if self.goal.objective != "goodput":
            return self.screen.traffic
        if candidate not in self.traffic:
            screened = next((each for each in self.screened if each.candidate == candidate), None)
            looked = screened or self.screen.look(candidate, self.corrections, requests=self.screen.fine)
            self.traffic[candidate] = looked.traffic
        return self.traffic[candidate]

    def _fit(self) -> None:
        """Fit the corrections to all trials, and judge every candidate again."""
        fit = Fit(simulator=self.screen.simulator, rows=self.screen.traffic.rows, requests=self.screen.coarse)
        self.corrections = fit.corrections(self.log.study.trials)
        trials = len(self.log.study.trials)
        self.log.add_step(f"predictions corrected with {trials} trial{'s'[: trials > 1]}: off by {self.corrections}")
        self.screened = self.screen.again(self.screened, self.corrections, self.default, self.progress)
        self.traffic.clear()

    def _pooled(self, trials: Sequence[Trial]) -> PooledTrials:
        return PooledTrials.of(trials, self.goal.target, rows=self.screen.traffic.rows)

    def _measured(self) -> list[PooledTrials]:
        """Return what was measured, best first; trials of one configuration under one load are pooled."""
        if (known := self._pooled_at.get(len(self.log.study.trials))) is not None:
            return known
        groups: dict[tuple[Candidate, str], list[Trial]] = {}
        for trial in self.log.study.trials:
            groups.setdefault((trial.candidate, trial.load), []).append(trial)
        pooled = self.goal.ranked(map(self._pooled, groups.values()), default=self.default)
        self._pooled_at = {len(self.log.study.trials): pooled}
        return pooled

    def _reported(self, comparison: Comparison, measured: Sequence[PooledTrials]) -> list[PooledTrials]:
        """Return `measured` with the trials after the choice in place of all trials of both sides."""
        chosen, before = comparison.chosen, comparison.before
        after = [pooled for pooled in (chosen, before) if pooled is not None]
        others = [
            pooled for pooled in measured if pooled.candidate != chosen.candidate and key(pooled) not in map(key, after)
        ]
        return self.goal.ranked([*after, *others], default=self.default)

    def _verified(self, pooled: PooledTrials) -> bool:
        """Return whether it may be chosen: within margin and limits, no trial over the target, not surely missed."""
        met = self.goal.met(pooled) and pooled.worst_p99_ms <= self.goal.target.latency_ms
        return met and not self.goal.objection(pooled) and pooled.passed is not False and key(pooled) not in self.failed

    def _best(self) -> PooledTrials | None:
        return next((pooled for pooled in self._measured() if self._verified(pooled)), None)

    def _without_margin(self) -> PooledTrials | None:
        """Return the best that met the target itself; it may still be confirmed if none met it with the margin."""
        met = (pooled for pooled in self._measured() if self.goal.within(pooled) and pooled.passed is not False)
        return next((pooled for pooled in met if key(pooled) not in self.failed), None)

    def _new(self) -> Iterator[Screened]:
        """Yield the candidates that were not measured yet, best first."""
        return iter(untried(self.screened, self._measured(), self.goal))

    def _contender(self) -> Screened | None:
        """Return the best candidate not yet measured that could beat the best one within the model's error.

        While none met the target it is the one that is expected nearest to it; None if all are hopeless.
        """
        best, error = self._best(), self.corrections.error(of_p99=self.goal.by_p99)
        if best is None:
            return next(filter(self._hopeful, self._new()), None)
        better = (each for each in self._new() if self.goal.met(each) and self.goal.beats(each, best, by=-error))
        return next(better, None)

    def _hopeful(self, screened: Screened) -> bool:
        near = screened.throughput_rows_per_s * HOPELESS_RATE >= (screened.offered_rows_per_s or math.inf)
        return near or screened.p99_ms <= HOPELESS * self.goal.limit_ms

    def _survivors(self) -> list[Candidate]:
        """Return the best two if they differ by less than two trials of one configuration may, else none."""
        by_candidate: dict[Candidate, PooledTrials] = {}
        for pooled in self._measured():
            if self._verified(pooled):
                by_candidate.setdefault(pooled.candidate, pooled)
        verified = list(by_candidate.values())[:2]
        apart = len(verified) < 2 or self.goal.beats(verified[0], verified[1], by=2 * LEAST_ERROR)
        return [] if apart else [pooled.candidate for pooled in verified]

    def _simplest(self, best: PooledTrials) -> PooledTrials:
        """Return the best with current values wherever its own are no better, if its trials confirm that."""
        simple = simplified(self.screen, self.corrections, best.candidate, self.default)
        known = any(pooled.candidate == simple for pooled in self._measured())
        if not known and self.budget.affords(self.log, 1, self.budget.long_s):
            self.log.add_step(f"{simple} changes less and is expected to do the same: measured too")
            self._measure(simple, self._load(simple), HALVING, self._next_round(), self.budget.long_s)
        for pooled in self._measured():
            if pooled.candidate == simple and self._verified(pooled) and not is_better(self.goal, best, pooled):
                return pooled
        return best


def _figures(screened: Screened) -> str:
    return f"{rate(screened.throughput_rows_per_s)} with p99 {ms(screened.p99_ms)}"
