"""One run of the load generator: fill the pool, start the processes, measure a window, and build the result."""

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clients import Model
from clients.errors import RejectedError
from export.repository import batch_policy
from perf.load import door, pool, usage
from perf.load.arrivals import arrivals
from perf.load.crew import Crew, crew
from perf.load.deployment import Deployment, Running
from perf.load.pool import Pool
from perf.load.stages import stages
from perf.load.target_check import TargetCheck
from perf.load.timings import NOT_SENT, RIGHT, WRONG, Timings
from perf.load.window import in_window, sample, summary
from perf.load.worker import Job
from perf.records.load_record import CpuTime, LoadResult
from perf.records.offered_load import Load
from perf.records.size_mix import SizeMix
from serve.management import traces
from serve.management.statistics import Counters
from triton_batching import processes
from triton_batching.terminal import Mistake

# Different requests per client of a closed loop, and per closed and open loop at least. A client of a closed loop never
# has two requests in flight, so two that differ are enough to notice swapped answers.
CLOSED_EACH, CLOSED_ALL, OPEN_ALL = 2, 16, 64
# With requests of different size each client has some more, so that its sizes are those of the mix.
SIZES_EACH = 8
# Clients on the server's machine run at a lower priority. Otherwise a client that wakes up with its answer takes the
# core from the server while it sends the other answers of the batch; clients on other machines would not.
NICENESS = 10
# The shortest and the longest cool-down.
COOL_DOWN_S = (0.5, 5.0)
SETTLE_S = 5.0
# Time after a timeout in which the requests without an answer are reported.
HANDED_IN_NS = 1_000_000_000
# Time between two looks, and as a share of the window so far. A look goes over all requests, 40 ms for 100,000 of them,
# and 128 processes report 256 times a second.
LOOK_NS, LOOK_SHARE = 250_000_000, 0.05
# Waits before a rejected request is sent again while the right answers are collected.
REJECTED_S = (0.1, 0.2, 0.4, 0.8)

Progress = Callable[[str, float], None]


@dataclass(frozen=True, kw_only=True)
class Window:
    """The measured window: its ends on the monotonic clock in nanoseconds, and what counters and CPU time say of it."""

    first_ns: int
    last_ns: int
    counted: Counters
    busy: CpuTime
    partial: bool
    early: bool


def run(
    deployment: Deployment,
    load: Load,
    server: Running,
    prepared: Pool,
    progress: Progress,
    check: TargetCheck | None = None,
) -> LoadResult:
    """Measure a load on a server that runs.

    Ctrl-C ends the window early and keeps what was measured until then, and so does a `check` whose verdict is certain.
    A server may be measured any number of times. A pool serves all loads with the same number of processes, clients and
    rows.
    """
    if server.server is not None and server.trace_file is not None:
        traces.start(server.server.http_url, server.trace_rate)
    jobs = _jobs(deployment, load, server, prepared)
    with crew(jobs) as members, usage.sampled(server) as gpu:
        members.await_ready(lambda text: progress(text, 0.0))
        memory = processes.memory_bytes([member.process.pid or 0 for member in members.members])
        window = _measure(deployment, load, server, members, progress, check)
        used = usage.used(server, window.busy, window.first_ns, window.last_ns, gpu)
        reported = members.timings
        errors, lost = dict(members.errors), members.lost
    traced_requests = []
    if server.server is not None and server.trace_file is not None:
        traces.stop(server.server.http_url)
        traced_requests = traces.read(server.trace_file)
    timings = in_window(reported, window.first_ns, window.last_ns)
    requests = sample(timings, window.first_ns)
    answered = timings[(timings["outcome"] == RIGHT) | (timings["outcome"] == WRONG)]
    outcome = summary(reported, load, window.first_ns, window.last_ns)
    uncounted = server.several
    if server.server is None and not uncounted:
        in_time = outcome.requests_per_s * outcome.window_s
        uncounted = door.misfit(server.url, deployment.model, window.counted, in_time)
    return LoadResult(
        load=load,
        outcome=outcome,
        stages=stages(answered, None if uncounted else window.counted, traced_requests),
        counted=Counters.none() if uncounted else window.counted,
        uncounted=uncounted,
        busy=window.busy,
        errors=errors,
        memory_bytes=memory,
        sample=requests,
        judgement=check.judgement(requests, early=window.early) if check else None,
        checked=prepared.tells_apart,
        partial=window.partial,
        lost=lost,
        reloads_s=() if server.revival is None else tuple(server.revival.took_s),
        used=used,
    )


def prepare(deployment: Deployment, load: Load, server: Running, progress: Progress) -> Pool:
    """Draw the requests of a load and collect the right answers, one request at a time."""
    limit = server.config.max_batch_size
    if load.rows > max(1, limit):
        raise Mistake(f"--rows {load.rows}: '{deployment.model}' takes at most {max(1, limit)} rows in one request.")
    if load.mix:
        SizeMix(text=load.mix).check(server.config)
    # A deadline policy rejects requests that would miss its slo_ms, as a full batch may always do. A request may have a
    # longer deadline of its own.
    is_timed = batch_policy(server.config) == "deadline"
    patience = {"timeout": round(load.timeout_s * 1e6)} if is_timed else None
    with Model(deployment.model, url=server.url, transport="grpc", timeout_s=load.timeout_s) as model:

        def ask(inputs: Mapping[str, NDArray[np.generic]]) -> pool.Arrays:
            outputs = _patiently(lambda: model.predict(dict(inputs), parameters=patience))
            return outputs if isinstance(outputs, tuple) else (outputs,)

        return pool.fill(
            server.config,
            ask,
            requests=different(load) * load.workers,
            rows=load.rows,
            seed=load.seed,
            sizes=load.sizes,
            progress=lambda share: progress("collecting the right answers", share),
        )


