"""Tasks of one event loop that share one asynchronous client for each model; some calls are cancelled."""

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Mapping

from clients import AsyncModel
from perf.studies.soak.call import SoakCall
from perf.studies.soak.job import ClientJob
from perf.studies.soak.ledger import CallLedger
from perf.studies.soak.settle import settle_async


def tasks(job: ClientJob, ledger: CallLedger, stop: threading.Event) -> None:
    """Until `stop`."""
    asyncio.run(_main(job, ledger, stop))


async def _main(job: ClientJob, ledger: CallLedger, stop: threading.Event) -> None:
    async with contextlib.AsyncExitStack() as opened:
        models = {}
        for name in job.models:
            one = AsyncModel(name, url=job.url(job.transport), transport=job.transport, coalesce=job.coalesce)
            models[name] = await opened.enter_async_context(one)
        await asyncio.gather(*(_call(job, caller, models, ledger, stop) for caller in range(job.callers)))


async def _call(
    job: ClientJob, caller: int, models: Mapping[str, AsyncModel], ledger: CallLedger, stop: threading.Event
) -> None:
    for number in itertools.count():
        call = SoakCall.drawn(job, caller, number)
        await asyncio.sleep(call.think_s)
        if stop.is_set():
            return
        await settle_async(call, models[call.model], ledger)
