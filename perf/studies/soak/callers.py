"""How a client process calls: threads or tasks that share clients, and clients that are opened for a few calls.

`make_call` and `make_call_async` make one call, check its answer and log how it ended.
"""

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self, get_args

from clients import AsyncModel, Model
from clients.transport import Transport
from perf.studies.soak.call import PER_CLIENT, SoakCall, generator
from perf.studies.soak.job import ClientJob
from perf.studies.soak.ledger import CallLedger
from perf.studies.soak.outcome import CallOutcome, of

# The most calls of a client that is opened and closed.
MOST_CALLS = 4


class CallLog(Protocol):
    """Takes the begin and the end of every call: a ledger, or a child's pipe to one."""

    def begin(self, call: SoakCall) -> None:
        """Log a call that is about to be sent."""

    def end(self, call: SoakCall, outcome: CallOutcome, message: str = "") -> None:
        """Log how a call ended."""


def make_call(call: SoakCall, model: Model, log: CallLog) -> None:
    """Make a call that blocks."""
    log.begin(call)
    try:
        answer = model.predict(*call.inputs, timeout_s=call.timeout_s)
    except Exception as error:
        log.end(call, of(error), described(error))
    else:
        log.end(call, *checked(call, answer))


async def make_call_async(call: SoakCall, model: AsyncModel, log: CallLog) -> None:
    """Make a call in a task of its own, which is cancelled after `call.cancel_after_s`."""
    log.begin(call)
    task = asyncio.create_task(model.predict(*call.inputs, timeout_s=call.timeout_s))
    if call.cancel_after_s is not None:
        await asyncio.sleep(call.cancel_after_s)
        task.cancel()
    # wait() raises nothing itself, so a CancelledError is the call's.
    await asyncio.wait((task,))
    if task.cancelled():
        log.end(call, CallOutcome.CANCELLED, "CancelledError")
    elif error := task.exception():
        log.end(call, of(error), described(error))
    else:
        log.end(call, *checked(call, task.result()))


def checked(call: SoakCall, answer: Any) -> tuple[CallOutcome, str]:
    """Whether an answer is right, and what is wrong with it."""
    problem = call.request.problem(answer)
    return (CallOutcome.WRONG, problem) if problem else (CallOutcome.RIGHT, "")


def described(error: BaseException) -> str:
    """The error in one line."""
    return f"{type(error).__name__}: {error}"


@dataclass(frozen=True, kw_only=True)
class Opening:
    """A client that is opened, makes `calls` calls and is closed. `job` has only its model."""

    job: ClientJob
    transport: Transport
    coalesce: bool
    calls: int

    @classmethod
    def draw(cls, job: ClientJob, caller: int, number: int) -> Self:
        """The opening with this number; the same for the same seed."""
        rng = generator(job, caller, PER_CLIENT + number)
        return cls(
            job=replace(job, models=(job.models[int(rng.integers(len(job.models)))],)),
            transport=get_args(Transport)[int(rng.integers(4))],
            coalesce=bool(rng.integers(2)),
            calls=int(rng.integers(1, MOST_CALLS + 1)),
        )

    @property
    def model(self) -> str:
        """The model that it calls."""
        return self.job.models[0]

    @property
    def url(self) -> str:
        """The server's address."""
        return self.job.url(self.transport)


def threads(job: ClientJob, ledger: CallLedger, stop: threading.Event) -> None:
    """Call from threads that share a blocking client per model, until `stop`."""
    with contextlib.ExitStack() as stack:
        url = job.url(job.transport)
        models = {name: stack.enter_context(Model(name, url=url, transport=job.transport)) for name in job.models}
        _run_threads(job.callers, lambda caller: _call_in_thread(job, caller, models, ledger, stop))


def _call_in_thread(
    job: ClientJob, caller: int, models: Mapping[str, Model], ledger: CallLedger, stop: threading.Event
) -> None:
    for number in itertools.count():
        call = SoakCall.draw(job, caller, number)
        if stop.wait(call.think_s):
            return
        make_call(call, models[call.model], ledger)


def tasks(job: ClientJob, ledger: CallLedger, stop: threading.Event) -> None:
    """Call from tasks that share an asynchronous client per model, until `stop`; some calls are cancelled."""
    asyncio.run(_run_tasks(job, ledger, stop))


async def _run_tasks(job: ClientJob, ledger: CallLedger, stop: threading.Event) -> None:
    async with contextlib.AsyncExitStack() as stack:
        models = {}
        for name in job.models:
            model = AsyncModel(name, url=job.url(job.transport), transport=job.transport, coalesce=job.coalesce)
            models[name] = await stack.enter_async_context(model)
        await asyncio.gather(*(_call_in_task(job, caller, models, ledger, stop) for caller in range(job.callers)))


async def _call_in_task(
    job: ClientJob, caller: int, models: Mapping[str, AsyncModel], ledger: CallLedger, stop: threading.Event
) -> None:
    for number in itertools.count():
        call = SoakCall.draw(job, caller, number)
        await asyncio.sleep(call.think_s)
        if stop.is_set():
            return
        await make_call_async(call, models[call.model], ledger)


def openings(job: ClientJob, ledger: CallLedger, stop: threading.Event) -> None:
    """Open a client, call a few times and close it, until `stop`; half of the callers are asynchronous."""
    _run_threads(job.callers, lambda caller: _open_clients(job, caller, ledger, stop))


def _open_clients(job: ClientJob, caller: int, ledger: CallLedger, stop: threading.Event) -> None:
    for number in itertools.count():
        opening = Opening.draw(job, caller, number)
        calls = [SoakCall.draw(opening.job, caller, number * MOST_CALLS + offset) for offset in range(opening.calls)]
        if stop.wait(calls[0].think_s):
            return
        try:
            if caller % 2:
                asyncio.run(_open_async(opening, calls, ledger))
            else:
                with Model(opening.model, url=opening.url, transport=opening.transport) as model:
                    for call in calls:
                        make_call(call, model, ledger)
        except Exception as error:
            message = f"'{opening.model}', {opening.transport}: {described(error)}"
            ledger.fault(caller, PER_CLIENT + number, message)


async def _open_async(opening: Opening, calls: list[SoakCall], ledger: CallLedger) -> None:
    async with AsyncModel(
        opening.model, url=opening.url, transport=opening.transport, coalesce=opening.coalesce
    ) as model:
        await asyncio.gather(*(make_call_async(call, model, ledger) for call in calls))


def _run_threads(count: int, target: Callable[[int], None]) -> None:
    """Run `target` with the numbers below `count`, each in a thread, to the end."""
    running = [threading.Thread(target=target, args=(number,), daemon=True) for number in range(count)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
