"""Threads that share one blocking client for each model."""

import contextlib
import itertools
import threading
from collections.abc import Mapping

from clients import Model
from perf.studies.soak.call import SoakCall
from perf.studies.soak.job import ClientJob
from perf.studies.soak.ledger import CallLedger
from perf.studies.soak.settle import settle


def threads(job: ClientJob, ledger: CallLedger, stop: threading.Event) -> None:
    """Until `stop`."""
    with contextlib.ExitStack() as opened:
        url = job.url(job.transport)
        models = {name: opened.enter_context(Model(name, url=url, transport=job.transport)) for name in job.models}
        callers = [
            threading.Thread(target=_call, args=(job, caller, models, ledger, stop), daemon=True)
            for caller in range(job.callers)
        ]
        for one in callers:
            one.start()
        for one in callers:
            one.join()


def _call(job: ClientJob, caller: int, models: Mapping[str, Model], ledger: CallLedger, stop: threading.Event) -> None:
    for number in itertools.count():
        call = SoakCall.drawn(job, caller, number)
        if stop.wait(call.think_s):
            return
        settle(call, models[call.model], ledger)
