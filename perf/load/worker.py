"""One client process: it sends requests, checks every reply, and reports to its parent.

There may be hundreds of them, so it imports the client and numpy and no more.
"""

import asyncio
import contextlib
import itertools
import os
import re
import selectors
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clients import AsyncModel, Model, TransportName
from clients.errors import ClientError, RejectedError
from perf.load.differ import right
from perf.load.timings import FAILED, HOOKS, MOMENTS, NOT_SENT, REQUEST, RIGHT, WRONG, Moments, Timings, request_id

REPORT_NS = 500_000_000
# Time between two checks for a message of the parent; a check costs a tenth of a request.
HEAR_NS = 20_000_000
# Pause after an error, so that a server that is down is not called in a tight loop.
PAUSE_S = 0.02
STOP = "stop"
NEVER_NS = 1 << 62
WAITED = re.compile(r"refused after [\d.]+ of ")

Arrays = tuple[NDArray[np.generic], ...]


@dataclass(frozen=True, kw_only=True)
class Job:
    """The work of one process.

    `requests` are pairs of inputs and right outputs, sent in turn. `due_s` are the due times of an open loop, in
    seconds after the start. None is a closed loop with `in_flight` requests in flight, which ends after `count`
    requests or when the parent says stop. `in_flight_limit` is the share of this process. `first` is the number of the
    first request. `niceness` lowers the priority. `headers` are those of every request.
    """

    worker: int
    url: str
    model: str
    transport: TransportName
    timeout_s: float
    requests: Sequence[tuple[Arrays, Arrays]]
    tolerances: Sequence[float]
    count: int | None = None
    in_flight: int = 1
    due_s: NDArray[np.float64] | None = None
    in_flight_limit: int = 1
    first: int = 0
    niceness: int = 0
    headers: Mapping[str, str] | None = None

    @property
    def numbers(self) -> Iterator[int]:
        """The numbers of the requests of a closed loop."""
        return itertools.count(self.first) if self.count is None else iter(range(self.first, self.first + self.count))


@dataclass(frozen=True, kw_only=True)
class Report:
    """What happened since the last report.

    `cpu_s` is the CPU time of the process since the start. Every request due before `until_ns` is in a report, or is
    still in flight; `going_ns` says when those in flight were due.
    """

    timings: Timings
    errors: dict[str, int]
    cpu_s: float
    last: bool
    until_ns: int
    going_ns: tuple[int, ...]


@dataclass(kw_only=True)
class Notes:
    """What the next report will hold; `send` empties it.

    `going` maps the numbers of the requests in flight to their due times. The next request is due at `next_ns`.
    """

    worker: int
    parent: Connection
    rows: list[tuple[int, ...]] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    cpu_from: float = field(default_factory=time.process_time)
    sent_ns: int = field(default_factory=time.monotonic_ns)
    heard_ns: int = 0
    is_stopped: bool = False
    going: dict[int, int] = field(default_factory=dict)
    next_ns: int = NEVER_NS

    def add(self, number: int, due: int, called: int, moments: Moments, outcome: int) -> None:
        """Add a finished request."""
        now = time.monotonic_ns()
        self.rows.append((self.worker, number, due, called, moments.written, moments.received, now, outcome))

    def stopped(self) -> bool:
        """Report if it is time, and return whether the parent says stop or is gone."""
        now = time.monotonic_ns()
        if now - self.sent_ns > REPORT_NS:
            self.send()
        if now - self.heard_ns >= HEAR_NS:
            self.heard_ns = now
            # The parent sends only the stop, and its end closes the pipe; both can be read.
            self.is_stopped = self.is_stopped or self.parent.poll(0)
        return self.is_stopped

    def send(self, *, last: bool = False) -> None:
        """Report to the parent."""
        timings = np.array(self.rows, dtype=REQUEST)
        cpu_s, now = time.process_time() - self.cpu_from, time.monotonic_ns()
        until, going = min(now, self.next_ns), tuple(self.going.values())
        self.parent.send(
            Report(timings=timings, errors=dict(self.errors), cpu_s=cpu_s, last=last, until_ns=until, going_ns=going)
        )
        self.rows, self.errors, self.sent_ns = [], Counter(), now


def work(job: Job, parent: Connection) -> None:
    """The main function of the process: connect, say ready, wait for the start, send, report."""
    # Ctrl-C reaches every process of the terminal; the parent handles it and stops this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(job.niceness)
    try:
        if job.due_s is None and job.in_flight == 1:
            _closed(job, parent)
        else:
            with asyncio.Runner(loop_factory=_punctual) as runner:
                runner.run(_many(job, parent))
    except (EOFError, ConnectionError):
        return  # the parent is gone
    except ClientError as error:
        parent.send(str(error))


