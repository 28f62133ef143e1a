"""One run of a fleet: fill the pool, start the processes, measure a window, and put the result together."""

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clients import Model
from clients.counters import Counters
from clients.errors import RejectedError
from perf.load import pool, process_tree
from perf.load import traces as traces
from perf.load.arrivals import arrivals
from perf.load.crew import Crew, crew
from perf.load.goal import SlaCheck
from perf.load.load import Load
from perf.load.pool import Pool
from perf.load.result import CpuTime, Result, Sample, in_window, outcome
from perf.load.stages import stages, traced
from perf.load.target import Running, Target
from perf.load.timings import NOT_SENT, RIGHT, WRONG, Timings
from perf.load.worker import Job
from triton_batching.machine import cores
from triton_batching.terminal import Mistake

# A closed loop never has two requests of one process on their way, so two that differ are enough to see a swap.
CLOSED_EACH, CLOSED_ALL, OPEN_ALL = 2, 16, 64
# Where clients and server share the cores, those who wake up with their answers would take the core from the server
# that is still sending the others theirs: a load of their own, which clients on other machines would not be.
NICENESS = 10
COOL_DOWN_S = (0.5, 5.0)
SETTLE_S = 5.0
# What did not get an answer before its timeout is handed in after it.
HANDED_IN_NS = 1_000_000_000

# A look goes over all requests so far, and processes report one after the other: 128 of them 256 times a second.
LOOK_NS = 250_000_000

# Waits before a request that was refused is sent again, while the right answers are asked for.
REJECTED_S = (0.1, 0.2, 0.4, 0.8)

Told = Callable[[str, float], None]


@dataclass(frozen=True, kw_only=True)
class Window:
    """What was read at both ends of the window, in nanoseconds of the monotonic clock, counters and CPU seconds."""

    first_ns: int
    last_ns: int
    counted: Counters
    busy: CpuTime
    partial: bool
    early: bool


def run(
    target: Target, load: Load, server: Running, prepared: Pool, told: Told, goal: SlaCheck | None = None
) -> Result:
    """Measure; Ctrl-C ends the window early and keeps what was measured until then, and so does a goal that is sure.

    A running server may be measured any number of times, with one pool for loads of as many processes, clients and
    rows.
    """
    if server.trace_file is not None:
        traces.start(server.url, server.trace_rate)
    jobs = _jobs(target, load, server, prepared)
    with crew(jobs) as members:
        members.await_ready(lambda text: told(text, 0.0))
        memory = process_tree.memory_bytes([member.process.pid or 0 for member in members.members])
        window = _measure(target, load, server, members, told, goal)
        timings = in_window(members.timings, window.first_ns, window.last_ns)
        errors, lost = dict(members.errors), members.lost
    if server.trace_file is not None:
        traces.stop(server.url)
    seen = traces.read(server.trace_file) if server.trace_file is not None else []
    sample = Sample.of(timings, window.first_ns)
    answered = timings[(timings["outcome"] == RIGHT) | (timings["outcome"] == WRONG)]
    return Result(
        load=load,
        outcome=outcome(timings, load, window.first_ns, window.last_ns),
        stages=stages(answered, window.counted, seen),
        traced_us=traced(answered, seen),
        counted=window.counted,
        busy=window.busy,
        errors=errors,
        memory_bytes=memory,
        sample=sample,
        judgement=goal.judgement(sample, early=window.early) if goal else None,
        checked=prepared.tells_apart,
        partial=window.partial,
        lost=lost,
        reloads_s=() if server.revival is None else tuple(server.revival.took_s),
    )


