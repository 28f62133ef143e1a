"""A client process of a soak: it calls until the order to stop, checks every answer, and reports how calls ended."""

import asyncio
import contextlib
import itertools
import multiprocessing
import os
import signal
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import get_args

from clients import AsyncModel, Model, TransportName
from perf.studies.soak.call import CallOutcome, ClientJob, SoakCall, generator, outcome_of

# A call without an answer for this time after the order to stop is lost; good ones wait for a few executions of 20 ms.
LOST_S = 30.0
# Failures that a process reports in full, and characters of each; it only counts the others.
REPORTED, MESSAGE_CHARACTERS = 20, 400
# Added to the number of a client that is opened and closed for what is drawn once for all its calls; its most calls.
PER_CLIENT, MOST_CALLS = 1 << 40, 4
# The share of children that are killed: half of them in a call, the others at any moment, often while they open.
KILLED_SHARE, IN_CALL_S, ANY_TIME_S = 0.4, (0.0001, 0.015), (0.0001, 0.15)


@dataclass(kw_only=True)
class CallReport:
    """How the calls of a process ended; `failed` has the first of `failures` in full."""

    outcomes: Counter[CallOutcome] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    failures: int = 0

    def add(self, other: "CallReport") -> None:
        """Add the calls of another process."""
        self.outcomes += other.outcomes
        self.failures += other.failures
        self.failed += other.failed[: REPORTED - len(self.failed)]


class CallLedger:
    """The calls of all threads of a process: each begins once and ends once."""

    def __init__(self, worker: int) -> None:
        self.report = CallReport()
        self._worker = worker
        self._lock = threading.Lock()
        self._in_flight: dict[tuple[int, int], SoakCall] = {}

    def begin(self, call: SoakCall) -> None:
        """Log a call that is about to be sent."""
        with self._lock:
            self._in_flight[call.caller, call.number] = call

    def end(self, call: SoakCall, outcome: CallOutcome, message: str = "") -> None:
        """Log how a call ended."""
        with self._lock:
            del self._in_flight[call.caller, call.number]
            self.report.outcomes[outcome] += 1
        if outcome not in call.allowed:
            self.fail(call.caller, call.number, outcome, message, call)

    def lose(self) -> None:
        """Log that the calls in flight are lost."""
        for call in list(self._in_flight.values()):
            self.end(call, CallOutcome.LOST, f"no answer and no error within {LOST_S:.0f} s of the order to stop")

    def fail(self, caller: int, number: int, outcome: CallOutcome, message: str, call: SoakCall | None = None) -> None:
        """Log a failure of a call, or of a client outside a call, with the numbers that repeat it."""
        place = f"worker {self._worker}, caller {caller}, call {number}"
        kind = f" ('{call.model}', {call.kind})" if call else ""
        failed = f"{place}{kind}: {outcome}: {message[:MESSAGE_CHARACTERS]}"
        with self._lock:
            self.report.add(CallReport(failed=[failed], failures=1))


def make_call(call: SoakCall, model: Model, ledger: CallLedger) -> None:
    """Make a call that blocks, check its answer and log how it ended."""
    ledger.begin(call)
    try:
        answer = model.predict(*call.inputs, timeout_s=call.timeout_s)
    except Exception as error:
        ledger.end(call, outcome_of(error), _described(error))
    else:
        ledger.end(call, *call.checked(answer))


async def make_call_async(call: SoakCall, model: AsyncModel, ledger: CallLedger) -> None:
    """Make a call in a task of its own, which is cancelled after `call.cancel_after_s`."""
    ledger.begin(call)
    task = asyncio.create_task(model.predict(*call.inputs, timeout_s=call.timeout_s))
    if call.cancel_after_s is not None:
        await asyncio.sleep(call.cancel_after_s)
        task.cancel()
    # wait() raises nothing itself, so a CancelledError is the call's.
    await asyncio.wait((task,))
    if task.cancelled():
        ledger.end(call, CallOutcome.CANCELLED, "CancelledError")
    elif error := task.exception():
        ledger.end(call, outcome_of(error), _described(error))
    else:
        ledger.end(call, *call.checked(task.result()))


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _blocking(job: ClientJob, model: str) -> Model:
    return Model(model, url=job.url(job.transport), transport=job.transport)


def _asynchronous(job: ClientJob, model: str) -> AsyncModel:
    return AsyncModel(model, url=job.url(job.transport), transport=job.transport, coalesce=job.coalesce)


def opening(job: ClientJob, caller: int, number: int) -> tuple[ClientJob, list[SoakCall]]:
    """A client that is opened for a few calls: the job with its only model and its transport, and the calls."""
    rng = generator(job, caller, PER_CLIENT + number)
    opened = replace(
        job,
        models=(job.models[int(rng.integers(len(job.models)))],),
        transport=get_args(TransportName)[int(rng.integers(4))],
        coalesce=bool(rng.integers(2)),
    )
    calls = int(rng.integers(1, MOST_CALLS + 1))
    return opened, [SoakCall.draw(opened, caller, number * MOST_CALLS + offset) for offset in range(calls)]


def _threads(job: ClientJob, ledger: CallLedger, stop: threading.Event) -> None:
    """Call from threads that share a blocking client per model, until `stop`."""
    with contextlib.ExitStack() as stack:
        models = {name: stack.enter_context(_blocking(job, name)) for name in job.models}

        def call(caller: int) -> None:
            for number in itertools.count():
                call = SoakCall.draw(job, caller, number)
                if stop.wait(call.think_s):
                    return
                make_call(call, models[call.model], ledger)

        _in_threads(job.callers, call)


