"""Simulates every candidate under the load, and drops those that do the same as a simpler one."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from perf.records.candidate import Candidate
from perf.records.resource_use import ResourceUse
from perf.records.study import Prediction
from perf.records.traffic import Traffic
from perf.tune.goal import Goal, complexity
from perf.tune.simulator import Correction, Corrections, Simulator

# How many of the best are simulated with more requests, and how many are simulated again after each fit.
NEAR_THE_TOP = 8
SIMULATED_AGAIN = 24
BISECTIONS = 6
# 2,000 random arrivals may miss their rate by this much: 1.5 standard deviations.
DRAWN = 0.966


@dataclass(frozen=True, kw_only=True)
class Screened:
    """A candidate, its simulation, the load at which to measure it, and the corrected figures to expect then."""

    prediction: Prediction
    traffic: Traffic
    throughput_rows_per_s: float
    p99_ms: float

    @property
    def candidate(self) -> Candidate:
        """The configuration."""
        return self.prediction.candidate

    @property
    def offered_rows_per_s(self) -> float | None:
        """Rows per second of an open load, less what chance may take from a random one."""
        return DRAWN * self.traffic.rate_per_s * self.traffic.rows if self.traffic.rate_per_s else None

    @property
    def used(self) -> ResourceUse:
        """Not known: the simulation has no memory and no cores."""
        return ResourceUse()


@dataclass(frozen=True, kw_only=True)
class Screen:
    """A model, a load and a goal. For the objective goodput each candidate gets the highest rate that it carries.

    `coarse` requests show which candidates are far off; the best are simulated with `fine` requests.
    """

    simulator: Simulator
    traffic: Traffic
    goal: Goal
    coarse: int = 1_500
    fine: int = 4_000

    def run(
        self,
        candidates: Iterable[Candidate],
        corrections: Corrections,
        progress: Callable[[str], None] = lambda _: None,
    ) -> list[Screened]:
        """Return the distinct candidates, best first. The first of `candidates` is the default."""
        candidates = list(candidates)
        coarse = []
        for number, candidate in enumerate(candidates, 1):
            progress(f"simulating {number} of {len(candidates)}")
            coarse.append(self.look(candidate, corrections, requests=self.coarse))
        return self._refined(coarse, corrections, candidates[0], progress)

    def again(
        self,
        screened: Sequence[Screened],
        corrections: Corrections,
        default: Candidate,
        progress: Callable[[str], None] = lambda _: None,
    ) -> list[Screened]:
        """Return `screened` with other corrections, best first; only the best are simulated again.

        The others get only the new factors on their results. That decides which are worth a simulation.
        """
        rough = [self._corrected(each.prediction, each.traffic, corrections.of(each.candidate)) for each in screened]
        ranked = self.goal.ranked(rough, default=default)
        best = [each for place, each in enumerate(ranked) if place < SIMULATED_AGAIN or each.candidate == default]
        coarse = []
        for number, each in enumerate(best, 1):
            progress(f"simulating {number} of {len(best)}")
            coarse.append(self.look(each.candidate, corrections, requests=self.coarse))
        again = {each.candidate for each in best}
        return self._refined(
            [*coarse, *(each for each in ranked if each.candidate not in again)], corrections, default, progress
        )

    def _refined(
        self, coarse: Sequence[Screened], corrections: Corrections, default: Candidate, progress: Callable[[str], None]
    ) -> list[Screened]:
        """Return the distinct ones, best first; the best and the default are simulated for longer."""
        ranked = self.goal.ranked(distinct(coarse, default), default=default)
        near = ranked[:NEAR_THE_TOP]
        near += [screened for screened in ranked[NEAR_THE_TOP:] if screened.candidate == default]
        fine = []
        for number, screened in enumerate(near, 1):
            progress(f"simulating the best {number} of {len(near)} for longer")
            fine.append(self.look(screened.candidate, corrections, requests=self.fine))
        rest = [screened for screened in ranked if screened not in near]
        return [*self.goal.ranked(fine, default=default), *rest]

    def look(self, candidate: Candidate, corrections: Corrections, *, requests: int) -> Screened:
        """Simulate one candidate."""
        if self.goal.objective == "goodput":
            return self._highest_rate(candidate, corrections, requests=requests)
        return self._at(candidate, self.traffic, corrections, requests=requests)

    def _at(self, candidate: Candidate, traffic: Traffic, corrections: Corrections, *, requests: int) -> Screened:
        correction = corrections.of(candidate)
        prediction = self.simulator.predict(candidate, traffic, correction, requests=requests)
        return self._corrected(prediction, traffic, correction)

    def _corrected(self, prediction: Prediction, traffic: Traffic, correction: Correction) -> Screened:
        return Screened(
            prediction=prediction,
            traffic=traffic,
            throughput_rows_per_s=prediction.throughput_rows_per_s * correction.throughput,
            p99_ms=prediction.percentiles_ms[99] * correction.p99,
        )

    def _highest_rate(self, candidate: Candidate, corrections: Corrections, *, requests: int) -> Screened:
        """Bisect between 0 and the rate of a closed loop that keeps every instance busy."""
        rows = self.traffic.rows
        clients = max(2, 2 * candidate.instances * max(1, candidate.max_batch_size // rows) + candidate.instances)
        flood = Traffic(pattern="closed", clients=clients, rows=rows, mix=self.traffic.mix)
        flooded = self._at(candidate, flood, corrections, requests=requests)
        low, high = 0.0, flooded.throughput_rows_per_s / rows

        def at(rate: float) -> Screened:
            traffic = replace(self.traffic, rate_per_s=_three_digits(rate))
            return self._at(candidate, traffic, corrections, requests=requests)

        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            low, high = (middle, high) if at(middle).p99_ms <= self.goal.limit_ms else (low, middle)
        # Near the highest rate the queue is so long that chance decides, so the margin applies here too.
        return at((low or high) * (1 - self.goal.margin))


def distinct(screened: Iterable[Screened], default: Candidate) -> list[Screened]:
    """Return, of candidates with equal predictions, the simplest: the load never reaches their difference.

    Of candidates that differ in delay, the shortest and the longest delay stay. The real server is disturbed as no
    simulation is, and then a short delay ends before the batch is full (measured: 979 rows/s with 20 ms, 800 with
    5 ms; both were predicted at 987).
    """
    simplest_first = sorted(screened, key=lambda each: (each.candidate != default, complexity(each.candidate, default)))
    groups: dict[tuple[object, ...], list[Screened]] = {}
    for each in simplest_first:
        prediction = each.prediction
        same = (
            prediction.candidate.instances,
            prediction.candidate.threads,
            prediction.throughput_rows_per_s,
            tuple(prediction.percentiles_ms.items()),
            tuple(prediction.sizes.items()),
        )
        groups.setdefault(same, []).append(each)
    remaining = []
    for group in groups.values():
        delays = [each.candidate.delay_us for each in group]
        ends = [group[0], group[delays.index(max(delays))], group[delays.index(min(delays))]]
        remaining += list({each.candidate: each for each in ends}.values())
    return remaining


def _three_digits(rate: float) -> float:
    """Round to what can be written as a load and read back; a measurement comes no nearer."""
    return float(f"{max(rate, 1e-3):.3g}")
