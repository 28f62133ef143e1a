"""The service times of a model on one machine: the record of a ramp, and all ramps of a model together."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np

from perf.measure.ramp import Level, before
from perf.measure.service_curve import Burden, FittedLine, Size, burden, fit, line, smoothed
from perf.records import file
from triton_batching.machine import Machine
from triton_batching.terminal import Mistake

# A level with fewer answers before a request's own, on average, is one of lone requests.
TOGETHER = 0.25
# Each further request of a batch adds to the batch's mean latency. This share of it lies between two answers, the rest
# delays all of them; traced on two models: 125 to 170 us of 180, and 110 to 170 us of 175.
APART = 2 / 3
# An execution after a pause is cold if it takes longer by at least this share.
COLD = 0.05
# Shares at which the quantiles of the noise are kept, for linear interpolation.
SHARES = (0.0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)


@dataclass(frozen=True, kw_only=True)
class Way:
    """The time of a request outside queue and compute, in microseconds: client, network, and the way of the answer.

    `lone_us` is that of a request that ran alone, and of the first answer of a batch. Each further answer of the batch
    is `each_us` later, since server and client handle answers one by one. `turnaround_us` is the time between an answer
    and the next request of the same client.
    """

    lone_us: float
    each_us: float
    turnaround_us: float

    def mean_us(self, batches: Mapping[int, int]) -> float:
        """Mean over the requests, of one row each, of executions with these batch sizes and counts."""
        total = sum(
            count * (rows * self.lone_us + self.each_us * rows * (rows - 1) / 2) for rows, count in batches.items()
        )
        return total / max(1, sum(rows * count for rows, count in batches.items()))

    def longer(self, more_us: float) -> "Way":
        """The same with `more_us` more for each request, and never below 0."""
        return dataclasses.replace(self, lone_us=max(0.0, self.lone_us + more_us))


@dataclass(frozen=True, kw_only=True)
class ServiceTimes:
    """The record of one ramp: the executions of a model with `instances` and `threads` (None: as configured).

    `sizes` covers the levels in which every instance could be busy (concurrency >= instances), so its times include the
    contention of all instances. `alone_us` is the mean time of one row with nothing else running. `noise` holds
    quantiles, at `SHARES`, of the time of an execution over the mean of its size, from `noise_count` readings.
    `levels` is the ramp. `rare_us` is the median time of one row until computed if requests are rare (None in older
    records). `gpu_busy_percent` and `gpu_memory_mib` are means over the ramp, None without a GPU.
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
        """Microseconds of each size from 1 to `max_batch_size` while all instances run, smoothed."""
        return smoothed(self.sizes, self.max_batch_size)

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
    def gap(self) -> FittedLine:
        """Microseconds of an instance from its last answer to its next execution, by rows of an execution.

        Fitted over the levels in which requests wait, so that the instance does not. If the line falls, which is an
        effect of the ends of windows, the mean.
        """
        waited = [level for level in self.levels if level.concurrency > 2 * self.instances and level.counted.executions]
        levels = waited or self.levels[-1:]
        counts = np.array([level.counted.executions for level in levels], dtype=np.float64)
        between = np.array([level.gap_us(self.instances) for level in levels])
        gap = line(np.array([level.counted.rows_per_execution for level in levels]), between, counts)
        mean_us = float(np.average(between, weights=counts))
        return gap if gap.row_us >= 0 else dataclasses.replace(gap, fixed_us=mean_us, row_us=0.0)

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
        """The way of a request, from the ramp.

        `lone_us` and the turnaround come from the lowest level; in the others the turnaround is within the error at the
        ends of a window. The mean of a level grows with the answers before a request's own. A level weighs
        1 / (mean latency)^2, since its error is proportional to the latency.
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
        """What arriving requests add to the executions in progress, and the times without that."""
        return burden(self.levels, self.instances, self.max_batch_size)

    @property
    def file_name(self) -> str:
        """The name of the record; another maximum batch size has another name."""
        threads = "" if self.threads is None else f".t{self.threads}"
        return f"{self.model}.{self.config_name}.b{self.max_batch_size}.k{self.instances}{threads}.json"

    def same(self, other: "ServiceTimes") -> bool:
        """Whether both have the same files, machine, versions, instances and threads."""
        measured = {"started_at", "command", "sizes", "alone_us", "noise", "noise_count", "levels", "rare_us"}
        measured |= {"gpu_busy_percent", "gpu_memory_mib"}
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
                f"Measure them: python -m perf.measure.service_time {self.ramps[0].model} --threads {threads}."
            )
        return min(fitting, key=lambda ramp: (abs(ramp.instances - instances), -ramp.instances))

    def measured(self, instances: int, threads: int | None) -> bool:
        """Whether exactly this pair was measured."""
        return any((ramp.instances, ramp.threads) == (instances, threads) for ramp in self.ramps)


def write(ramp: ServiceTimes, folder: Path) -> Path:
    """Write a record, whole or not at all, and return its path; raises `RecordError`."""
    return file.write(ramp, folder / ramp.file_name)


def load(path: Path) -> ServiceTimes:
    """The record of a file; raises `RecordError`."""
    return file.read(path, ServiceTimes)
