"""Simulates days of a pool that scales, many targets side by side, in steps of a second."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from perf.scale.curve import ReplicaCurve, Values
from perf.scale.flow import Flow
from serve.cluster.scaling import SYNC_S, History, Reading, Scaling, scale

# Start times that are drawn for a seed; they are used in turn.
DRAWN = 4096
NO_STEP = np.iinfo(np.int32).max


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What happens to replicas, and how they are seen.

    start_s: the mean time from the decision to a ready replica; start_cv: its coefficient of variation.
    mtbf_s: the mean time between failures of one replica; 0 for none. A failed replica is started again.
    sync_s: seconds between decisions. scrape_s: seconds between readings of a gauge, such as pending requests.
    """

    start_s: float = 30.0
    start_cv: float = 0.3
    mtbf_s: float = 0.0
    sync_s: float = SYNC_S
    scrape_s: float = 5.0

    def start_times(self, seed: int) -> Values:
        """Drawn start times, gamma distributed."""
        if not self.start_cv or not self.start_s:
            return np.full(DRAWN, self.start_s)
        shape = self.start_cv**-2
        return np.random.default_rng([seed, 1]).gamma(shape, self.start_s / shape, DRAWN)


@dataclass(frozen=True, kw_only=True)
class Run:
    """One day under one rule. day: its index among the days; seed: of its failures, start times and readings."""

    scaling: Scaling
    day: int
    seed: int


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of the requests of a run, and what it cost.

    in_flight: requests that were not answered when the day ended. replica_hours count starting replicas too.
    """

    requests: float
    in_time: float
    late: float
    refused: float
    in_flight: float
    replica_hours: float
    most_replicas: int
    failures: int

    @property
    def share(self) -> float:
        """The share of the requests that were answered in time."""
        return self.in_time / self.requests if self.requests else 1.0


class Fleet:
    """The pools of all runs, each an entry of the arrays: `wanted` replicas, those that start too, and `ready` ones."""

    def __init__(
        self,
        curve: ReplicaCurve,
        days: Sequence[Values],
        runs: Sequence[Run],
        conditions: Conditions,
        *,
        step_s: float = 1.0,
    ) -> None:
        """`days` are rates per second in steps of `step_s`, all of one length."""
        self._flow, self._runs, self._conditions, self._step_s = Flow.of(curve, step_s), runs, conditions, step_s
        self._rates, self._day_of = np.stack(days, axis=1), np.array([run.day for run in runs])
        first = np.ceil(self._rates[0, self._day_of] / curve.capacity.rate_per_s).astype(np.int64)
        limits = [(run.scaling.least, run.scaling.most) for run in runs]
        self.wanted = np.array([min(max(n, low), high) for n, (low, high) in zip(first, limits, strict=True)])
        self.ready = self.wanted.copy()
        self._due: list[dict[int, int]] = [{} for _ in runs]
        self._next_due = np.full(len(runs), NO_STEP)
        self._histories = [History()] * len(runs)
        starts = {run.seed: conditions.start_times(run.seed) for run in runs}
        self._starts, self._started = [starts[run.seed] for run in runs], [0] * len(runs)
        seeds = sorted(starts)
        self._luck_of = np.array([seeds.index(run.seed) for run in runs])
        self._luck = [np.random.default_rng([seed, 2]) for seed in seeds]
        self._noise = [np.random.default_rng([seed, 3]) for seed in seeds]
        self.pending = np.zeros(len(runs))
        self._totals = np.zeros((4, len(runs)))  # requests, in time, late, refused
        self._seen = np.zeros(len(runs))  # pending requests per replica, summed over the steps since the last decision
        self._replica_steps, self._most = np.zeros(len(runs)), self.wanted.copy()
        self._failures = np.zeros(len(runs), dtype=np.int64)

    def run(self, tick: Callable[[], None] = lambda: None) -> list[Outcome]:
        """Simulate every step; `tick` is called after each decision of all runs."""
        between = max(1, round(self._conditions.sync_s / self._step_s))
        for step, rates in enumerate(self._rates):
            self._start_and_fail(step)
            self._serve(rates[self._day_of])
            if (step + 1) % between == 0:
                self._decide(step, between)
                tick()
        return [self._outcome(number) for number in range(len(self._runs))]

    def _serve(self, rates: Values) -> None:
        """One step of all requests."""
        flow, up = self._flow, self.ready > 0
        ready = np.maximum(1, self.ready)
        arrived = rates * self._step_s
        let_in = np.where(up, arrived, 0.0)  # the door refuses what no replica can take
        each = flow.after((self.pending + let_in) / ready)
        excess = np.where(up, np.maximum(0.0, each - flow.most_pending), 0.0)
        each = np.where(up, each - excess, self.pending)
        refused = arrived - let_in + excess * ready
        accepted = np.maximum(0.0, let_in - excess * ready)
        in_time = accepted * flow.share_in_time(each)
        # What is refused beyond the arrivals of this step came earlier, and was counted as late then.
        late = arrived - in_time - refused
        self._totals += (arrived, in_time, late, refused)
        self.pending = np.where(up, each * ready, self.pending)
        self._seen += each
        self._replica_steps += self.wanted

    def _start_and_fail(self, step: int) -> None:
        for number in np.flatnonzero(self._next_due <= step):
            due = self._due[number]
            self.ready[number] += sum(due.pop(at) for at in [at for at in due if at <= step])
            self._next_due[number] = min(due, default=NO_STEP)
        if self._conditions.mtbf_s:
            luck = np.array([each.random() for each in self._luck])[self._luck_of]
            failed = np.floor(self.ready * self._step_s / self._conditions.mtbf_s + luck).astype(np.int64)
            for number in np.flatnonzero(failed):
                count = min(int(failed[number]), int(self.ready[number]))
                self.ready[number] -= count  # the door sends their requests to others
                self._failures[number] += count
                self._start(int(number), count, step)

    def _decide(self, step: int, steps: int) -> None:
        signals = self._signals(steps)
        now_s = (step + 1) * self._step_s
        for number, run in enumerate(self._runs):
            if run.scaling.least == run.scaling.most:
                continue
            current = int(self.wanted[number])
            reading = Reading(replicas=current, ready=int(self.ready[number]), signal=signals[number])
            wanted, self._histories[number] = scale(run.scaling, reading, self._histories[number], now_s)
            if wanted > current:
                self._start(number, wanted - current, step)
            elif wanted < current:
                self._stop(number, current - wanted)
            self.wanted[number] = wanted
        np.maximum(self._most, self.wanted, out=self._most)

    def _signals(self, steps: int) -> list[float]:
        """The pending requests of each run since the last decision, as they are seen, and a new start of the sums."""
        noise = np.array([rng.standard_normal() for rng in self._noise])[self._luck_of]
        mean = self._seen / steps
        # A gauge is read now and then, and the requests in flight vary as those of a Poisson process.
        readings = max(1.0, steps * self._step_s / self._conditions.scrape_s) * np.maximum(1, self.ready)
        seen = np.maximum(0.0, mean + noise * np.sqrt(mean / readings))
        self._seen = np.zeros_like(self._seen)
        return [float(value) for value in seen]

    def _start(self, number: int, count: int, step: int) -> None:
        due, starts = self._due[number], self._starts[number]
        for _ in range(count):
            at = step + max(1, math.ceil(starts[self._started[number] % DRAWN] / self._step_s))
            self._started[number] += 1
            due[at] = due.get(at, 0) + 1
        self._next_due[number] = min(due)

    def _stop(self, number: int, count: int) -> None:
        """Stop replicas: first those that start, the latest before the others."""
        due = self._due[number]
        for at in sorted(due, reverse=True):
            stopped = min(count, due[at])
            due[at] -= stopped
            count -= stopped
            if not due[at]:
                del due[at]
        self._next_due[number] = min(due, default=NO_STEP)
        self.ready[number] -= count

    def _outcome(self, number: int) -> Outcome:
        requests, in_time, late, refused = self._totals[:, number].tolist()
        return Outcome(
            requests=requests,
            in_time=in_time,
            late=late,
            refused=refused,
            in_flight=float(self.pending[number]),
            replica_hours=float(self._replica_steps[number]) * self._step_s / 3600,
            most_replicas=int(self._most[number]),
            failures=int(self._failures[number]),
        )
