"""The record of a run of the load generator: what was measured, and on what."""

import itertools
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import msgspec
import numpy as np

from perf.records import file
from perf.records.offered_load import Load
from perf.records.resource_use import ResourceUse
from perf.stats.latency_target import Judgement, LatencyTarget
from perf.stats.quantile import Quantile, quantile
from serve.management.statistics import Counters
from triton_batching.machine import Machine

# How far Little's law may be off.
LITTLE = 0.03
# How far the sum of the stages may be from the latency, as a share of it.
TOLERANCE = 0.05
# The source of a stage that is the latency less all other stages.
REMAINDER = "remainder"


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of requests, and latencies in microseconds from when a request was due until its answer arrived.

    Counts and latencies are of the requests that were due in the window, latencies of the answered ones. The throughput
    (`requests_per_s`, `rows_per_s`) is of the requests that were answered in it, whenever they were due. `not_sent`
    requests were due while the limit of requests in flight was reached; `late_sends` were sent more than 1 ms after
    they were due (`late` in the file). `offered_per_s` is the rate at which requests were due, None in a closed loop.
    `longest_gap_s` is the longest time between two answers.
    """

    window_s: float
    right: int
    wrong: int
    failed: int
    not_sent: int
    late_sends: int = msgspec.field(name="late")
    mean_us: float
    percentiles_us: Mapping[int, float]
    requests_per_s: float
    rows_per_s: float
    offered_per_s: float | None
    longest_gap_s: float

    @property
    def answered(self) -> int:
        """Requests with an answer, right or wrong."""
        return self.right + self.wrong


@dataclass(frozen=True, kw_only=True)
class CpuTime:
    """CPU seconds of the clients, of the server (None if not started here) and of the whole machine, in `wall_s`."""

    clients_s: float
    server_s: float | None
    machine_s: float
    wall_s: float
    cores: int

    def __sub__(self, earlier: "CpuTime") -> "CpuTime":
        server_s = None if self.server_s is None or earlier.server_s is None else self.server_s - earlier.server_s
        return CpuTime(
            clients_s=self.clients_s - earlier.clients_s,
            server_s=server_s,
            machine_s=self.machine_s - earlier.machine_s,
            wall_s=self.wall_s - earlier.wall_s,
            cores=self.cores,
        )

    def share(self, seconds: float) -> float:
        """CPU seconds as a share of all cores."""
        return seconds / (self.wall_s * self.cores) if self.wall_s else 0.0

    @property
    def ours(self) -> float:
        """Share of all cores that clients and server used."""
        return self.share(self.clients_s + (self.server_s or 0.0))

    @property
    def all(self) -> float:
        """Share of all cores in use by anything on the machine; near 1, clients and server wait for a core."""
        return max(self.ours, self.share(self.machine_s))


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Every request of the window: its due time in seconds after the start of the window, and its latency.

    Latencies are in microseconds from the due time, and infinite for a request that was not sent, failed, or got a
    wrong answer.
    """

    due_s: tuple[float, ...] = ()
    latencies_us: tuple[float, ...] = ()

    def late(self, target: LatencyTarget) -> int:
        """Number of requests that missed the target."""
        return int(np.sum(np.asarray(self.latencies_us) > target.latency_ms * 1e3))


