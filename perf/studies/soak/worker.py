"""The main function of a client process: it calls in its shape until it is told to stop, and reports all the time."""

import os
import signal
import tempfile
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection

from perf.studies.soak.callers import tasks, threads
from perf.studies.soak.children import children
from perf.studies.soak.job import ClientJob
from perf.studies.soak.ledger import CallLedger, ParentPipe
from perf.studies.soak.openings import openings

HEAR_S = 0.1
SHAPES: dict[str, Callable[[ClientJob, CallLedger, threading.Event], None]] = {
    "threads": threads,
    "tasks": tasks,
    "openings": openings,
}


def work(job: ClientJob, parent: Connection) -> None:
    """Call until the parent says stop or is gone, and send the last report."""
    # Ctrl-C goes to the whole terminal; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TMPDIR"] = tempfile.tempdir = job.folder
    ledger = CallLedger(worker=job.worker)
    line = ParentPipe(parent, ledger)
    if job.shape == "children":
        # No thread beside it: a lock that another thread holds during a fork is never released in the child.
        children(job, ledger, line)
    else:
        stop, ended = threading.Event(), threading.Event()
        reporter = threading.Thread(target=_report, args=(line, stop, ended), daemon=True, name="reports")
        reporter.start()
        try:
            SHAPES[job.shape](job, ledger, stop)
        except Exception as error:
            ledger.fault(-1, -1, f"the process could not go on: {type(error).__name__}: {error}")
        finally:
            ended.set()
            reporter.join()
    line.last()


def _report(line: ParentPipe, stop: threading.Event, ended: threading.Event) -> None:
    """Until the last call has ended, so that one that never does is found to be lost."""
    while not ended.wait(HEAR_S):
        if line.stopped():
            stop.set()
