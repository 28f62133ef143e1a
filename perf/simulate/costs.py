"""What a simulated server of one candidate costs: its executions, what lies between them, and what the client adds."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from perf.batcher.request import US, Time
from perf.measure.service_curve import fit, smoothed
from perf.measure.service_profile import SHARES, Profile, ServiceTimes, Way
from perf.records.candidate import Candidate

DRAWN = 4096
# From the records in `results/pauses` (`perf.studies.pauses`), medians of three models. A lone request of
# perf_analyzer's Poisson arrivals is so many times as long on its way as one of a closed loop:
ASLEEP = 2.4
# A thread that sleeps is woken so late; 50 us are what Linux lets a timer be late.
LATE_US = 120.0
# After so long an execution has lost two thirds of what it can lose of the caches: the fit over the two that lose any.
COOLING_US = 17_000.0


@dataclass(frozen=True, kw_only=True)
class Costs:
    """All in microseconds. `alone_us` and `shared_us` map rows to an execution's time until it has computed, with
    nothing else running, and with all `instances` at work; an idle instance takes a batch `dispatch_us` after it is
    formed, and each execution is followed by a gap in which its answers leave; `burden_us` is what an arrival adds to
    each while all are at work, `cold_us` what a long pause adds to the next; `way` is a request's from and to its
    execution, as `ramp` saw it of a closed loop, or longer. `notes` say what was not measured but interpolated.
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
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, candidate: Candidate, profile: Profile, *, open_loop: bool = False) -> "Costs":
        """Those of a candidate; an instance count without a ramp of its own is interpolated from the others'."""
        threads = candidate.threads if any(one.threads is not None for one in profile.ramps) else None
        ramp = profile.nearest(candidate.instances, threads)
        notes = []
        burden = ramp.burden
        shared = dict(smoothed(burden.sizes, ramp.max_batch_size))
        # Of its own ramp, since more instances may have fewer cores each; the curve's shape is that of all at work.
        faster = min(1.0, ramp.computed_alone_us / shared[1]) if ramp.instances > 1 else 1.0
        alone = {rows: us * faster for rows, us in shared.items()}
        if ramp.instances != candidate.instances:
            factor = contention(profile, threads, candidate.instances) / contention(profile, threads, ramp.instances)
            shared = {rows: us * factor for rows, us in shared.items()}
            notes.append(
                f"{candidate.instances} instances were not profiled: contention {factor:.2f} x that of {ramp.instances}"
            )
        if candidate.max_batch_size > ramp.max_batch_size:
            notes.append(f"batches over {ramp.max_batch_size} rows were not profiled: the fit goes on")
            row_us = fit(burden.sizes).row_us
            for table in (alone, shared):
                last = table[ramp.max_batch_size]
                for rows in range(ramp.max_batch_size + 1, candidate.max_batch_size + 1):
                    table[rows] = last + row_us * (rows - ramp.max_batch_size)
        return cls(
            instances=candidate.instances,
            alone_us=alone,
            shared_us=shared,
            dispatch_us=ramp.dispatch_us,
            burden_us=burden.each_us,
            cold_us=ramp.cold_us,
            noise=_of_mean_1(ramp.noise),
            way=replace(ramp.way, lone_us=ramp.way.lone_us * (ASLEEP if open_loop else 1.0)),
            ramp=ramp,
            notes=tuple(notes),
        )

    def stretched(self, factor: float) -> "Costs":
        """The same with executions that take so many times as long."""
        return replace(
            self,
            alone_us={rows: us * factor for rows, us in self.alone_us.items()},
            shared_us={rows: us * factor for rows, us in self.shared_us.items()},
            burden_us=self.burden_us * factor,
            cold_us=self.cold_us * factor,
        )

    def service(self, seed: Sequence[int]) -> Callable[[int], Time]:
        """Nanoseconds from when an instance takes a batch until its answers leave; a new noise with each call."""
        multipliers = self._drawn(seed)
        return lambda rows: round(self.alone_us[rows] * next(multipliers) * US)

    def output_us(self, rows: int) -> float:
        """Mean microseconds in which the answers of so many rows leave."""
        return self.ramp.output.at(rows)

    def gap(self, seed: Sequence[int]) -> Callable[[int], Time]:
        """Nanoseconds that an instance needs after an execution of so many rows has computed, its answers included."""
        rng = np.random.default_rng([*seed, 2])
        # As traced: half of the gaps are less than half of their mean, a twentieth three times as long. The answers
        # leave at any pace from a tenth to twice the mean, as the other threads of the server let them.
        drawn = itertools.cycle(rng.exponential(1.0, DRAWN).tolist())
        pace = itertools.cycle(rng.uniform(0.1, 1.9, DRAWN).tolist())
        means = {rows: max(0.0, self.ramp.gap.at(rows)) for rows in self.alone_us}
        leaving = {rows: self.output_us(rows) for rows in self.alone_us}
        return lambda rows: round((leaving[rows] * next(pace) + means[rows] * next(drawn)) * US)

    def waking(self, idle: Time) -> Time:
        """Nanoseconds that an execution takes longer after so many of pause: the caches are lost little by little."""
        return round(self.cold_us * cooled(float(idle) / US) * US)

    def burden(self, running: int) -> Time:
        """Nanoseconds by which an arrival makes each of so many executions longer: on a line from none to all."""
        share = 1.0 if self.instances == 1 else (running - 1) / (self.instances - 1)
        return round(self.burden_us * share * US)

    def slowdown(self, rows: int, running: float) -> float:
        """How much longer an execution takes with so many at work: on a line from alone to all instances."""
        if self.instances == 1 or running <= 1:
            return 1.0
        factor = self.shared_us[rows] / self.alone_us[rows]
        return max(1.0, 1 + (factor - 1) * (running - 1) / (self.instances - 1))

    def _drawn(self, seed: Sequence[int]) -> Iterator[float]:
        rng = np.random.default_rng(seed)
        return itertools.cycle(np.interp(rng.random(DRAWN), SHARES, self.noise).tolist())


