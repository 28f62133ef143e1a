"""The times of a simulated server: its executions, the pauses between them, and the way to and from the client."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from perf.measure.service_curve import BEYOND
from perf.measure.service_line import fit
from perf.measure.service_profile import SHARES, Profile, ServiceTimes
from perf.measure.service_way import Way
from perf.records.candidate import Candidate
from perf.simulate.batcher.request import US, Time
from perf.simulate.constants import STANDARD, Constants

DRAWN = 4096


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Times of one candidate under requests of `rows` rows each, in microseconds.

    Attributes:
        alone_us: time of an execution until it has computed, by rows, while nothing else runs.
        shared_us: the same while all `instances` work.
        dispatch_us: time that an idle instance needs to take a batch.
        burden_us: extra time that an arrival adds to each execution while all instances work.
        cold_us: extra time of an execution after a long pause.
        noise: quantiles of an execution's time over its mean.
        way: the way to and from its execution of the client of the ramp, perf_analyzer in a closed loop.
        ramp: the measured ramp behind these times; it also gives the gap after an execution, in which answers leave.
        constants: what a ramp does not show.
        notes: what was interpolated instead of measured.
    """

    instances: int
    alone_us: Mapping[int, float]
    shared_us: Mapping[int, float]
    dispatch_us: float
    burden_us: float
    cold_us: float
    noise: tuple[float, ...]
    way: Way
    ramp: ServiceTimes
    rows: int = 1
    constants: Constants = STANDARD
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, candidate: Candidate, profile: Profile, *, rows: int = 1, drawn: np.random.Generator | None = None
    ) -> "Costs":
        """Return the costs of a candidate; instance counts without a ramp are interpolated.

        With a generator, the service times and the constants are random ones of those that the profile allows.
        """
        threads = candidate.threads if any(each.threads is not None for each in profile.ramps) else None
        ramp = profile.of(candidate)
        notes = []
        burden = ramp.burden
        curve = ramp.computing
        times_us = curve.drawn(drawn) if drawn else curve.times_us
        # From its own ramp, since more instances may have fewer cores each; the curve has the shape with all at work.
        faster = min(1.0, ramp.computed_alone_us / times_us[1]) if ramp.instances > 1 else 1.0
        shared = _fewer_requests(times_us, ramp, rows)
        alone = {rows: us * faster for rows, us in shared.items()}
        if ramp.instances != candidate.instances:
            factor = contention(profile, threads, candidate.instances) / contention(profile, threads, ramp.instances)
            shared = {rows: us * factor for rows, us in shared.items()}
            notes.append(
                f"{candidate.instances} instances were not profiled: contention {factor:.2f} x that of {ramp.instances}"
            )
        if candidate.max_batch_size > ramp.max_batch_size:
            notes.append(f"batches over {ramp.max_batch_size} rows were not profiled: extrapolated")
            row_us = fit(burden.sizes).row_us * (drawn.uniform(0.0, BEYOND) if drawn else 1.0)
            for table in (alone, shared):
                last = table[max(table)]
                for rows in range(ramp.max_batch_size + 1, candidate.max_batch_size + 1):
                    table[rows] = last + row_us * (rows - ramp.max_batch_size)
        return cls(
            instances=candidate.instances,
            alone_us=alone,
            shared_us=shared,
            dispatch_us=ramp.dispatch_us,
            burden_us=burden.each_us,
            cold_us=ramp.cold_us,
            noise=_with_mean_1(ramp.noise),
            way=ramp.way,
            ramp=ramp,
            rows=rows,
            constants=STANDARD.drawn(drawn) if drawn else STANDARD,
            notes=tuple(notes),
        )

    def stretched(self, factor: float) -> "Costs":
        """Return the same costs with executions `factor` times as long."""
        return replace(
            self,
            alone_us={rows: us * factor for rows, us in self.alone_us.items()},
            shared_us={rows: us * factor for rows, us in self.shared_us.items()},
            burden_us=self.burden_us * factor,
            cold_us=self.cold_us * factor,
        )

    def service(self, seed: Sequence[int]) -> Callable[[int], Time]:
        """Return a function that draws an execution's nanoseconds until its answers leave, by rows."""
        multipliers = self._drawn(seed)
        return lambda rows: round(self.alone_us[rows] * next(multipliers) * US)

    def output_us(self, rows: int) -> float:
        """Return the mean microseconds in which the answers of `rows` rows leave."""
        return max(0.0, self.ramp.output.at(rows) - self.ramp.request_costs.output_us * (rows - rows / self.rows))

    def gap_us(self, rows: int) -> float:
        """Return the mean microseconds between the last answer of `rows` rows and the next execution."""
        return max(0.0, self.ramp.gap.at(rows) - self.ramp.request_costs.gap_us * (rows - rows / self.rows))

    @property
    def late_us(self) -> float:
        """How late a sleeping thread wakes up."""
        return self.constants.late_us if self.ramp.late_us is None else self.ramp.late_us

    def gap(self, seed: Sequence[int]) -> Callable[[int], Time]:
        """Return a function that draws the nanoseconds an instance stays busy after computing, by rows."""
        rng = np.random.default_rng([*seed, 2])
        # As traced: half of the gaps last less than half of their mean, one in twenty three times the mean.
        drawn = itertools.cycle(rng.exponential(1.0, DRAWN).tolist())
        spread = self.constants.pace
        pace = itertools.cycle(rng.uniform(1 - spread, 1 + spread, DRAWN).tolist())
        means = {rows: self.gap_us(rows) for rows in self.alone_us}
        leaving = {rows: self.output_us(rows) for rows in self.alone_us}
        return lambda rows: round((leaving[rows] * next(pace) + means[rows] * next(drawn)) * US)

    def race(self, seed: Sequence[int]) -> Callable[[], bool]:
        """Return a function that draws whether the batcher is faster than an instance that ends an execution."""
        rng = np.random.default_rng([*seed, 5])
        first = itertools.cycle((rng.random(DRAWN) < self.constants.batcher_first).tolist())
        return lambda: next(first)

    def waking(self, idle: Time) -> Time:
        """Return the extra nanoseconds of an execution after a pause of `idle`."""
        return round(self.cold_us * cooled(float(idle) / US, self.constants.cooling_us) * US)

    def burden(self, running: int) -> Time:
        """Return the extra nanoseconds that an arrival adds to each of `running` executions, linear in their number."""
        share = 1.0 if self.instances == 1 else (running - 1) / (self.instances - 1)
        return round(self.burden_us * share * US)

    def slowdown(self, rows: int, running: float) -> float:
        """Return the factor on an execution's time while `running` run, linear between alone and all instances."""
        if self.instances == 1 or running <= 1:
            return 1.0
        factor = self.shared_us[rows] / self.alone_us[rows]
        return max(1.0, 1 + (factor - 1) * (running - 1) / (self.instances - 1))

    def _drawn(self, seed: Sequence[int]) -> Iterator[float]:
        rng = np.random.default_rng(seed)
        return itertools.cycle(np.interp(rng.random(DRAWN), SHARES, self.noise).tolist())


