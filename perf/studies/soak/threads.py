"""Threads that share one blocking client for each model."""

import contextlib
import itertools
import threading
from collections.abc import Mapping

from clients import Model
from perf.studies.soak.call import Call
from perf.studies.soak.job import Job
from perf.studies.soak.ledger import Ledger
from perf.studies.soak.settle import settle


def threads(job: Job, ledger: Ledger, stop: threading.Event) -> None:
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


def _call(job: Job, caller: int, models: Mapping[str, Model], ledger: Ledger, stop: threading.Event) -> None:
    for number in itertools.count():
        call = Call.drawn(job, caller, number)
        if stop.wait(call.think_s):
            return
        settle(call, models[call.model], ledger)
