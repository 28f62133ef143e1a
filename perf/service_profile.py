"""What a model's executions take on one machine: the record of a ramp, and the ramps of one model together."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from clients.machine import Machine
from export.terminal import Mistake
from perf import record, record_kind
from perf.ramp import Level, before
from perf.record import RecordError
from perf.service_curve import Line, Size, fit, smoothed

FORMAT = 1
KIND = "service_times"
# Answers that leave before a request's own, on the mean: a level with fewer is one of lone requests.
TOGETHER = 0.5
# Shares at which the noise is kept; between them it is on straight lines.
SHARES = (0.0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)


@dataclass(frozen=True, kw_only=True)
class Way:
    """A request's way outside the server, in microseconds, both directions and the client's own part.

    `lone_us` is that of a request that ran alone, `first_us` of the first that comes back of several that ran together;
    each further one is `each_us` behind, since server and client handle them one by one. `turnaround_us` lies between
    an answer and the same client's next request.
    """

    lone_us: float
    first_us: float
    each_us: float
    turnaround_us: float

    def mean_us(self, batches: Mapping[int, int]) -> float:
        """Mean over the requests, of one row each, of executions of these sizes and counts."""
        total = sum(
            count * (self.lone_us if rows == 1 else rows * self.first_us + self.each_us * rows * (rows - 1) / 2)
            for rows, count in batches.items()
        )
        return total / max(1, sum(rows * count for rows, count in batches.items()))

    def longer(self, more_us: float) -> "Way":
        """The same with so much more for each request; no part is less than 0."""
        return dataclasses.replace(
            self, lone_us=max(0.0, self.lone_us + more_us), first_us=max(0.0, self.first_us + more_us)
        )


@dataclass(frozen=True, kw_only=True)
class ServiceTimes:
    """One ramp: the executions of a model with so many `instances` and `threads` (None: the configuration's own).

    `sizes` counts the levels in which every instance could be at work (concurrency >= instances), so its times hold the
    contention of all instances; `alone` is the mean time in microseconds of one row with nothing else running.
    `noise` are quantiles, at `SHARES`, of an execution's time over the mean of its size, from `noise_count` readings
    that saw so few executions that single ones can be told. `levels` is the ramp itself.
    `gpu_busy_percent` and `gpu_memory_mib` are means over the ramp, None without a GPU.
    """

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
    gpu_busy_percent: float | None = None
    gpu_memory_mib: float | None = None

    @property
    def line(self) -> Line:
        """The weighted fit of s(b) = fixed + row x b."""
        return fit(self.sizes)

    @property
    def table_us(self) -> Mapping[int, float]:
        """Microseconds for each size 1 to `max_batch_size` while all instances run; the fit steadies rare sizes."""
        return smoothed(self.sizes, self.max_batch_size)

    @property
    def gap_us(self) -> float:
        """Mean time at saturation in which an instance is between two executions, from the busiest level."""
        level = self.levels[-1]
        wall_us = level.seconds * 1e6 * self.instances
        return max(0.0, (wall_us - level.counted.busy_ns / 1e3) / max(1, level.counted.executions))

    @property
    def dispatch_us(self) -> float:
        """Mean time from queue to instance where both are idle: the queue time of the lowest level."""
        counted = self.levels[0].counted
        return counted.per_request_us(counted.queue_ns)

    @property
    def way(self) -> Way:
        """What the ramp says of a request's way outside the server.

        A lone request's is the lowest level's, and so is the turnaround, since in the others what Little's law leaves
        is within the error that a window's edges make. Of those that ran together it is a line over the levels.
        """
        lowest = self.levels[0]
        # Of a level whose requests mostly ran alone the line learns nothing.
        levels = [level for level in self.levels if before(level.counted) >= TOGETHER]
        behind = np.array([before(level.counted) for level in levels])
        outside = np.array([level.outside_us for level in levels])
        first, each = lowest.outside_us, 0.0
        if len(levels) > 1:
            each, first = (float(value) for value in np.polyfit(behind, outside, 1))
            if each < 0:
                first, each = float(np.mean(outside)), 0.0
            elif first < lowest.outside_us:  # that of a batch is not nearer than a lone one
                first = lowest.outside_us
                each = max(0.0, float(behind @ (outside - first) / (behind @ behind)))
        return Way(lone_us=lowest.outside_us, first_us=first, each_us=each, turnaround_us=lowest.turnaround_us)

    def outside_us(self, in_flight: float) -> float:
        """Mean microseconds of a request outside the server's counters with so many in flight: network and client."""
        return self._by_level([level.outside_us for level in self.levels], in_flight)

    def turnaround_us(self, in_flight: float) -> float:
        """Mean microseconds from an answer to the same client's next request with so many in flight."""
        return self._by_level([level.turnaround_us for level in self.levels], in_flight)

    def _by_level(self, values: Sequence[float], in_flight: float) -> float:
        return float(np.interp(in_flight, [level.concurrency for level in self.levels], values))

    @property
    def file_name(self) -> str:
        """A name that a person can read; a ramp with another maximum is another record."""
        threads = "" if self.threads is None else f".t{self.threads}"
        return f"{self.model}.{self.config_name}.b{self.max_batch_size}.k{self.instances}{threads}.json"

    def same(self, other: "ServiceTimes") -> bool:
        """Whether this was measured on what `other` is planned for: files, machine, versions, instances, threads."""
        measured = {"started_at", "command", "sizes", "alone_us", "noise", "noise_count", "levels"}
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
                f"Measure them: python -m perf.service_time {self.ramps[0].model} --threads {threads}."
            )
        return min(fitting, key=lambda one: (abs(one.instances - instances), -one.instances))

    def measured(self, instances: int, threads: int | None) -> bool:
        """Whether there is a ramp of just these, so that nothing is interpolated."""
        return any((one.instances, one.threads) == (instances, threads) for one in self.ramps)


def write(found: ServiceTimes, folder: Path) -> Path:
    """Write one record, whole or not at all."""
    content = {"format": FORMAT, "kind": KIND, **dataclasses.asdict(found)}
    return record.write_json(found.file_name, content, folder)


def load(path: Path) -> ServiceTimes:
    """One record; raises `RecordError`."""
    try:
        content = json.loads(path.read_text())
        if content["kind"] != KIND and (said := record_kind.other(path, content["kind"], "service times")):
            raise RecordError(said)
        if (content.pop("format"), content.pop("kind")) != (FORMAT, KIND):
            raise ValueError("another kind or format")
        return ServiceTimes(
            **content
            | {
                "machine": Machine(**content["machine"]),
                "command": tuple(content["command"]),
                "sizes": tuple(Size(**size) for size in content["sizes"]),
                "noise": tuple(content["noise"]),
                "levels": tuple(_level(level) for level in content["levels"]),
            }
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecordError(
            f"{path}: not service times of this version ({error}). Remove it and measure again."
        ) from error


def _level(content: dict[str, Any]) -> Level:
    return Level(
        **content | {"measured": record.measured(content["measured"]), "counted": record.counters(content["counted"])}
    )