def cooled(pause_us: float, constant_us: float) -> float:
    """Return the share of `cold_us` after a pause: the caches are lost exponentially."""
    return 1 - math.exp(-pause_us / constant_us)


def _fewer_requests(times_us: Mapping[int, float], ramp: ServiceTimes, rows: int) -> dict[int, float]:
    """Take off what each request adds, as the ramp's had one row each and these have `rows`; half a time stays."""
    each_us = ramp.request_costs.computing_us
    return {size: max(us / 2, us - each_us * (size - size / rows)) for size, us in times_us.items()}


def _with_mean_1(noise: Sequence[float]) -> tuple[float, ...]:
    """Scale the quantiles to a mean of 1, so that the mean of an execution stays the table's."""
    mean = float(np.mean(np.interp((np.arange(DRAWN) + 0.5) / DRAWN, SHARES, noise)))
    return tuple(value / mean for value in noise)


def contention(profile: Profile, threads: int | None, instances: int) -> float:
    """Return how much longer executions take with all instances at work than with one: 1 + slope x (instances - 1).

    The slope is a least-squares fit over the ramps with these threads. Each ramp contributes its mean ratio to the ramp
    of the fewest instances, over the sizes that both counted.
    """
    ramps = sorted((ramp for ramp in profile.ramps if ramp.threads == threads), key=lambda ramp: ramp.instances)
    fewest = ramps[0]
    base = 1.0 if fewest.instances == 1 else fewest.table_us[1] / fewest.alone_us
    points = [(ramp.instances - 1, base * _ratio(ramp, fewest) - 1) for ramp in ramps if ramp.instances > 1]
    squares = sum(more * more for more, _ in points)
    slope = sum(more * above for more, above in points) / squares if squares else 1.0
    return max(1.0, 1 + slope * (instances - 1))


def _ratio(ramp: ServiceTimes, other: ServiceTimes) -> float:
    counts = {size.rows: size.executions for size in ramp.sizes}
    both = {size.rows: min(size.executions, counts[size.rows]) for size in other.sizes if size.rows in counts}
    ratios = [ramp.table_us[rows] / other.table_us[rows] for rows in both]
    return float(np.average(ratios, weights=list(both.values())))
