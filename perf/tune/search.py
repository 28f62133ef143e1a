"""The search: measure the candidates with the best predictions, correct the predictions, and stop early.

Successive halving (Jamieson and Talwalkar, AISTATS 2016): short trials of several candidates, longer ones of the
survivors, interleaved with the current configuration. After each round the corrections are fitted again and every
candidate is simulated anew. The search ends when no candidate should beat the best by more than the model's error.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from perf.records.candidate import Candidate
from perf.records.study import AGAINST, FINAL, HALVING, NOISE, Prediction, Trial
from perf.records.traffic import Traffic
from perf.tune.goal import Goal
from perf.tune.pooled_trials import PooledTrials, p99_ms
from perf.tune.reasons import is_better, simplified
from perf.tune.screening import Screen, Screened
from perf.tune.simulator import Corrections, fit
from perf.tune.space import Parallelism
from perf.tune.study_log import FINAL_POINTS, SURVIVORS, Budget, StudyLog

ENTRANTS = 3
# A candidate expected to be worse than the best by more than this is not in the first round.
HOPELESS = 0.15
# From this many requests on the binomial rule must say yes.
ENOUGH = 1000


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """The chosen configuration; if none met the target, `closest` is the one nearest to it. Both with their trials."""

    chosen: PooledTrials | None
    closest: PooledTrials | None
    measured: tuple[PooledTrials, ...]
    screened: tuple[Screened, ...]
    predictions: tuple[Prediction, ...]
    corrections: Corrections


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

    @property
    def goal(self) -> Goal:
        """The objective and the target."""
        return self.screen.goal

    @property
    def default(self) -> Candidate:
        """The current configuration."""
        return self.candidates[0]

    def run(self) -> SearchResult:
        """Search until the end or until the budget is spent; each trial is on disk before the next."""
        self._simulate()
        predictions = tuple(screened.prediction for screened in self.screened)
        self.log.change(predictions=predictions)
        self.log.add_step(
            f"simulated {len(self.candidates)} configurations: {len(predictions)} of them differ under this load, "
            f"{sum(map(self.goal.met, self.screened))} are expected to meet {self.goal.limit_ms:.4g} ms"
        )
        self._halve()
        chosen = self._compare()
        measured = self._measured()
        closest = min(measured, key=lambda pooled: (not self.goal.carries(pooled), pooled.p99_ms), default=None)
        return SearchResult(
            chosen=chosen,
            closest=None if chosen else closest,
            measured=tuple(measured),
            screened=tuple(self.screened),
            predictions=predictions,
            corrections=self.corrections,
        )

    def _simulate(self) -> None:
        self.screened = self.screen.run(self.candidates, self.corrections, self.progress)

    def _halve(self) -> None:
        """Measure round after round until no candidate may be better or the budget is spent."""
        self._round(1, self._entrants(), self.budget.short_s)
        compared = False
        for number in range(2, self.budget.points):
            contender = next(self._contenders(), None)
            reserve = FINAL_POINTS + (0 if compared else SURVIVORS)
            if contender is not None and self.budget.affords(self.log, 1, self.budget.short_s, reserve=reserve):
                self.log.add_step(f"{contender.candidate} may do {_figures(contender)}: measured next")
                self._round(number, [contender.candidate], self.budget.short_s)
                continue
            survivors = self._survivors()
            affordable = self.budget.affords(self.log, len(survivors), self.budget.long_s)
            if compared or not survivors or not affordable:
                self.log.add_step(self._end_of_halving(contender))
                return
            names = " and ".join(map(str, survivors))
            self.log.add_step(f"{names} are too close to tell apart: measured again, for longer")
            self._round(number, survivors, self.budget.long_s)
            compared = True

    def _end_of_halving(self, contender: Screened | None) -> str:
        if contender is not None:
            return f"{contender.candidate} might be better, but the rest of the budget is for the last comparison"
        if (best := self._best()) is None:
            return "nothing else is expected to meet the target"
        return f"no other is expected to beat {best.candidate} by more than the model's error, {self._error}"

    @property
    def _error(self) -> str:
        return f"{self.corrections.error:.1%}"

    def _round(self, number: int, candidates: Sequence[Candidate], seconds: float) -> None:
        for candidate in candidates:
            if self.budget.affords(self.log, 1, seconds):
                self._measure(candidate, HALVING, number, seconds)
        self._fit()

    def _measure(self, candidate: Candidate, stage: str, number: int, seconds: float) -> Trial:
        traffic = self.traffic.setdefault(candidate, self._load(candidate))
        trial = self.log.measure(candidate, traffic, stage=stage, round=number, seconds=seconds)
        verdict = {True: "meets the target", False: "misses the target", None: "too few requests to be sure"}
        self.log.add_step(
            f"{candidate} at {trial.load}, {trial.seconds:g} s: {trial.throughput_rows_per_s:.4g} rows/s, "
            f"p99 {p99_ms(trial):.4g} ms, {verdict[trial.passed]}"
        )
        return trial

    def _load(self, candidate: Candidate) -> Traffic:
        screened = next((each for each in self.screened if each.candidate == candidate), None)
        return (screened or self.screen.look(candidate, self.corrections, requests=self.screen.fine)).traffic

    def _fit(self) -> None:
        """Fit the corrections to all trials and simulate every candidate again."""
        self.corrections = fit(
            self.log.study.trials,
            self.screen.simulator,
            rows=self.screen.traffic.rows,
            requests=self.screen.coarse,
            p99_ms=p99_ms,
        )
        terms = "; ".join(
            f"{parallelism}: contention {correction.contention:.2f}, overhead {correction.overhead_us:+.0f} us, "
            f"throughput x {correction.throughput:.3f}, p99 x {correction.p99:.3f}"
            for parallelism, correction in self.corrections.by_parallelism.items()
        )
        self.log.add_step(f"fitted again ({terms}); error {self._error}")
        self._simulate()
        for candidate in list(self.traffic):
            if self.goal.objective == "goodput":
                self.traffic[candidate] = self._load(candidate)

    def _entrants(self) -> list[Candidate]:
        """Return the default and the best promising candidates of different kinds, from which most is learned."""
        best = self.screened[0]
        promising = [
            screened
            for screened in self.screened
            if self.goal.met(screened) and not self.goal.beats(best, screened, by=HOPELESS)
        ]
        by_kind: dict[object, Screened] = {}
        for screened in promising or self.screened:
            by_kind.setdefault(_kind(screened.candidate), screened)
        ordered = [*by_kind.values(), *(each for each in self.screened if each not in by_kind.values())]
        first = [each.candidate for each in ordered if each.candidate != self.default][:ENTRANTS]
        return [self.default, *first]

    def _measured(self) -> list[PooledTrials]:
        """Return what was measured, best first; trials of one configuration under one load are pooled."""
        groups: dict[tuple[Candidate, str], list[Trial]] = {}
        for trial in self.log.study.trials:
            groups.setdefault((trial.candidate, trial.load), []).append(trial)
        rows = self.screen.traffic.rows
        pooled = (PooledTrials.of(trials, self.goal.target, rows=rows) for trials in groups.values())
        return self.goal.ranked(pooled, default=self.default)

    def _verified(self, pooled: PooledTrials) -> bool:
        """Return whether it may be chosen: within the margin, within the target in every trial, and by enough."""
        sure = pooled.passed is True or (pooled.passed is None and pooled.requests < ENOUGH)
        return sure and self.goal.met(pooled) and pooled.worst_p99_ms <= self.goal.target.latency_ms

    def _best(self) -> PooledTrials | None:
        return next((pooled for pooled in self._measured() if self._verified(pooled)), None)

    def _contenders(self) -> Iterator[Screened]:
        """Yield candidates not yet measured that could beat the best within the model's error, best first."""
        measured = {(trial.candidate, trial.load) for trial in self.log.study.trials}
        best, error = self._best(), self.corrections.error
        for screened in self.screened:
            new = (screened.candidate, str(screened.traffic)) not in measured
            if new and self.goal.met(screened) and (best is None or self.goal.beats(screened, best, by=-error)):
                yield screened

    def _survivors(self) -> list[Candidate]:
        """Return the best two if they differ by less than twice the error, else none."""
        by_candidate: dict[Candidate, PooledTrials] = {}
        for pooled in self._measured():
            if self._verified(pooled):
                by_candidate.setdefault(pooled.candidate, pooled)
        verified = list(by_candidate.values())[:2]
        if len(verified) < 2 or self.goal.beats(verified[0], verified[1], by=2 * self.corrections.error):
            return []
        return [pooled.candidate for pooled in verified]

    def _compare(self) -> PooledTrials | None:
        """Run the last comparison, A B A B. If the choice fails in it, the next best is measured."""
        for number in range(1, self.budget.points):
            best = self._best()
            if best is None:
                return None
            if number == 1:
                best = self._simplest(best)
                measured = {pooled.candidate for pooled in self._measured()}
                self.log.retire(measured - {best.candidate, self.default})
            # The load under which it was verified; for goodput the model may predict another rate by now.
            self.traffic[best.candidate] = Traffic.parse(best.trials[0].load, rows=self.screen.traffic.rows)
            plan = self._last_plan(best.candidate, number)
            if not self._affords_last(len(plan)):
                self.log.add_step(f"{best.candidate}: chosen without a last comparison, the budget is spent")
                return best
            for stage, turn, candidate in plan:
                self._measure(candidate, stage, turn, self.budget.long_s)
            again = next(pooled for pooled in self._measured() if _same(pooled, best))
            if self._verified(again):
                return again
            self.log.add_step(f"{best.candidate}: not chosen, it missed the target in the last comparison")
            self._fit()
            contender = next(self._contenders(), None)
            if contender is not None and self._affords_last(2):
                self._measure(contender.candidate, HALVING, 10 * number, self.budget.long_s)
        return None

    def _simplest(self, best: PooledTrials) -> PooledTrials:
        """Return the best with current values wherever its own are no better, if its trials confirm that."""
        simple = simplified(self.screen, self.corrections, best.candidate, self.default)
        known = any(pooled.candidate == simple for pooled in self._measured())
        if not known and self.budget.affords(self.log, 1, self.budget.long_s):
            self.log.add_step(f"{simple} changes less and is expected to do the same: measured too")
            self._measure(simple, HALVING, self.budget.points, self.budget.long_s)
        for pooled in self._measured():
            equal = not is_better(self.goal, best, pooled, self.corrections.error)
            if pooled.candidate == simple and self._verified(pooled) and equal:
                return pooled
        return best

    def _affords_last(self, points: int) -> bool:
        return self.budget.affords(self.log, points, self.budget.long_s, reserve=0)

    def _last_plan(self, chosen: Candidate, number: int) -> list[tuple[str, int, Candidate]]:
        if chosen == self.default:
            return [(FINAL, number, chosen), (NOISE, number, chosen)]
        if number > 1:
            return [(FINAL, 10 * number, chosen)]
        plan = [(AGAINST, 1, self.default), (FINAL, 1, chosen), (NOISE, 1, self.default), (FINAL, 2, chosen)]
        more = [*plan, (NOISE, 2, self.default), (FINAL, 3, chosen)]
        return more if self._affords_last(len(more)) else plan


def _figures(screened: Screened) -> str:
    return f"{screened.throughput_rows_per_s:.4g} rows/s with p99 {screened.p99_ms:.4g} ms"


def _kind(candidate: Candidate) -> object:
    return Parallelism.of(candidate), candidate.max_batch_size, candidate.delay_us > 0, bool(candidate.preferred)


def _same(pooled: PooledTrials, other: PooledTrials) -> bool:
    return (pooled.candidate, pooled.trials[0].load) == (other.candidate, other.trials[0].load)