def cooled(pause_us: float, constant_us: float = COOLING_US) -> float:
    """The share of `cold_us` that a pause costs: the caches are lost little by little."""
    return 1 - math.exp(-pause_us / constant_us)


def _of_mean_1(noise: Sequence[float]) -> tuple[float, ...]:
    """The quantiles scaled to a mean of 1: an execution's mean time is the table's."""
    mean = float(np.mean(np.interp((np.arange(DRAWN) + 0.5) / DRAWN, SHARES, noise)))
    return tuple(value / mean for value in noise)


def contention(profile: Profile, threads: int | None, instances: int) -> float:
    """How much longer executions take with so many instances at work than with one: 1 + slope x (instances - 1).

    The slope is fitted by least squares through 1 over the ramps of these threads, each with its mean ratio to the
    ramp of the fewest instances over the sizes that both counted.
    """
    ramps = sorted((one for one in profile.ramps if one.threads == threads), key=lambda one: one.instances)
    fewest = ramps[0]
    base = 1.0 if fewest.instances == 1 else fewest.table_us[1] / fewest.alone_us
    points = [(one.instances - 1, base * _ratio(one, fewest) - 1) for one in ramps if one.instances > 1]
    squares = sum(more * more for more, _ in points)
    slope = sum(more * above for more, above in points) / squares if squares else 1.0
    return max(1.0, 1 + slope * (instances - 1))


def _ratio(one: ServiceTimes, other: ServiceTimes) -> float:
    counts = {size.rows: size.executions for size in one.sizes}
    both = {size.rows: min(size.executions, counts[size.rows]) for size in other.sizes if size.rows in counts}
    ratios = [one.table_us[rows] / other.table_us[rows] for rows in both]
    return float(np.average(ratios, weights=list(both.values())))
