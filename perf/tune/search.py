"""The search: measure the candidates that the simulation likes best, learn from what it got wrong, and stop early.

Successive halving (Jamieson and Talwalkar, AISTATS 2016): short trials of several, longer ones of those that survive,
interleaved with the current configuration. After each round the model's terms are fitted again and every candidate is
simulated anew; the search ends when none is expected to beat the verified best by more than the model's error.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from perf.records.candidate import Candidate
from perf.records.study import AGAINST, FINAL, HALVING, NOISE, Prediction, Trial
from perf.records.traffic import Traffic
from perf.tune.belief import Belief, fitted
from perf.tune.budget import FINAL_POINTS, SURVIVORS, Budget
from perf.tune.goal import Goal
from perf.tune.journal import Journal
from perf.tune.reasons import plainer, worth
from perf.tune.screen import Screen, Screened
from perf.tune.space import Pair
from perf.tune.standing import Standing, p99_ms

ENTRANTS = 3
# What is expected to be worse than the best by more is not looked at first.
HOPELESS = 0.15
# From so many requests on the binomial rule can be asked for a plain yes.
ENOUGH = 1000


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a search found: `chosen` None where nothing met the target, then `closest` is what came nearest to it."""

    chosen: Standing | None
    closest: Standing | None
    standings: tuple[Standing, ...]
    screened: tuple[Screened, ...]
    predictions: tuple[Prediction, ...]
    belief: Belief


