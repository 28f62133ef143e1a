"""The callers of one client process: threads that share a blocking client, or tasks that share an asynchronous one."""

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Mapping

from clients import AsyncModel, Model
from perf.studies.soak.call import SoakCall
from perf.studies.soak.job import ClientJob
from perf.studies.soak.ledger import CallLedger
from perf.studies.soak.settle import settle, settle_async


def threads(job: ClientJob, ledger: CallLedger, stop: threading.Event) -> None:
    """Call from threads until `stop`."""
    with contextlib.ExitStack() as opened:
        url = job.url(job.transport)
        models = {name: opened.enter_context(Model(name, url=url, transport=job.transport)) for name in job.models}
        callers = [
            threading.Thread(target=_call_in_thread, args=(job, caller, models, ledger, stop), daemon=True)
            for caller in range(job.callers)
        ]
        for thread in callers:
            thread.start()
        for thread in callers:
            thread.join()


def _call_in_thread(
    job: ClientJob, caller: int, models: Mapping[str, Model], ledger: CallLedger, stop: threading.Event
) -> None:
    for number in itertools.count():
        call = SoakCall.drawn(job, caller, number)
        if stop.wait(call.think_s):
            return
        settle(call, models[call.model], ledger)


def tasks(job: ClientJob, ledger: CallLedger, stop: threading.Event) -> None:
    """Call from the tasks of an event loop until `stop`; some calls are cancelled."""
    asyncio.run(_gather(job, ledger, stop))


async def _gather(job: ClientJob, ledger: CallLedger, stop: threading.Event) -> None:
    async with contextlib.AsyncExitStack() as opened:
        models = {}
        for name in job.models:
            model = AsyncModel(name, url=job.url(job.transport), transport=job.transport, coalesce=job.coalesce)
            models[name] = await opened.enter_async_context(model)
        await asyncio.gather(*(_call_in_task(job, caller, models, ledger, stop) for caller in range(job.callers)))


async def _call_in_task(
    job: ClientJob, caller: int, models: Mapping[str, AsyncModel], ledger: CallLedger, stop: threading.Event
) -> None:
    for number in itertools.count():
        call = SoakCall.drawn(job, caller, number)
        await asyncio.sleep(call.think_s)
        if stop.is_set():
            return
        await settle_async(call, models[call.model], ledger)