def different(load: Load) -> int:
    """How many different requests each process of a load sends in turn; together they have every size."""
    of_client = SIZES_EACH if load.sizes else CLOSED_EACH
    together = max(OPEN_ALL if load.open else CLOSED_ALL, len(load.sizes))
    return max(of_client * load.in_flight, -(-together // load.workers))


def _patiently(ask: Callable[[], Any]) -> Any:
    """Ask again while the server rejects the request; raises the last `RejectedError`."""
    for wait_s in REJECTED_S:
        with contextlib.suppress(RejectedError):
            return ask()
        time.sleep(wait_s)
    return ask()


def _jobs(deployment: Deployment, load: Load, server: Running, prepared: Pool) -> list[Job]:
    due, number = arrivals(load) if load.open else None, time.monotonic_ns() // 1000
    return [
        Job(
            worker=worker,
            url=server.request_url,
            model=deployment.model,
            transport=deployment.transport,
            timeout_s=load.timeout_s,
            requests=[(request.inputs, request.outputs) for request in prepared.requests[worker :: load.workers]],
            tolerances=prepared.tolerances,
            count=load.share(worker),
            in_flight=load.in_flight,
            # Numbers differ between runs on one server, so its traces can be told apart.
            first=number,
            due_s=None if due is None else due[worker :: load.workers],
            in_flight_limit=-(-load.in_flight_limit // load.workers),
            niceness=0 if server.server is None else NICENESS,
        )
        for worker in range(load.workers)
    ]


def _measure(
    deployment: Deployment, load: Load, server: Running, members: Crew, progress: Progress, check: TargetCheck | None
) -> Window:
    """Start the processes, and read counters and CPU time at both ends of the window."""
    partial = early = False
    looked_ns, start = 0, members.start()
    counting = load.requests is not None
    first = start if counting else start + int(load.warm_up_s * 1e9)
    last = start + int(1e18) if counting else first + int(load.duration_s * 1e9)
    before, busy = Counters.read(server.url, deployment.model), usage.cpu_time(server, members)

    def warming(_: Crew) -> bool:
        progress("warming up", 0.0)
        return False

    def sure() -> bool:
        return check is not None and not counting and check.is_sure(members, first, last)

    def over(_: Crew) -> bool:
        nonlocal looked_ns
        done = members.reported / (load.requests or 1) if counting else (time.monotonic_ns() - first) / (last - first)
        progress(f"measuring: {members.reported} requests", max(0.0, min(1.0, done)))
        now = time.monotonic_ns()
        if now - looked_ns < max(LOOK_NS, LOOK_SHARE * (looked_ns - first)):
            return False
        looked_ns = now
        return sure()

    try:
        if not counting:
            members.listen(first, warming)
            before, busy = Counters.read(server.url, deployment.model), usage.cpu_time(server, members)
        members.listen(last, over)
        early = sure()
    except KeyboardInterrupt:
        partial = True
    if partial or counting:
        last = time.monotonic_ns()
    if early and check is not None:
        last = min(last, check.decided_ns(members))
    busy = usage.cpu_time(server, members) - busy
    after = Counters.read(server.url, deployment.model)
    if not (partial or early or counting or members.ended):
        # The load goes on after the window, so that its last requests meet the same load as the others.
        try:
            members.listen(time.monotonic_ns() + int(_cool_down_s(members.timings) * 1e9), lambda _: False)
        except KeyboardInterrupt:
            partial = True
    members.stop()
    members.listen(time.monotonic_ns() + int(load.timeout_s * 1e9) + HANDED_IN_NS, lambda _: False)
    if counting:
        timings = members.timings
        first, last = (int(timings["due"].min()), int(timings["done"].max())) if len(timings) else (start, last)
        if not server.several:
            after = _settled(server, deployment.model, before, int(np.sum(timings["outcome"] != NOT_SENT)))
    return Window(
        first_ns=first,
        last_ns=last,
        counted=after - before,
        busy=busy,
        partial=partial,
        early=early,
    )


def _cool_down_s(timings: Timings) -> float:
    longest = float(np.max(timings["done"] - timings["due"], initial=0)) / 1e9
    return min(max(1.5 * longest, COOL_DOWN_S[0]), COOL_DOWN_S[1])


def _settled(server: Running, model: str, before: Counters, sent: int) -> Counters:
    """The counters once they hold all requests: Triton answers a request before it counts it."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        after = Counters.read(server.url, model)
        counted = after - before
        if counted.requests + counted.failed_requests >= sent or time.monotonic() > deadline:
            return after
        time.sleep(0.02)