STEADIER = "Measure longer (--duration), or load with fewer clients (--workers)."


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One part of the mean latency, over `sample` requests."""

    name: str
    mean_us: float
    source: str
    sample: int

    @property
    def label(self) -> str:
        """What a reader sees: on a loopback interface "network" is mostly waiting for a core."""
        return "outside the server" if self.name == "network" else self.name


@dataclass(frozen=True, kw_only=True)
class Stages:
    """All stages in the order in which a request passes them; `latency_us` is the mean latency by the clients."""

    parts: tuple[Stage, ...]
    latency_us: float

    @property
    def sum_us(self) -> float:
        """The sum of the stages."""
        return sum(part.mean_us for part in self.parts)

    @property
    def error(self) -> float | None:
        """Sum / latency - 1; None if the network is the remainder of the other stages."""
        if not self.latency_us or any(part.source == REMAINDER for part in self.parts):
            return None
        return self.sum_us / self.latency_us - 1

    @property
    def holds(self) -> bool | None:
        """Whether the sum is within `TOLERANCE` of the latency; None if `error` is."""
        return None if self.error is None else abs(self.error) <= TOLERANCE


@dataclass(frozen=True, kw_only=True)
class LoadResult:
    """Everything that a run of the load generator measured.

    `checked`: the replies could be checked. `partial`: the run was stopped. `lost` is the number of processes that
    died. `reloads_s` are the seconds that each reload of the model took. `uncounted` says why `counted` and the stages
    lack the server's counters, "" if they do not. `used` is what the server used within the window.
    """

    load: Load
    outcome: Summary
    stages: Stages
    counted: Counters
    busy: CpuTime
    errors: Mapping[str, int]
    memory_bytes: int
    checked: bool
    partial: bool
    lost: int
    reloads_s: tuple[float, ...]
    judgement: Judgement | None = None
    sample: Sample = Sample()
    uncounted: str = ""
    used: ResourceUse = field(default_factory=ResourceUse)

    @property
    def p99(self) -> Quantile | None:
        """The 99th percentile of all requests of the window with its interval; None if the record has no requests."""
        return quantile(self.sample.latencies_us, 99) if self.sample.latencies_us else None

    @property
    def little(self) -> float | None:
        """Little's law: throughput x latency / clients - 1.

        None for an open loop, where it holds always, and for a number of requests, where clients end at other times.
        """
        if self.load.open or self.load.requests is not None or not self.outcome.answered:
            return None
        return self.outcome.requests_per_s * self.outcome.mean_us / 1e6 / self.load.clients - 1

    @property
    def little_limit(self) -> float:
        """How far Little's law may be off: 3 %, or one mean latency over the window if that is more.

        At the start and at the end of the window each client has a request that is only partly inside.
        """
        edge_us, window_us = self.outcome.mean_us, self.outcome.window_s * 1e6
        return max(LITTLE, edge_us / window_us if window_us else LITTLE)

    @property
    def faults(self) -> list[str]:
        """The reasons not to trust this run, in words; empty if there are none."""
        outcome, faults = self.outcome, []
        if self.partial:
            faults.append("stopped before its end")
        if outcome.wrong:
            faults.append(f"{outcome.wrong} replies are not those of their request")
        if outcome.failed:
            faults.append(f"{outcome.failed} requests failed")
        if self.lost:
            faults.append(f"{self.lost} processes died")
        if self.reloads_s:
            faults.append("the model was reloaded, so the server's counters and stages do not cover the window")
        if not self.checked:
            faults.append("two requests of the pool have answers too alike to tell swapped replies")
        if self.little is not None and abs(self.little) > self.little_limit:
            faults.append(
                f"Little's law is off by {self.little:+.1%} (limit {self.little_limit:.0%}): throughput x latency is "
                f"not the number of clients, because these waited for a core or sent too few requests. {STEADIER}"
            )
        # If a run ends early, the counters cover a little more than its window, so the sum may be off.
        if self.stages.holds is False and not (self.judgement is not None and self.judgement.early):
            faults.append(
                f"the sum of the stages differs from the latency by {self.stages.error:+.1%} (limit {TOLERANCE:.0%}): "
                "the server's counters and traces cover other requests than the clients' times, which matters if they "
                f"are few or the machine is busy. {STEADIER} Or trace every request: --trace-rate 1."
            )
        return faults


@dataclass(frozen=True, kw_only=True)
class LoadRecord(LoadResult):
    """A result with the model, the configuration that the server reported, its digest, and the machine.

    `time_scale` is the factor on the times of a simulated model.
    """

    KIND: ClassVar[str] = "fleet"
    FORMAT: ClassVar[int] = 2

    model: str
    config_name: str | None
    config_sha256: str
    config: str
    transport: str
    time_scale: float
    started_at: str
    command: tuple[str, ...]
    machine: Machine
    versions: Mapping[str, str]

    def write(self, folder: Path) -> Path:
        """Write a new file and return its path; raises `RecordError`.

        Its name is model, pattern, processes, rows, a digest of the configuration, the transport and the load, and the
        number of the run with all of these.
        """
        digest = file.digest(self.config_sha256, self.transport, self.load)
        name = f"{self.model}.{self.load.pattern}.w{self.load.workers:03d}.b{self.load.rows}.{digest}"
        paths = (folder / f"{name}.r{number}.json" for number in itertools.count(1))
        # `Path.exists` raises for a folder without permission; the error of the write names the folder.
        free = next(path for path in paths if not os.path.exists(path))  # noqa: PTH110
        return file.write(
            self,
            free,
            little=self.little,
            stages_error=self.stages.error,
            faults=self.faults,
            p99_interval=None if self.p99 is None else vars(self.p99),
        )
