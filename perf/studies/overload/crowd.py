"""The clients of a trial: processes that send each request when it is due, and readings of the server's memory."""

import re
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perf.load.arrivals import drawn
from perf.load.crew import Crew, crew
from perf.load.deployment import Running
from perf.load.pool import Pool
from perf.load.run import Progress
from perf.load.timings import Timings
from perf.load.worker import Job
from triton_batching import processes
from triton_batching.machine import cores as all_cores

HALF = 0.5
WORKERS = 2
# Requests in flight of each process. A request beyond this limit is not sent and counts as not answered.
IN_FLIGHT = 32_768
MEMORY_EVERY_S = 1.0
# Seconds in which the processes report requests that did not end in time.
REPORT_S = 2.0
TYPE = re.compile(r"^(\w+)")
NS = 1e9


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Poisson arrivals of one-row requests: `seconds` at `times` x `capacity_per_s`.

    Before and after come `calm_s` seconds at half of the capacity.
    """

    capacity_per_s: float
    times: float
    seconds: float
    calm_s: float
    seed: int = 0

    @property
    def begin_s(self) -> float:
        """When the overload begins."""
        return self.calm_s

    @property
    def end_s(self) -> float:
        """When the overload ends."""
        return self.calm_s + self.seconds

    @property
    def over_s(self) -> float:
        """When the last request is due."""
        return self.end_s + self.calm_s

    def due_s(self) -> NDArray[np.float64]:
        """All due times in seconds, rising."""
        rng = np.random.default_rng(self.seed)
        half, full = HALF * self.capacity_per_s, self.times * self.capacity_per_s
        parts = [
            drawn("poisson", half, self.calm_s, 1.0, rng),
            self.begin_s + drawn("poisson", full, self.seconds, 1.0, rng),
            self.end_s + drawn("poisson", half, self.calm_s, 1.0, rng),
        ]
        return np.concatenate(parts)


@dataclass(frozen=True, kw_only=True)
class CrowdCounts:
    """The measurements from `start_ns` on: each request, errors by type, memory as (seconds, bytes).

    `until_s` is the end of the schedule, or the time of Ctrl-C.
    """

    timings: Timings
    errors: Mapping[str, int]
    memory: tuple[tuple[float, int], ...]
    start_ns: int
    until_s: float
    partial: bool
    cores_busy: float


def send(
    model: str, server: Running, pool: Pool, schedule: Schedule, *, timeout_s: float, progress: Progress
) -> CrowdCounts:
    """Send a whole schedule; Ctrl-C ends it early, with the measurements until then."""
    due = schedule.due_s()
    jobs = [
        Job(
            worker=worker,
            url=server.request_url,
            model=model,
            transport="grpc",
            timeout_s=timeout_s,
            requests=[(request.inputs, request.outputs) for request in pool.requests[worker::WORKERS]],
            tolerances=pool.tolerances,
            first=1,
            due_s=due[worker::WORKERS],
            in_flight_limit=IN_FLIGHT,
        )
        for worker in range(WORKERS)
    ]
    with crew(jobs) as members:
        members.await_ready(lambda text: progress(text, 0.0))
        return _watch(members, server, schedule, timeout_s, progress)


def _watch(members: Crew, server: Running, schedule: Schedule, timeout_s: float, progress: Progress) -> CrowdCounts:
    memory: list[tuple[float, int]] = []
    start, busy, cores = members.start(), processes.machine_s(), all_cores()
    partial, until_s = False, schedule.over_s

    def over(clients: Crew) -> bool:
        now = (time.monotonic_ns() - start) / NS
        if now >= (memory[-1][0] + MEMORY_EVERY_S if memory else 0.0):
            memory.append((now, _memory(server)))
        phase = "overload" if schedule.begin_s <= now < schedule.end_s else "half of the capacity"
        megabytes = memory[-1][1] / 1e6 if memory else 0
        text = f"{phase}: {clients.reported} requests ended, {megabytes:.0f} MB"
        progress(text, min(1.0, max(0.0, now / schedule.over_s)))
        return False

    try:
        # The clients end by themselves after the last answer or time-out.
        members.listen(start + int((schedule.over_s + timeout_s + REPORT_S) * NS), over)
    except KeyboardInterrupt:
        partial, until_s = True, (time.monotonic_ns() - start) / NS
    share = (processes.machine_s() - busy) / max(1e-9, (time.monotonic_ns() - start) / NS * cores)
    members.stop()
    members.listen(time.monotonic_ns() + int((timeout_s + REPORT_S) * NS), lambda _: False)
    errors: Counter[str] = Counter()
    for text, count in members.errors.items():
        errors[_kind(text)] += count
    return CrowdCounts(
        timings=np.sort(members.timings, order="due"),
        errors=dict(errors),
        memory=tuple(memory),
        start_ns=start,
        until_s=until_s,
        partial=partial,
        cores_busy=share,
    )


def _kind(text: str) -> str:
    match = TYPE.match(text)
    return match.group() if match else "?"


def _memory(server: Running) -> int:
    """Resident memory of the server and the processes of its Python models."""
    return processes.memory_bytes(processes.tree(server.server.pid)) if server.server else 0
