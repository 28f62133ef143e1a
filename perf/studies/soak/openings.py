"""Clients that are opened, called a few times and closed, again and again: blocking ones, and asynchronous ones."""

import asyncio
import itertools
import threading
from dataclasses import dataclass, replace
from typing import Self, get_args

from clients import AsyncModel, Model
from clients.transport import Transport
from perf.studies.soak.call import ONCE, SoakCall, generator
from perf.studies.soak.job import ClientJob
from perf.studies.soak.ledger import CallLedger
from perf.studies.soak.settle import described, settle, settle_async

MOST_CALLS = 4


@dataclass(frozen=True, kw_only=True)
class Opening:
    """What one client is and how often it calls, drawn once. `job` has its model alone."""

    job: ClientJob
    transport: Transport
    coalesce: bool
    calls: int

    @classmethod
    def drawn(cls, job: ClientJob, caller: int, number: int) -> Self:
        """The opening with this number; the same for the same seed."""
        rng = generator(job, caller, ONCE + number)
        return cls(
            job=replace(job, models=(job.models[int(rng.integers(len(job.models)))],)),
            transport=get_args(Transport)[int(rng.integers(4))],
            coalesce=bool(rng.integers(2)),
            calls=int(rng.integers(1, MOST_CALLS + 1)),
        )

    @property
    def model(self) -> str:
        """The one model that it calls."""
        return self.job.models[0]


def openings(job: ClientJob, ledger: CallLedger, stop: threading.Event) -> None:
    """Until `stop`."""
    callers = [
        threading.Thread(target=_open, args=(job, caller, ledger, stop), daemon=True) for caller in range(job.callers)
    ]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join()


def _open(job: ClientJob, caller: int, ledger: CallLedger, stop: threading.Event) -> None:
    for number in itertools.count():
        opening = Opening.drawn(job, caller, number)
        calls = [SoakCall.drawn(opening.job, caller, number * MOST_CALLS + offset) for offset in range(opening.calls)]
        if stop.wait(calls[0].think_s):
            return
        try:
            if caller % 2:
                asyncio.run(_asynchronous(opening, calls, ledger))
            else:
                _blocking(opening, calls, ledger)
        except Exception as error:
            ledger.fault(caller, ONCE + number, f"'{opening.model}', {opening.transport}: {described(error)}")


def _blocking(opening: Opening, calls: list[SoakCall], ledger: CallLedger) -> None:
    url = opening.job.url(opening.transport)
    with Model(opening.model, url=url, transport=opening.transport) as model:
        for call in calls:
            settle(call, model, ledger)


async def _asynchronous(opening: Opening, calls: list[SoakCall], ledger: CallLedger) -> None:
    client = AsyncModel(
        opening.model, url=opening.job.url(opening.transport), transport=opening.transport, coalesce=opening.coalesce
    )
    async with client as model:
        await asyncio.gather(*(settle_async(call, model, ledger) for call in calls))