def _tasks(job: ClientJob, ledger: CallLedger, stop: threading.Event) -> None:
    """Call from tasks that share an asynchronous client per model, until `stop`; some calls are cancelled."""

    async def call(caller: int, models: Mapping[str, AsyncModel]) -> None:
        for number in itertools.count():
            call = SoakCall.draw(job, caller, number)
            await asyncio.sleep(call.think_s)
            if stop.is_set():
                return
            await make_call_async(call, models[call.model], ledger)

    async def run() -> None:
        async with contextlib.AsyncExitStack() as stack:
            models = {name: await stack.enter_async_context(_asynchronous(job, name)) for name in job.models}
            await asyncio.gather(*(call(caller, models) for caller in range(job.callers)))

    asyncio.run(run())


def _openings(job: ClientJob, ledger: CallLedger, stop: threading.Event) -> None:
    """Open a client, call a few times and close it, until `stop`; half of the callers are asynchronous."""

    def call(caller: int) -> None:
        for number in itertools.count():
            opened, calls = opening(job, caller, number)
            if stop.wait(calls[0].think_s):
                return
            try:
                if caller % 2:
                    asyncio.run(_open_async(opened, calls, ledger))
                else:
                    _open(opened, calls, ledger)
            except Exception as error:
                message = f"'{opened.models[0]}', {opened.transport}: {_described(error)}"
                ledger.fail(caller, PER_CLIENT + number, CallOutcome.OTHER, message)

    _in_threads(job.callers, call)


def _open(opened: ClientJob, calls: list[SoakCall], ledger: CallLedger) -> None:
    with _blocking(opened, opened.models[0]) as model:
        for call in calls:
            make_call(call, model, ledger)


async def _open_async(opened: ClientJob, calls: list[SoakCall], ledger: CallLedger) -> None:
    async with _asynchronous(opened, opened.models[0]) as model:
        await asyncio.gather(*(make_call_async(call, model, ledger) for call in calls))


def _in_threads(count: int, target: Callable[[int], None]) -> None:
    """Run `target` with the numbers below `count`, each in a thread, to the end."""
    running = [threading.Thread(target=target, args=(number,), daemon=True) for number in range(count)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


def _children(job: ClientJob, ledger: CallLedger, parent: Connection) -> None:
    """Run `job.callers` children at a time, until the parent orders to stop."""
    for number in itertools.count():
        if parent.poll(0):
            return
        living = [(caller, *_fork(job, caller, number)) for caller in range(job.callers)]
        for caller, child, pipe, calls in living:
            try:
                ended = pipe.recv() if pipe.poll(LOST_S) else None
            except (EOFError, OSError):
                ended = None
            pipe.close()
            child.join(1)
            child.kill()
            child.join()
            if ended:
                ledger.report.add(ended)
            elif child.exitcode == -signal.SIGALRM:
                ledger.report.outcomes[CallOutcome.KILLED] += calls
            else:
                message = f"a child ended with code {child.exitcode} before its report"
                ledger.fail(caller, PER_CLIENT + number, CallOutcome.OTHER, message)


def _fork(job: ClientJob, caller: int, number: int) -> tuple[BaseProcess, Connection, int]:
    """Start a child; returns its process, the pipe for its report, and the number of its calls."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    opened, calls = opening(job, caller, number)
    child = context.Process(target=_live, args=(opened, calls, caller, number, theirs))
    child.start()
    theirs.close()
    return child, ours, len(calls)


def _live(opened: ClientJob, calls: list[SoakCall], caller: int, number: int, pipe: Connection) -> None:
    """Open a client, call and report; SIGALRM, whose default is to end the process at once, kills some children."""
    rng = generator(opened, caller, 2 * PER_CLIENT + number)
    killed, in_call = rng.random() < KILLED_SHARE, bool(rng.integers(2))
    ledger = CallLedger(opened.worker)
    try:
        if killed and not in_call:
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(*ANY_TIME_S))
        with _blocking(opened, opened.models[0]) as model:
            if killed and in_call:
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(*IN_CALL_S))
            for call in calls:
                make_call(call, model, ledger)
    except Exception as error:
        ledger.fail(caller, PER_CLIENT + number, CallOutcome.OTHER, f"outside a call: {_described(error)}")
    pipe.send(ledger.report)


def work(job: ClientJob, parent: Connection) -> None:
    """Call until the parent orders to stop or is gone, and send the report."""
    # Ctrl-C reaches all processes of the terminal; the parent decides what to do.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TMPDIR"] = tempfile.tempdir = job.folder
    ledger, stop, ended = CallLedger(job.worker), threading.Event(), threading.Event()
    try:
        if job.shape == "children":
            # Without a second thread, since a lock that it holds during a fork is never released in the child.
            _children(job, ledger, parent)
        else:
            threading.Thread(target=_await_stop, args=(parent, ledger, stop, ended), daemon=True).start()
            {"threads": _threads, "tasks": _tasks, "openings": _openings}[job.shape](job, ledger, stop)
    except Exception as error:
        ledger.fail(-1, -1, CallOutcome.OTHER, f"the process could not go on: {_described(error)}")
    ended.set()
    parent.send(ledger.report)


def _await_stop(parent: Connection, ledger: CallLedger, stop: threading.Event, ended: threading.Event) -> None:
    """Wait for the order to stop, and report calls that do not end then; without a parent the process ends here."""
    try:
        parent.recv()
    except (EOFError, OSError):
        os._exit(1)
    stop.set()
    if not ended.wait(LOST_S):
        ledger.lose()
        parent.send(ledger.report)
        os._exit(1)