@dataclass(kw_only=True)
class Search:
    """One search over `candidates`, the current configuration first."""

    candidates: Sequence[Candidate]
    screen: Screen
    journal: Journal
    budget: Budget
    told: Callable[[str], None] = lambda _: None
    belief: Belief = field(default_factory=Belief)
    screened: list[Screened] = field(default_factory=list)
    traffic: dict[Candidate, Traffic] = field(default_factory=dict)

    @property
    def goal(self) -> Goal:
        """What is looked for."""
        return self.screen.goal

    @property
    def default(self) -> Candidate:
        """The configuration to beat."""
        return self.candidates[0]

    def run(self) -> Outcome:
        """Search to the end or to the end of the budget; everything is in the journal as soon as it is known."""
        self._look()
        predictions = tuple(one.prediction for one in self.screened)
        self.journal.change(predictions=predictions)
        self.journal.say(
            f"simulated {len(self.candidates)} configurations: {len(predictions)} of them differ under this load, "
            f"{sum(map(self.goal.met, self.screened))} are expected to meet {self.goal.limit_ms:.4g} ms"
        )
        self._halve()
        chosen = self._finally()
        standings = self._standings()
        closest = min(standings, key=lambda one: (not self.goal.carries(one), one.p99_ms), default=None)
        return Outcome(
            chosen=chosen,
            closest=None if chosen else closest,
            standings=tuple(standings),
            screened=tuple(self.screened),
            predictions=predictions,
            belief=self.belief,
        )

    def _look(self) -> None:
        self.screened = self.screen.run(self.candidates, self.belief, self.told)

    def _halve(self) -> None:
        """Round after round until nothing is left that could be better, or nothing to pay it with."""
        self._round(1, self._entrants(), self.budget.short_s)
        compared = False
        for number in range(2, self.budget.points):
            contender = next(self._contenders(), None)
            kept = FINAL_POINTS + (0 if compared else SURVIVORS)
            if contender is not None and self.budget.affords(self.journal, 1, self.budget.short_s, kept=kept):
                self.journal.say(f"{contender.candidate} may do {self._figures(contender)}: measured next")
                self._round(number, [contender.candidate], self.budget.short_s)
                continue
            survivors = self._survivors()
            affordable = self.budget.affords(self.journal, len(survivors), self.budget.long_s)
            if compared or not survivors or not affordable:
                self.journal.say(self._end_of_halving(contender))
                return
            self.journal.say(f"{' and '.join(map(str, survivors))} are too close to tell apart: once more, for longer")
            self._round(number, survivors, self.budget.long_s)
            compared = True

    def _end_of_halving(self, contender: Screened | None) -> str:
        if contender is not None:
            return f"{contender.candidate} might be better still, but the budget is spent but for the last comparison"
        if (best := self._best()) is None:
            return "nothing else is expected to meet the target"
        return f"no other is expected to beat {best.candidate} within the model's error, {self._error}"

    @property
    def _error(self) -> str:
        return f"{self.belief.error:.1%}"

    def _round(self, number: int, candidates: Sequence[Candidate], seconds: float) -> None:
        for candidate in candidates:
            if self.budget.affords(self.journal, 1, seconds):
                self._measure(candidate, HALVING, number, seconds)
        self._learn()

    def _measure(self, candidate: Candidate, stage: str, number: int, seconds: float) -> Trial:
        traffic = self.traffic.setdefault(candidate, self._load(candidate))
        trial = self.journal.measure(candidate, traffic, stage=stage, round=number, seconds=seconds)
        verdict = {True: "meets the target", False: "misses the target", None: "too few requests to be sure"}
        self.journal.say(
            f"{candidate} at {trial.load}, {trial.seconds:g} s: {trial.throughput_rows_per_s:.4g} rows/s, "
            f"p99 {p99_ms(trial):.4g} ms, {verdict[trial.passed]}"
        )
        return trial

    def _load(self, candidate: Candidate) -> Traffic:
        known = next((one for one in self.screened if one.candidate == candidate), None)
        return (known or self.screen.look(candidate, self.belief, requests=self.screen.fine)).traffic

    def _learn(self) -> None:
        self.belief = fitted(
            self.journal.study.trials,
            self.screen.simulator,
            rows=self.screen.traffic.rows,
            requests=self.screen.coarse,
            p99_ms=p99_ms,
        )
        terms = "; ".join(
            f"{pair}: contention {one.contention:.2f}, overhead {one.overhead_us:+.0f} us, "
            f"throughput x {one.rate:.3f}, p99 x {one.tail:.3f}"
            for pair, one in self.belief.terms.items()
        )
        self.journal.say(f"fitted again ({terms}); error {self._error}")
        self._look()
        for candidate in list(self.traffic):
            if self.goal.objective == "goodput":
                self.traffic[candidate] = self._load(candidate)

    def _entrants(self) -> list[Candidate]:
        """The default and the best of those that differ in kind and have a chance, so that much is learned at once."""
        best = self.screened[0]
        chances = [one for one in self.screened if self.goal.met(one) and not self.goal.beats(best, one, by=HOPELESS)]
        by_kind: dict[object, Screened] = {}
        for one in chances or self.screened:
            by_kind.setdefault(_kind(one.candidate), one)
        ordered = [*by_kind.values(), *(one for one in self.screened if one not in by_kind.values())]
        first = [one.candidate for one in ordered if one.candidate != self.default][:ENTRANTS]
        return [self.default, *first]

    def _standings(self) -> list[Standing]:
        """What was measured, the best first; trials of one configuration under one load together."""
        groups: dict[tuple[Candidate, str], list[Trial]] = {}
        for trial in self.journal.study.trials:
            groups.setdefault((trial.candidate, trial.load), []).append(trial)
        return self.goal.ranked(
            (Standing.of(trials, self.goal.sla, rows=self.screen.traffic.rows) for trials in groups.values()),
            default=self.default,
        )

    def _verified(self, standing: Standing) -> bool:
        """Whether it may be chosen: with the margin, in no trial beyond the target, and sure where it can be."""
        sure = standing.passed is True or (standing.passed is None and standing.requests < ENOUGH)
        return sure and self.goal.met(standing) and standing.worst_p99_ms <= self.goal.sla.latency_ms

    def _best(self) -> Standing | None:
        return next((one for one in self._standings() if self._verified(one)), None)

    def _contenders(self) -> Iterator[Screened]:
        """Those not yet measured that may beat the best, if the model errs in their favour; the best first."""
        measured = {(one.candidate, one.load) for one in self.journal.study.trials}
        best = self._best()
        for one in self.screened:
            fresh = (one.candidate, str(one.traffic)) not in measured
            if fresh and self.goal.met(one) and (best is None or self.goal.beats(one, best, by=-self.belief.error)):
                yield one

    def _survivors(self) -> list[Candidate]:
        """The best two, where what separates them is within twice the error."""
        by_candidate: dict[Candidate, Standing] = {}
        for one in self._standings():
            if self._verified(one):
                by_candidate.setdefault(one.candidate, one)
        verified = list(by_candidate.values())[:2]
        if len(verified) < 2 or self.goal.beats(verified[0], verified[1], by=2 * self.belief.error):
            return []
        return [one.candidate for one in verified]

    def _finally(self) -> Standing | None:
        """The last comparison, A B A B; where the chosen one fails in it the next best has its turn."""
        for number in range(1, self.budget.points):
            best = self._best()
            if best is None:
                return None
            if number == 1:
                best = self._plain(best)
                self.journal.retire({one.candidate for one in self._standings()} - {best.candidate, self.default})
            # Its load is the one that it was verified under; with goodput the model may have another in mind by now.
            self.traffic[best.candidate] = Traffic.parse(best.trials[0].load, rows=self.screen.traffic.rows)
            plan = self._last_plan(best.candidate, number)
            if not self._affords_last(len(plan)):
                self.journal.say(f"{best.candidate}: chosen without a last comparison, the budget is spent")
                return best
            for stage, turn, candidate in plan:
                self._measure(candidate, stage, turn, self.budget.long_s)
            again = next(one for one in self._standings() if _same(one, best))
            if self._verified(again):
                return again
            self.journal.say(f"{best.candidate}: not chosen, it did not hold in the last comparison")
            self._learn()
            contender = next(self._contenders(), None)
            if contender is not None and self._affords_last(2):
                self._measure(contender.candidate, HALVING, 10 * number, self.budget.long_s)
        return None

    def _plain(self, best: Standing) -> Standing:
        """The best with the current values where others are not better, if that is as good when it is measured."""
        plain = plainer(self.screen, self.belief, best.candidate, self.default)
        measured = any(one.candidate == plain for one in self._standings())
        if not measured and self.budget.affords(self.journal, 1, self.budget.long_s):
            self.journal.say(f"{plain} changes less and is expected to do the same: measured too")
            self._measure(plain, HALVING, self.budget.points, self.budget.long_s)
        for one in self._standings():
            if one.candidate == plain and self._verified(one) and not worth(self.goal, best, one, self.belief.error):
                return one
        return best

    def _affords_last(self, points: int) -> bool:
        return self.budget.affords(self.journal, points, self.budget.long_s, kept=0)

    def _last_plan(self, chosen: Candidate, number: int) -> list[tuple[str, int, Candidate]]:
        if chosen == self.default:
            return [(FINAL, number, chosen), (NOISE, number, chosen)]
        if number > 1:
            return [(FINAL, 10 * number, chosen)]
        plan = [(AGAINST, 1, self.default), (FINAL, 1, chosen), (NOISE, 1, self.default), (FINAL, 2, chosen)]
        more = [*plan, (NOISE, 2, self.default), (FINAL, 3, chosen)]
        return more if self._affords_last(len(more)) else plan

    def _figures(self, one: Screened) -> str:
        return f"{one.throughput_rows_per_s:.4g} rows/s with p99 {one.p99_ms:.4g} ms"


def _kind(candidate: Candidate) -> object:
    return Pair.of(candidate), candidate.max_batch_size, candidate.delay_us > 0, bool(candidate.preferred)


def _same(one: Standing, other: Standing) -> bool:
    return (one.candidate, one.trials[0].load) == (other.candidate, other.trials[0].load)