def prepare(target: Target, load: Load, server: Running, told: Told) -> Pool:
    """Draw the requests and get the right answers, one request on its way at a time."""
    limit = server.config.max_batch_size
    if load.rows > max(1, limit):
        raise Mistake(f"--rows {load.rows}: '{target.model}' takes at most {max(1, limit)} rows in one request.")
    # A policy refuses what would be late for its slo_ms, as a full batch may always be; a request may bring more time.
    parameters = server.config.parameters
    is_timed = "batch_policy" in parameters and parameters["batch_policy"].string_value == "deadline"
    patience = {"timeout": round(load.timeout_s * 1e6)} if is_timed else None
    each = max(CLOSED_EACH * load.in_flight, -(-(OPEN_ALL if load.open else CLOSED_ALL) // load.workers))
    with Model(target.model, url=server.url, transport="grpc", timeout_s=load.timeout_s) as model:

        def ask(inputs: Mapping[str, NDArray[np.generic]]) -> pool.Arrays:
            found = _patiently(lambda: model.predict(dict(inputs), parameters=patience))
            return found if isinstance(found, tuple) else (found,)

        return pool.fill(
            server.config,
            ask,
            requests=each * load.workers,
            rows=load.rows,
            seed=load.seed,
            progress=lambda share: told("asking for the right answers", share),
        )


def _patiently(ask: Callable[[], Any]) -> Any:
    """Ask again while the server is too busy with the requests of others; raises the last `RejectedError`."""
    for wait_s in REJECTED_S:
        with contextlib.suppress(RejectedError):
            return ask()
        time.sleep(wait_s)
    return ask()


def _jobs(target: Target, load: Load, server: Running, prepared: Pool) -> list[Job]:
    due, number = arrivals(load) if load.open else None, time.monotonic_ns() // 1000
    return [
        Job(
            worker=worker,
            url=server.request_url,
            model=target.model,
            transport=target.transport,
            timeout_s=load.timeout_s,
            requests=[(one.inputs, one.outputs) for one in prepared.requests[worker :: load.workers]],
            tolerance=prepared.tolerance,
            count=load.share(worker),
            in_flight=load.in_flight,
            # No two runs of a server have the same number, so that its traces tell them apart.
            first=number,
            due_s=None if due is None else due[worker :: load.workers],
            in_flight_limit=-(-load.in_flight_limit // load.workers),
            niceness=0 if server.server is None else NICENESS,
        )
        for worker in range(load.workers)
    ]


def _measure(target: Target, load: Load, server: Running, members: Crew, told: Told, goal: SlaCheck | None) -> Window:
    """Let the processes go, and read counters and CPU time at both ends of the window."""
    partial = early = False
    looked_ns, start = 0, members.start()
    counting = load.requests is not None
    first = start if counting else start + int(load.warm_up_s * 1e9)
    last = start + int(1e18) if counting else first + int(load.duration_s * 1e9)
    before, busy = Counters.read(server.url, target.model), _busy(server, members)

    def warming(all_of: Crew) -> bool:
        told("warming up", 0.0)
        return False

    def sure() -> bool:
        return goal is not None and not counting and goal.is_sure(members, first, last)

    def over(all_of: Crew) -> bool:
        nonlocal looked_ns
        done = all_of.reported / (load.requests or 1) if counting else (time.monotonic_ns() - first) / (last - first)
        told(f"measuring: {all_of.reported} requests", max(0.0, min(1.0, done)))
        if (now := time.monotonic_ns()) - looked_ns < LOOK_NS:
            return False
        looked_ns = now
        return sure()

    try:
        if not counting:
            members.listen(first, warming)
            before, busy = Counters.read(server.url, target.model), _busy(server, members)
        members.listen(last, over)
        early = sure()
    except KeyboardInterrupt:
        partial = True
    if partial or counting:
        last = time.monotonic_ns()
    if early and goal is not None:
        last = min(last, goal.decided_ns(members))
    busy = _busy(server, members) - busy
    after = Counters.read(server.url, target.model)
    if not (partial or early or counting or members.ended):
        # Its last requests are to meet the same company as the others, so nobody stops with the window.
        try:
            members.listen(time.monotonic_ns() + int(_cool_down_s(members.timings) * 1e9), lambda _: False)
        except KeyboardInterrupt:
            partial = True
    members.stop()
    members.listen(time.monotonic_ns() + int(load.timeout_s * 1e9) + HANDED_IN_NS, lambda _: False)
    if counting:
        timings = members.timings
        first, last = (int(timings["due"].min()), int(timings["done"].max())) if len(timings) else (start, last)
        after = _settled(server, target.model, before, int(np.sum(timings["outcome"] != NOT_SENT)))
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
    """The counters once they hold all requests: Triton answers first and counts then."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        after = Counters.read(server.url, model)
        counted = after - before
        if counted.requests + counted.failed_requests >= sent or time.monotonic() > deadline:
            return after
        time.sleep(0.02)


def _busy(server: Running, members: Crew) -> CpuTime:
    """CPU seconds and time so far; two of them make a difference."""
    return CpuTime(
        clients_s=members.cpu_s,
        server_s=None if server.server is None else process_tree.cpu_s(server.server.pid),
        machine_s=process_tree.machine_s(),
        wall_s=time.monotonic(),
        cores=cores(),
    )
