"""What a model's executions take on one machine: the record of a ramp, and the ramps of one model together."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np

from perf.measure.ramp import Level, before
from perf.measure.service_burden import Burden, burden
from perf.measure.service_curve import FittedLine, Size, fit, line, smoothed
from perf.records import file
from triton_batching.machine import Machine
from triton_batching.terminal import Mistake

# Answers that leave before a request's own, on the mean: a level with fewer is one of lone requests.
TOGETHER = 0.25
# As traced on two models, requests come back about this much as far apart as their mean latency grows: 125 to 170 us
# of 180, 110 to 170 of 175. What is more, they wait together.
APART = 2 / 3
# After a pause an execution is cold if it takes longer by this share at least.
COLD = 0.05
# Shares at which the noise is kept; between them it is on straight lines.
SHARES = (0.0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)


@dataclass(frozen=True, kw_only=True)
class Way:
    """A request's way from and to its execution, in microseconds: both directions, and the client's own part.

    It begins when the execution has computed, since answers then leave one by one, and has the way to the queue in it.
    `lone_us` is that of a request that ran alone, or of the first that comes back of several that ran together; each
    further one is `each_us` behind, since server and client handle them one by one. `turnaround_us` lies between an
    answer and the same client's next request.
    """

    lone_us: float
    each_us: float
    turnaround_us: float

    def mean_us(self, batches: Mapping[int, int]) -> float:
        """Mean over the requests, of one row each, of executions of these sizes and counts."""
        total = sum(
            count * (rows * self.lone_us + self.each_us * rows * (rows - 1) / 2) for rows, count in batches.items()
        )
        return total / max(1, sum(rows * count for rows, count in batches.items()))

    def longer(self, more_us: float) -> "Way":
        """The same with so much more for each request, and none less than 0."""
        return dataclasses.replace(self, lone_us=max(0.0, self.lone_us + more_us))


@dataclass(frozen=True, kw_only=True)
class ServiceTimes:
    """One ramp: the executions of a model with so many `instances` and `threads` (None: the configuration's own).

    `sizes` counts the levels in which every instance could be at work (concurrency >= instances), so its times hold the
    contention of all instances; `alone` is the mean time in microseconds of one row with nothing else running.
    `noise` are quantiles, at `SHARES`, of an execution's time over the mean of its size, from `noise_count` readings
    that saw so few executions that single ones can be told. `levels` is the ramp itself, `rare_us` is the
    median time of one row until computed when requests come rarely (None in records of before it was measured).
    `gpu_busy_percent` and `gpu_memory_mib` are means over the ramp, None without a GPU.
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
    gpu_busy_percent: float | None = None
    gpu_memory_mib: float | None = None

    @property
    def line(self) -> FittedLine:
        """The weighted fit of s(b) = fixed + row x b."""
        return fit(self.sizes)

    @property
    def table_us(self) -> Mapping[int, float]:
        """Microseconds for each size 1 to `max_batch_size` while all instances run; the fit steadies rare sizes."""
        return smoothed(self.sizes, self.max_batch_size)

    @property
    def computed_alone_us(self) -> float:
        """Microseconds of one row until it has computed, with nothing else running."""
        counted = self.levels[0].counted
        return self.alone_us * counted.computing_ns(1) / counted.execution_ns(1)

    @property
    def cold_us(self) -> float:
        """Microseconds that an execution takes longer after a long pause: its weights are no longer in the caches."""
        if self.rare_us is None:
            return 0.0
        longer = self.rare_us - self.computed_alone_us
        return longer if longer > COLD * self.computed_alone_us else 0.0

    @cached_property
    def gap(self) -> FittedLine:
        """Microseconds that an instance needs from its last answer to the next batch, by rows of an execution.

        A line over the levels in which requests wait, so that an instance has nothing else to wait for; where the
        edges of windows make it fall, the mean.
        """
        waited = [level for level in self.levels if level.concurrency > 2 * self.instances and level.counted.executions]
        seen = waited or self.levels[-1:]
        counts = np.array([level.counted.executions for level in seen], dtype=np.float64)
        between = np.array([level.gap_us(self.instances) for level in seen])
        found = line(np.array([level.counted.rows_per_execution for level in seen]), between, counts)
        mean_us = float(np.average(between, weights=counts))
        return found if found.row_us >= 0 else dataclasses.replace(found, fixed_us=mean_us, row_us=0.0)

    @cached_property
    def output(self) -> FittedLine:
        """Microseconds from when an execution has computed to its last answer, by rows: they leave one by one."""
        counted = sum((level.counted for level in self.levels[1:]), self.levels[0].counted)
        return fit(
            [
                Size(rows=rows, executions=n, mean_us=counted.batches_output_ns.get(rows, 0) / n / 1e3, error_us=0.0)
                for rows, n in counted.batches.items()
            ]
        )

    @property
    def dispatch_us(self) -> float:
        """Mean time from queue to instance where both are idle: the queue time of the lowest level."""
        counted = self.levels[0].counted
        return counted.per_request_us(counted.queue_ns)

    @cached_property
    def way(self) -> Way:
        """What the ramp says of a request's way to and from its execution.

        A lone request's is the lowest level's, and so is the turnaround, since in the others what Little's law leaves
        is within the error that a window's edges make. From there the mean over a level grows with the answers before
        a request's own; a level weighs 1 / (mean latency)^2, since its error is a share of that.
        """
        lowest = self.levels[0]
        levels = [level for level in self.levels if before(level.counted) >= TOGETHER and level.measured.mean_us]
        behind = np.array([before(level.counted) for level in levels])
        longer = np.array([level.answered_us for level in levels]) - lowest.answered_us
        weights = np.array([(level.measured.mean_us or np.inf) ** -2 for level in levels])
        slope = float(np.sum(weights * behind * longer) / np.sum(weights * behind**2)) if levels else 0.0
        return Way(
            lone_us=lowest.answered_us,
            each_us=APART * max(0.0, slope),
            turnaround_us=lowest.turnaround_us,
        )

    @cached_property
    def burden(self) -> Burden:
        """What a request that arrives takes from the executions under way, and their times without it."""
        return burden(self.levels, self.instances, self.max_batch_size)

    @property
    def file_name(self) -> str:
        """A name that a person can read; a ramp with another maximum is another record."""
        threads = "" if self.threads is None else f".t{self.threads}"
        return f"{self.model}.{self.config_name}.b{self.max_batch_size}.k{self.instances}{threads}.json"

    def same(self, other: "ServiceTimes") -> bool:
        """Whether this was measured on what `other` is planned for: files, machine, versions, instances, threads."""
        measured = {"started_at", "command", "sizes", "alone_us", "noise", "noise_count", "levels", "rare_us"}
        measured |= {"gpu_busy_percent", "gpu_memory_mib"}
        names = [one.name for one in dataclasses.fields(self) if one.name not in measured]
        return all(getattr(self, name) == getattr(other, name) for name in names)


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The ramps of one model, one for each count of instances and threads that was measured."""

    ramps: tuple[ServiceTimes, ...]

    def nearest(self, instances: int, threads: int | None) -> ServiceTimes:
        """The ramp of these instances and threads, or of the nearest instance count; raises `Mistake` for threads."""
        fitting = [one for one in self.ramps if one.threads == threads]
        if not fitting:
            known = ", ".join(sorted({str(one.threads) for one in self.ramps}))
            raise Mistake(
                f"no service times with {threads} threads (measured: {known}), and threads cannot be interpolated. "
                f"Measure them: python -m perf.measure.service_time {self.ramps[0].model} --threads {threads}."
            )
        return min(fitting, key=lambda one: (abs(one.instances - instances), -one.instances))

    def measured(self, instances: int, threads: int | None) -> bool:
        """Whether there is a ramp of just these, so that nothing is interpolated."""
        return any((one.instances, one.threads) == (instances, threads) for one in self.ramps)


def write(found: ServiceTimes, folder: Path) -> Path:
    """Write one record, whole or not at all, and return its path; raises `RecordError`."""
    return file.write(found, folder / found.file_name)


def load(path: Path) -> ServiceTimes:
    """The record of a file; raises `RecordError`."""
    return file.read(path, ServiceTimes)
