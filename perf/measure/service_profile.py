"""The service times of a model on one machine: the record of a ramp, and all ramps of a model together."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np

from perf.measure.ramp import Level
from perf.measure.service_burden import Burden, burden
from perf.measure.service_curve import Curve, curve
from perf.measure.service_line import FittedLine, Rise, Size, fit, rise
from perf.measure.service_way import RequestCosts, Way, request_costs, way
from perf.records import file
from perf.records.candidate import Candidate
from triton_batching.machine import Machine
from triton_batching.terminal import Mistake

# An execution after a pause is cold if it takes longer by at least this share.
COLD = 0.05
# Shares at which the quantiles of the noise are kept, for linear interpolation.
SHARES = (0.0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)


@dataclass(frozen=True, kw_only=True)
class ServiceTimes:
    """The record of one ramp: the executions of a model with `instances` and `threads` (None: as configured).

    `sizes` covers the levels in which every instance could be busy (concurrency >= instances), so its times include the
    contention of all instances. `alone_us` is the mean time of one row with nothing else running. `noise` holds
    quantiles, at `SHARES`, of the time of an execution over the mean of its size, from `noise_count` readings. `levels`
    is the ramp. `rare_us` is the median time of one row until computed if requests are rare, and `rare_way_us` the way
    of such a request (both None in older records). `wide` holds levels with several rows in a request: of the largest
    batch, of a quarter of it, and of single sizes next to a step (empty in older records). `again` repeats two levels
    at the end, which shows the drift of the machine meanwhile (empty in older records). `late_us` is how late a
    sleeping thread wakes up under load (None in older records). `rounds` is the number of rounds whose median this is,
    and `drift` the standard deviation of the logarithm of its times from one round to another. `mix` names the sizes of
    the requests, from `--mix`; empty if all had one. `gpu_busy_percent` and `gpu_memory_mib` are means over the ramp,
    None without a GPU.
    """

    KIND: ClassVar[str] = "service_times"
    FORMAT: ClassVar[int] = 1

    model: str
    config_name: str
    config_sha256: str
    model_sha256: str
    machine: Machine
    versions: Mapping[str, str]
    started_at: str
    command: tuple[str, ...]
    instances: int
    threads: int | None
    max_batch_size: int
    sizes: tuple[Size, ...]
    alone_us: float
    noise: tuple[float, ...]
    noise_count: int
    levels: tuple[Level, ...]
    rare_us: float | None = None
    rare_way_us: float | None = None
    wide: tuple[Level, ...] = ()
    again: tuple[Level, ...] = ()
    late_us: float | None = None
    rounds: int = 1
    drift: float = 0.0
    mix: str = ""
    gpu_busy_percent: float | None = None
    gpu_memory_mib: float | None = None

    @property
    def line(self) -> FittedLine:
        """The weighted fit of s(b) = fixed + row x b."""
        return fit(self.sizes)

    @cached_property
    def table(self) -> Curve:
        """The time of each size from 1 to `max_batch_size` while all instances run, until the last answer has left."""
        return curve([*self.sizes, *self._probed(self.sizes, output=True)], self.max_batch_size)

    @property
    def table_us(self) -> Mapping[int, float]:
        """The times of `table` in microseconds."""
        return self.table.times_us

    @cached_property
    def computing(self) -> Curve:
        """The same until it has computed, if no request arrives meanwhile."""
        sizes = self.burden.sizes
        return curve([*sizes, *self._probed(sizes, output=False)], self.max_batch_size)

    @property
    def computed_alone_us(self) -> float:
        """Microseconds of one row until it has computed, with nothing else running."""
        counted = self.levels[0].counted
        return self.alone_us * counted.computing_ns(1) / counted.execution_ns(1)

    @property
    def cold_us(self) -> float:
        """Additional microseconds of an execution after a long pause, when the weights have left the caches."""
        if self.rare_us is None:
            return 0.0
        longer = self.rare_us - self.computed_alone_us
        return longer if longer > COLD * self.computed_alone_us else 0.0

    @cached_property
    def gap(self) -> Rise:
        """Microseconds of an instance from its last answer to its next execution, by rows of an execution.

        From the levels in which requests wait, so that the instance does not. It is no line: with twice as many clients
        as a full batch has rows it is several times as long as with few, and a line makes it too long in between.
        """
        waited = [level for level in self.levels if level.concurrency > 2 * self.instances and level.counted.executions]
        levels = waited or self.levels[-1:]
        return rise(
            np.array([level.counted.rows_per_execution for level in levels]),
            np.array([level.gap_us(self.instances) for level in levels]),
            np.array([level.counted.executions for level in levels], dtype=np.float64),
        )

    @cached_property
    def output(self) -> FittedLine:
        """Microseconds from the end of compute to the last answer, by rows: answers leave one by one."""
        counted = sum((level.counted for level in self.levels[1:]), self.levels[0].counted)
        return fit(
            [
                Size(rows=rows, executions=n, mean_us=counted.batches_output_ns.get(rows, 0) / n / 1e3, error_us=0.0)
                for rows, n in counted.batches.items()
            ]
        )

    @property
    def dispatch_us(self) -> float:
        """Mean microseconds from the queue to an idle instance: the queue time of the lowest level."""
        counted = self.levels[0].counted
        return counted.per_request_us(counted.queue_ns)

    @cached_property
    def way(self) -> Way:
        """The way of a request of perf_analyzer in a closed loop, from the ramp and its wide levels."""
        return way(self.levels, self.wide)

    @cached_property
    def request_costs(self) -> RequestCosts:
        """What each request adds to the times of an execution, beside its rows; 0 in older records."""
        busy = [level for level in self.wide if level.concurrency > 2 * self.instances]
        return request_costs(busy, self.burden, self.output, self.gap, self.instances)

    @cached_property
    def burden(self) -> Burden:
        """What arriving requests add to the executions in progress, and the times without that."""
        errors = {size.rows: size.error_us for size in self.sizes}
        return burden([*self.levels, *self.again], self.instances, self.max_batch_size, errors)

    def _probed(self, sizes: Sequence[Size], *, output: bool) -> list[Size]:
        """The sizes that only a wide level counted, with the costs of as many requests as they have rows."""
        counted, costs = {size.rows for size in sizes}, self.request_costs
        each_us = costs.computing_us + (costs.output_us if output else 0.0)
        probed = []
        for level in self.wide:
            rows, executions = level.rows, level.counted.batches.get(level.rows, 0)
            if level.concurrency == self.instances and executions and rows not in counted:
                took_ns = level.counted.execution_ns(rows) if output else level.counted.computing_ns(rows)
                mean = took_ns / executions / 1e3 + each_us * (rows - 1)
                # Its spread is that of the other sizes.
                probed.append(Size(rows=rows, executions=executions, mean_us=mean, error_us=mean))
        return probed

    @property
    def file_name(self) -> str:
        """The name of the record; another maximum batch size has another name."""
        return f"{self.model}.{self.config_name}.b{self.max_batch_size}.{self.ending}"

    @property
    def ending(self) -> str:
        """The end of the name: instances, threads, and the digest of a mix."""
        threads = "" if self.threads is None else f".t{self.threads}"
        mix = f".mix-{self.mix.rpartition(' ')[2]}" if self.mix else ""
        return f"k{self.instances}{threads}{mix}.json"

    def same(self, other: "ServiceTimes") -> bool:
        """Whether both have the same files, machine, versions, instances and threads."""
        measured = {"started_at", "command", "sizes", "alone_us", "noise", "noise_count", "levels", "rare_us"}
        measured |= {"gpu_busy_percent", "gpu_memory_mib", "rare_way_us", "wide", "again", "late_us", "rounds", "drift"}
        names = [field.name for field in dataclasses.fields(self) if field.name not in measured]
        return all(getattr(self, name) == getattr(other, name) for name in names)


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The ramps of a model, one for each measured pair of instances and threads."""

    ramps: tuple[ServiceTimes, ...]

    def nearest(self, instances: int, threads: int | None) -> ServiceTimes:
        """The ramp with these threads and the nearest instance count; raises `Mistake` if none has these threads."""
        fitting = [ramp for ramp in self.ramps if ramp.threads == threads]
        if not fitting:
            known = ", ".join(sorted({str(ramp.threads) for ramp in self.ramps}))
            raise Mistake(
                f"no service times with {threads} threads (measured: {known}), and threads cannot be interpolated. "
                f"Measure them: triton-batching profile {self.ramps[0].model} --threads {threads}."
            )
        return min(fitting, key=lambda ramp: (abs(ramp.instances - instances), -ramp.instances))

    def of(self, candidate: Candidate) -> ServiceTimes:
        """The ramp behind a candidate's times; a profile of threads as configured fits any number of threads."""
        threads = candidate.threads if any(ramp.threads is not None for ramp in self.ramps) else None
        return self.nearest(candidate.instances, threads)

    def measured(self, instances: int, threads: int | None) -> bool:
        """Whether exactly this pair was measured."""
        return any((ramp.instances, ramp.threads) == (instances, threads) for ramp in self.ramps)


def write(ramp: ServiceTimes, folder: Path) -> Path:
    """Write a record, whole or not at all, and return its path; raises `RecordError`."""
    return file.write(ramp, folder / ramp.file_name)


def load(path: Path) -> ServiceTimes:
    """The record of a file; raises `RecordError`."""
    return file.read(path, ServiceTimes)
