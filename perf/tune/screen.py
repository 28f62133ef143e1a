"""Simulates every candidate under the load, and leaves out those that differ where the load never reaches."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from perf.records.candidate import Candidate
from perf.records.study import Prediction
from perf.records.traffic import Traffic
from perf.tune.belief import Belief, Expected, Simulator
from perf.tune.goal import Goal, simplicity

# Of those that are simulated again with more requests.
NEAR_THE_TOP = 10
BISECTIONS = 6
# What 2,000 arrivals that are drawn at random may be off their rate: 1.5 standard deviations.
DRAWN = 0.966


@dataclass(frozen=True, kw_only=True)
class Screened:
    """One candidate under the load at which it is to be measured: what the simulation says, and what is expected."""

    prediction: Prediction
    expected: Expected
    traffic: Traffic

    @property
    def candidate(self) -> Candidate:
        """Of which configuration."""
        return self.prediction.candidate

    @property
    def throughput_rows_per_s(self) -> float:
        """As expected."""
        return self.expected.throughput_rows_per_s

    @property
    def p99_ms(self) -> float:
        """As expected."""
        return self.expected.p99_ms

    @property
    def offered_rows_per_s(self) -> float | None:
        """What is due, less what chance may take from a load that is drawn."""
        return DRAWN * self.traffic.rate_per_s * self.traffic.rows if self.traffic.rate_per_s else None


@dataclass(frozen=True, kw_only=True)
class Screen:
    """A model, a load and a goal. With the objective goodput each candidate has the highest rate that it can bear.

    `coarse` requests are enough to see which candidates are far off; the others are simulated with `fine` ones.
    """

    simulator: Simulator
    traffic: Traffic
    goal: Goal
    coarse: int = 1_500
    fine: int = 6_000
    _known: dict[tuple[object, ...], Prediction] = field(default_factory=dict, repr=False)

    def run(
        self, candidates: Iterable[Candidate], belief: Belief, told: Callable[[str], None] = lambda _: None
    ) -> list[Screened]:
        """All of them without duplicates, the best first; the best of them simulated longer."""
        known = list(candidates)
        default = known[0]
        coarse = []
        for number, candidate in enumerate(known, 1):
            told(f"simulating {number} of {len(known)}")
            coarse.append(self.look(candidate, belief, requests=self.coarse))
        unique = distinct(coarse, default)
        ranked = self.goal.ranked(unique, default=default)
        near = ranked[:NEAR_THE_TOP]
        near += [one for one in ranked[NEAR_THE_TOP:] if one.candidate == default]
        fine = []
        for number, one in enumerate(near, 1):
            told(f"simulating the best {number} of {len(near)} for longer")
            fine.append(self.look(one.candidate, belief, requests=self.fine))
        rest = [one for one in ranked if one not in near]
        return [*self.goal.ranked(fine, default=default), *rest]

    def look(self, candidate: Candidate, belief: Belief, *, requests: int) -> Screened:
        """One candidate."""
        if self.goal.objective == "goodput":
            return self._highest_rate(candidate, belief, requests=requests)
        return self._at(candidate, self.traffic, belief, requests=requests)

    def _at(self, candidate: Candidate, traffic: Traffic, belief: Belief, *, requests: int) -> Screened:
        terms = belief.of(candidate)
        key = candidate, str(traffic), terms.contention, terms.overhead_us, requests
        if key not in self._known:
            self._known[key] = self.simulator.predict(candidate, traffic, terms, requests=requests)
        prediction = self._known[key]
        return Screened(prediction=prediction, expected=belief.expect(prediction), traffic=traffic)

    def _highest_rate(self, candidate: Candidate, belief: Belief, *, requests: int) -> Screened:
        """Bisection between 0 and what a closed loop that keeps every instance full reaches."""
        rows = self.traffic.rows
        clients = max(2, 2 * candidate.instances * max(1, candidate.max_batch_size // rows) + candidate.instances)
        flooded = self._at(candidate, Traffic(pattern="closed", clients=clients, rows=rows), belief, requests=requests)
        low, high = 0.0, flooded.throughput_rows_per_s / rows

        def at(rate: float) -> Screened:
            return self._at(candidate, replace(self.traffic, rate_per_s=_readable(rate)), belief, requests=requests)

        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            low, high = (middle, high) if at(middle).p99_ms <= self.goal.limit_ms else (low, middle)
        # Near its highest rate a queue is so long that chance decides; the margin is kept here too.
        return at((low or high) * (1 - self.goal.margin))


def distinct(screened: Iterable[Screened], default: Candidate) -> list[Screened]:
    """Of candidates that did the very same, the simplest one: they differ only where the load never reaches.

    Where they differ in how long they wait, the shortest and the longest wait stay: a server is disturbed as no
    simulation is, and then a short wait ends before the batch is full (measured: 979 rows/s with 20 ms, 800 with 5 ms,
    where both should do 987).
    """
    groups: dict[tuple[object, ...], list[Screened]] = {}
    for one in sorted(screened, key=lambda one: (one.candidate != default, simplicity(one.candidate, default))):
        prediction = one.prediction
        same = (
            prediction.candidate.instances,
            prediction.candidate.threads,
            prediction.throughput_rows_per_s,
            tuple(prediction.percentiles_ms.items()),
            tuple(prediction.sizes.items()),
        )
        groups.setdefault(same, []).append(one)
    found = []
    for group in groups.values():
        delays = [one.candidate.delay_us for one in group]
        ends = [group[0], group[delays.index(max(delays))], group[delays.index(min(delays))]]
        found += list({one.candidate: one for one in ends}.values())
    return found


def _readable(rate: float) -> float:
    """A rate that can be written and read back as a load; three digits, as near as a measurement comes to it."""
    return float(f"{max(rate, 1e-3):.3g}")
