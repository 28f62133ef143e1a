"""What a simulated server of one candidate costs: its executions, what lies between them, and what the client adds."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from perf.candidate import Candidate
from perf.service_profile import SHARES, Profile, ServiceTimes, Way
from perf.simulate.clients import HOPS
from serve.batcher.request import US, Time

DRAWN = 4096


@dataclass(frozen=True, kw_only=True)
class Costs:
    """All in microseconds. `alone_us` and `shared_us` map rows to an execution's time with nothing else running, and
    with all `instances` at work; `dispatch_us` lies before each execution, `tail_us` after its answers; `way` is
    what lies outside the server, as `ramp` saw it. `notes` say what was not measured but interpolated.
    """

    instances: int
    alone_us: Mapping[int, float]
    shared_us: Mapping[int, float]
    dispatch_us: float
    tail_us: float
    noise: tuple[float, ...]
    way: Way
    ramp: ServiceTimes
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, candidate: Candidate, profile: Profile) -> "Costs":
        """Those of a candidate; an instance count without a ramp of its own is interpolated from the others'."""
        threads = candidate.threads if any(one.threads is not None for one in profile.ramps) else None
        ramp = profile.nearest(candidate.instances, threads)
        single = profile.nearest(1, threads)
        notes = []
        alone = dict(single.table_us)
        if single.instances != 1:
            # No ramp of one instance: the shape of the curve is the shared one's, its height that of a lone row.
            alone = {rows: us * single.alone_us / single.table_us[1] for rows, us in single.table_us.items()}
        shared = dict(ramp.table_us) if candidate.instances > 1 else alone
        if ramp.instances != candidate.instances:
            factor = contention(profile, threads, candidate.instances) / contention(profile, threads, ramp.instances)
            shared = {rows: us * factor for rows, us in ramp.table_us.items()}
            notes.append(
                f"{candidate.instances} instances were not profiled: contention {factor:.2f} x that of {ramp.instances}"
            )
        if candidate.max_batch_size > ramp.max_batch_size:
            notes.append(f"batches over {ramp.max_batch_size} rows were not profiled: the fit goes on")
            for table in (alone, shared):
                last, row_us = table[ramp.max_batch_size], ramp.line.row_us
                for rows in range(ramp.max_batch_size + 1, candidate.max_batch_size + 1):
                    table[rows] = last + row_us * (rows - ramp.max_batch_size)
        return cls(
            instances=candidate.instances,
            alone_us=alone,
            shared_us=shared,
            dispatch_us=ramp.dispatch_us,
            tail_us=max(0.0, ramp.gap_us - ramp.dispatch_us),
            noise=ramp.noise,
            way=ramp.way,
            ramp=ramp,
            notes=tuple(notes),
        )

    def service(self, seed: int) -> Callable[[int], Time]:
        """Nanoseconds from when an instance takes a batch until its answers leave; a new noise with each call."""
        multipliers = self._drawn(seed)
        before = self.dispatch_us * US
        alone = {rows: us * US for rows, us in self.alone_us.items()}

        def service(rows: int) -> Time:
            return round(before + alone[rows] * next(multipliers))

        return service

    def gap(self, seed: int) -> Callable[[], Time] | None:
        """Nanoseconds that an instance needs after each execution; None where it needs none."""
        if self.tail_us <= 0:
            return None
        # A few steps of about the same time each, as for the way of a request.
        drawn = np.random.default_rng([seed, 2]).gamma(HOPS, self.tail_us / HOPS, DRAWN) * US
        times = itertools.cycle(np.maximum(1, np.rint(drawn)).astype(np.int64).tolist())
        return lambda: next(times)

    def slowdown(self, rows: int, running: int) -> float:
        """How much longer an execution takes with so many at work: on a line from alone to all instances."""
        if self.instances == 1 or running <= 1:
            return 1.0
        factor = self.shared_us[rows] / self.alone_us[rows]
        return max(1.0, 1 + (factor - 1) * (running - 1) / (self.instances - 1))

    def _drawn(self, seed: int) -> Iterator[float]:
        rng = np.random.default_rng(seed)
        return itertools.cycle(np.interp(rng.random(DRAWN), SHARES, self.noise).tolist())


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
