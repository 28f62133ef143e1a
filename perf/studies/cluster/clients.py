"""The clients of these experiments: processes that call a front door in closed loops and check every answer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from clients import Model
from perf.load.crew import Crew, crew
from perf.load.pool import Pool, fill
from perf.load.timings import FAILED, RIGHT, WRONG, Timings
from perf.load.worker import Job
from perf.stats.percentile import percentile
from serve.management import loaded

Protocol = Literal["grpc", "http"]
PROTOCOLS: tuple[Protocol, ...] = ("grpc", "http")
# Two keep up with three replicas on two cores.
PROCESSES = 2
TIMEOUT_S = 60.0
# Different requests in the pool; no two clients send the same one at a time.
REQUESTS = 48
NS = 1e9


@dataclass(frozen=True, kw_only=True)
class Door:
    """The addresses of a front door (`host:port`) and the model behind it."""

    model: str
    http_url: str
    grpc_url: str

    def url(self, protocol: Protocol) -> str:
        """The address for this protocol."""
        return self.grpc_url if protocol == "grpc" else self.http_url


@dataclass(frozen=True, kw_only=True)
class Counts:
    """What clients saw in a window: requests by outcome, and the latencies in ms of the right answers."""

    requests: int
    failed: int
    wrong: int
    p50_ms: float
    p99_ms: float
    longest_ms: float
    per_s: float

    @classmethod
    def of(cls, timings: Timings) -> "Counts":
        """The counts of these requests; `longest_ms` counts failed ones, too."""
        right = timings["outcome"] == RIGHT
        ms = (timings["done"] - timings["due"]) / 1e6
        seconds = float(timings["done"].max() - timings["due"].min()) / NS if len(timings) else 0.0
        return cls(
            requests=len(timings),
            failed=int(np.sum(timings["outcome"] == FAILED)),
            wrong=int(np.sum(timings["outcome"] == WRONG)),
            p50_ms=_quantile(ms[right], 50),
            p99_ms=_quantile(ms[right], 99),
            longest_ms=round(float(ms.max()), 3) if len(ms) else 0.0,
            per_s=round(float(right.sum()) / seconds, 3) if seconds else 0.0,
        )


def prepare(door: Door, rows: int) -> Pool:
    """Requests of `rows` rows with their right answers, asked for one at a time."""
    config = loaded.config(door.http_url, door.model)
    with Model(door.model, url=door.grpc_url, transport="grpc", timeout_s=TIMEOUT_S) as model:

        def ask(inputs: Mapping[str, Any]) -> tuple[Any, ...]:
            answer = model.predict(inputs)
            return answer if isinstance(answer, tuple) else (answer,)

        return fill(config, ask, requests=REQUESTS, rows=rows, seed=1)


def jobs(door: Door, pool: Pool, protocol: Protocol, clients: int) -> list[Job]:
    """The work of the processes: `clients` closed loops in all."""
    processes = min(PROCESSES, clients)
    return [
        Job(
            worker=worker,
            url=door.url(protocol),
            model=door.model,
            transport=protocol,
            timeout_s=TIMEOUT_S,
            requests=[(request.inputs, request.outputs) for request in pool.requests[worker::processes]],
            tolerances=pool.tolerances,
            in_flight=clients // processes,
        )
        for worker in range(processes)
    ]


def load(
    door: Door, pool: Pool, protocol: Protocol, clients: int, until: Callable[[Crew, int], bool], *, most_s: float
) -> tuple[Timings, int, Mapping[str, int]]:
    """Load the door until `until(crew, start in ns)` says so, `most_s` seconds at most.

    Returns every request, the start, and the errors with their counts.
    """
    with crew(jobs(door, pool, protocol, clients)) as members:
        members.await_ready(lambda _: None)
        start = members.start()
        members.listen(start + int(most_s * NS), lambda now: until(now, start))
        members.stop()
        members.listen(start + int((most_s + TIMEOUT_S) * NS), lambda _: False)
        return np.sort(members.timings, order="due"), start, dict(members.errors)


def _quantile(values: Any, percent: float) -> float:
    return round(float(percentile(values, percent)), 3) if len(values) else 0.0
