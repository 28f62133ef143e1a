"""The result of one run: counts, latencies, throughput, and the checks that a sound measurement passes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np

from perf.load.load import Load
from perf.load.stages import TOLERANCE, Stages
from perf.load.timings import FAILED, NOT_SENT, RIGHT, WRONG, Timings
from perf.stats.percentile import percentile
from perf.stats.sla import Judgement, Sla
from serve.management.statistics import Counters

PERCENTILES = (50, 90, 95, 99)
# How far Little's law may be off.
LITTLE = 0.03
# A request sent this long after it was due was late because of the client, not the server.
LATE_NS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Counts of requests, and latencies in microseconds from when a request was due until its answer arrived.

    Latencies and throughput are those of answered requests. `not_sent` requests were due while the limit of requests in
    flight was reached; `late` ones were sent more than 1 ms after they were due. `offered_per_s` is the rate at which
    requests were due, None in a closed loop. `longest_gap_s` is the longest time between two answers.
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

    due_s: tuple[float, ...]
    latencies_us: tuple[float, ...]

    @classmethod
    def of(cls, timings: Timings, first_ns: int) -> Self:
        """The sample of `timings`, in order of due time."""
        ordered = np.sort(timings, order="due")
        latencies = np.where(ordered["outcome"] == RIGHT, (ordered["done"] - ordered["due"]) / 1e3, np.inf)
        due = (ordered["due"] - first_ns) / 1e9
        return cls(due_s=tuple(np.round(due, 6).tolist()), latencies_us=tuple(np.round(latencies, 1).tolist()))

    def late(self, sla: Sla) -> int:
        """Number of requests that missed the target."""
        return int(np.sum(np.asarray(self.latencies_us) > sla.latency_ms * 1e3))


STEADIER = "Measure longer (--duration), or load with fewer clients (--workers)."


@dataclass(frozen=True, kw_only=True)
class Result:
    """Everything about one run.

    `traced_us` maps each stage to microseconds, one value per traced request, all in the same order. `checked`: the
    replies could be checked. `partial`: the run was stopped. `lost` is the number of processes that died. `reloads_s`
    are the seconds that each reload of the model took.
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


def summary(timings: Timings, load: Load, first_ns: int, last_ns: int) -> Summary:
    """The summary of the requests that were due in the window [first, last)."""
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
        percentiles_us={rank: float(percentile(latencies, rank)) if len(latencies) else 0.0 for rank in PERCENTILES},
        requests_per_s=rate,
        rows_per_s=rate * load.rows,
        offered_per_s=len(timings) / window_s if load.open and window_s > 0 else None,
        longest_gap_s=float(np.max(np.diff(np.sort(answered["done"])), initial=0)) / 1e9,
    )


def in_window(timings: Timings, first_ns: int, last_ns: int) -> Timings:
    """The requests that were due in [first, last)."""
    return timings[(timings["due"] >= first_ns) & (timings["due"] < last_ns)]
