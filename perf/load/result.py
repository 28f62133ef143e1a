"""What one run of a fleet brought: counts, latencies, throughput, and the laws that a sound measurement obeys."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np

from clients.counters import Counters
from perf.load.load import Load
from perf.load.stages import Stages
from perf.load.timings import FAILED, NOT_SENT, RIGHT, WRONG, Timings
from perf.stats.percentile import percentile
from perf.stats.sla import Judgement, Sla

PERCENTILES = (50, 90, 95, 99)
LITTLE = 0.03
# A request sent this much after it was due is late: the client, not the server, was behind.
LATE_NS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Counts of requests and their latencies in microseconds, from when a request was due until its answer was there.

    Latencies and throughput are those of answered requests. `not_sent` were due while the limit of requests in flight
    was reached; `late` were sent more than 1 ms after they were due. `offered_per_s` is what was due per second.
    `longest_gap_s` is the longest time between two answers.
    """

    window_s: float
    right: int
    wrong: int
    failed: int
    not_sent: int
    late: int
    mean_us: float
    percentiles_us: Mapping[int, float]
    requests_per_s: float
    rows_per_s: float
    offered_per_s: float | None
    longest_gap_s: float

    @property
    def answered(self) -> int:
        """Requests that got an answer, right or wrong."""
        return self.right + self.wrong


@dataclass(frozen=True, kw_only=True)
class CpuTime:
    """CPU seconds in the window: of the clients, of the server (None: not started here), and of the whole machine."""

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
        """Share of all cores that clients and server took together."""
        return self.share(self.clients_s + (self.server_s or 0.0))

    @property
    def all(self) -> float:
        """Share of all cores that was taken by anyone: where it nears 1, what is ours waits for a core."""
        return max(self.ours, self.share(self.machine_s))


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Every request of the window: seconds after its begin when it was due, and its latency in microseconds from then.

    The latency is infinite where there was no right answer: not sent, failed, or wrong.
    """

    due_s: tuple[float, ...]
    latencies_us: tuple[float, ...]

    @classmethod
    def of(cls, timings: Timings, first_ns: int) -> Self:
        """In the order in which they were due."""
        ordered = np.sort(timings, order="due")
        latencies = np.where(ordered["outcome"] == RIGHT, (ordered["done"] - ordered["due"]) / 1e3, np.inf)
        due = (ordered["due"] - first_ns) / 1e9
        return cls(due_s=tuple(np.round(due, 6).tolist()), latencies_us=tuple(np.round(latencies, 1).tolist()))

    def late(self, sla: Sla) -> int:
        """How many took longer than the target allows, or had no right answer."""
        return int(np.sum(np.asarray(self.latencies_us) > sla.latency_ms * 1e3))


@dataclass(frozen=True, kw_only=True)
class Result:
    """One run. `partial`: it was stopped; `lost` processes died; `reloads_s`: what each reload of the model took.

    `traced_us` has the stages of each request that the server traced, one value per request, all in one order.
    """

    load: Load
    outcome: Summary
    stages: Stages
    traced_us: Mapping[str, tuple[float, ...]]
    counted: Counters
    busy: CpuTime
    errors: Mapping[str, int]
    memory_bytes: int
    sample: Sample
    judgement: Judgement | None
    checked: bool
    partial: bool
    lost: int
    reloads_s: tuple[float, ...]

    @property
    def little(self) -> float | None:
        """Little's law: throughput x latency / clients - 1.

        None in an open loop, where it is no check, and for a number of requests, at whose end not all are at work.
        """
        if self.load.open or self.load.requests is not None or not self.outcome.answered:
            return None
        return self.outcome.requests_per_s * self.outcome.mean_us / 1e6 / self.load.clients - 1

    @property
    def little_limit(self) -> float:
        """How far Little's law may be off: 3 %, or more where the window's edges alone can make it so.

        A request counts where it is due, so of each client one is cut off at the start and one reaches over the end:
        its latencies add up to the window, give or take one of them.
        """
        edge_us, window_us = self.outcome.mean_us, self.outcome.window_s * 1e6
        return max(LITTLE, edge_us / window_us if window_us else LITTLE)

    @property
    def faults(self) -> list[str]:
        """Why this run should not be believed, one sentence each; empty when all is well."""
        outcome, found = self.outcome, []
        if self.partial:
            found.append("stopped before its end")
        if outcome.wrong:
            found.append(f"{outcome.wrong} replies are not those of their request")
        if outcome.failed:
            found.append(f"{outcome.failed} requests failed")
        if self.lost:
            found.append(f"{self.lost} processes died")
        if self.reloads_s:
            found.append("the model was loaded again, so the server's counters and stages do not span the window")
        if not self.checked:
            found.append("the replies' check could not tell two requests of the pool apart")
        if self.little is not None and abs(self.little) > self.little_limit:
            found.append(f"Little's law is off by {self.little:+.1%} (limit {self.little_limit:.0%})")
        # Of a run that ended early the counters go on a little after the requests that count, so the sum may be off.
        if self.stages.holds is False and not (self.judgement is not None and self.judgement.early):
            found.append(f"the stages make {self.stages.error:+.1%} more than the latency")
        return found


def outcome(timings: Timings, load: Load, first_ns: int, last_ns: int) -> Summary:
    """Of the requests that were due in the window [first, last); latencies from when they were due."""
    ended = timings["outcome"]
    answered = timings[(ended == RIGHT) | (ended == WRONG)]
    latencies = (answered["done"] - answered["due"]) / 1e3
    window_s = (last_ns - first_ns) / 1e9
    rate = len(answered) / window_s if window_s > 0 else 0.0
    sent = timings[ended != NOT_SENT]
    return Summary(
        window_s=window_s,
        right=int(np.sum(ended == RIGHT)),
        wrong=int(np.sum(ended == WRONG)),
        failed=int(np.sum(ended == FAILED)),
        not_sent=int(np.sum(ended == NOT_SENT)),
        late=int(np.sum(sent["called"] - sent["due"] > LATE_NS)),
        mean_us=float(np.mean(latencies)) if len(latencies) else 0.0,
        percentiles_us={one: float(percentile(latencies, one)) if len(latencies) else 0.0 for one in PERCENTILES},
        requests_per_s=rate,
        rows_per_s=rate * load.rows,
        offered_per_s=len(timings) / window_s if load.open and window_s > 0 else None,
        longest_gap_s=float(np.max(np.diff(np.sort(answered["done"])), initial=0)) / 1e9,
    )


def in_window(timings: Timings, first_ns: int, last_ns: int) -> Timings:
    """Requests that were due in [first, last)."""
    return timings[(timings["due"] >= first_ns) & (timings["due"] < last_ns)]