def _closed(job: Job, parent: Connection) -> None:
    with Model(
        job.model, url=job.url, transport=job.transport, timeout_s=job.timeout_s, headers=job.headers, hooks=HOOKS
    ) as model:
        with contextlib.suppress(RejectedError):  # a rejection is an answer too
            model.predict(*job.requests[0][0])
        _start(parent)
        notes = Notes(worker=job.worker, parent=parent)
        for number in job.numbers:
            if notes.stopped():
                break
            inputs, outputs = job.requests[number % len(job.requests)]
            moments = Moments()
            MOMENTS.set(moments)
            called = time.monotonic_ns()
            try:
                reply = model.predict(*inputs, request_id=request_id(job.worker, number))
            except ClientError as error:
                notes.errors[_short(error)] += 1
                notes.add(number, called, called, moments, FAILED)
                time.sleep(PAUSE_S)
            else:
                notes.add(number, called, called, moments, RIGHT)
                if not _right(reply, outputs, job.tolerances):
                    notes.rows[-1] = (*notes.rows[-1][:-1], WRONG)
        notes.send(last=True)


async def _many(job: Job, parent: Connection) -> None:
    """Many requests in flight in one process."""
    async with AsyncModel(
        job.model, url=job.url, transport=job.transport, timeout_s=job.timeout_s, headers=job.headers, hooks=HOOKS
    ) as model:
        with contextlib.suppress(RejectedError):  # a rejection is an answer too
            await model.predict(*job.requests[0][0])
        start = await asyncio.to_thread(_start, parent)
        notes = Notes(worker=job.worker, parent=parent)
        if job.due_s is None:
            await _crowd(job, model, notes)
        else:
            await _open(job, model, notes, start + (job.due_s * 1e9).astype(np.int64))
        for number, due in notes.going.items():
            notes.errors[f"no answer {job.timeout_s:g} s after the last request"] += 1
            notes.add(number, due, due, Moments(), FAILED)
        notes.going.clear()
        notes.send(last=True)


async def _crowd(job: Job, model: AsyncModel, notes: Notes) -> None:
    """A closed loop of `in_flight` clients, no two of which send the same request."""
    numbers = job.numbers

    async def client(place: int) -> None:
        requests = job.requests[place :: job.in_flight]
        for turn, number in enumerate(numbers):
            await _send(job, model, notes, number, time.monotonic_ns(), requests[turn % len(requests)])
            if notes.rows and notes.rows[-1][-1] == FAILED:
                await asyncio.sleep(PAUSE_S)
            if notes.stopped():
                return

    clients = [asyncio.create_task(client(place)) for place in range(job.in_flight)]
    # Wakes up to report and to notice a stop even if no answer arrives.
    while not notes.stopped() and not all(client.done() for client in clients):
        await asyncio.wait(clients, timeout=0.1)
    await asyncio.wait(clients, timeout=job.timeout_s)


async def _open(job: Job, model: AsyncModel, notes: Notes, due_ns: NDArray[np.int64]) -> None:
    going: set[asyncio.Task[None]] = set()
    for number, due in enumerate(due_ns.tolist(), job.first):
        notes.next_ns = due
        if await _stopped_before(due, notes):
            break
        if len(going) < job.in_flight_limit:
            task = asyncio.create_task(_send(job, model, notes, number, due, job.requests[number % len(job.requests)]))
            going.add(task)
            task.add_done_callback(going.discard)
        else:
            notes.add(number, due, 0, Moments(), NOT_SENT)
        # Lets requests leave and answers arrive even if all requests are overdue.
        await asyncio.sleep(0)
    notes.next_ns = NEVER_NS
    if going:
        await asyncio.wait(going, timeout=job.timeout_s)


async def _stopped_before(due: int, notes: Notes) -> bool:
    """Wait until `due`, in slices so that reports leave on time; True if the parent says stop before."""
    while not notes.stopped():
        left = (due - time.monotonic_ns()) / 1e9
        if left <= 0:
            return False
        await asyncio.sleep(min(left, 0.2))
    return True


async def _send(
    job: Job, model: AsyncModel, notes: Notes, number: int, due: int, request: tuple[Arrays, Arrays]
) -> None:
    inputs, outputs = request
    moments = Moments()
    MOMENTS.set(moments)
    notes.going[number] = due
    called = time.monotonic_ns()
    try:
        reply = await model.predict(*inputs, request_id=request_id(job.worker, number))
    except ClientError as error:
        notes.errors[_short(error)] += 1
        del notes.going[number]
        notes.add(number, due, called, moments, FAILED)
        return
    del notes.going[number]
    at = len(notes.rows)
    notes.add(number, due, called, moments, RIGHT)
    if not _right(reply, outputs, job.tolerances):
        notes.rows[at] = (*notes.rows[at][:-1], WRONG)


def _punctual() -> asyncio.AbstractEventLoop:
    """An event loop on select, which wakes within microseconds; epoll rounds every wait up to a millisecond."""
    return asyncio.SelectorEventLoop(selectors.SelectSelector())


def _start(parent: Connection) -> int:
    """Say ready, wait for the start of all processes, and return it in nanoseconds of the monotonic clock."""
    parent.send("")
    start = int(parent.recv())
    time.sleep(max(0.0, (start - time.monotonic_ns()) / 1e9))
    return start


def _right(reply: Any, outputs: Arrays, tolerances: Sequence[float]) -> bool:
    return right(reply if isinstance(reply, tuple) else (reply,), outputs, tolerances)


def _short(error: ClientError) -> str:
    # The rejections of a batch policy name the wait of each request; without it they count as the same error.
    return WAITED.sub("refused within ", f"{type(error).__name__}: {error}")[:300]
