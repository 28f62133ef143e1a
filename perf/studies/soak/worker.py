"""The main function of a client process: it calls until the order to stop, and reports at a steady pace."""

import os
import signal
import tempfile
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection

from perf.studies.soak.callers import openings, tasks, threads
from perf.studies.soak.children import children
from perf.studies.soak.job import ClientJob
from perf.studies.soak.ledger import CallLedger, ParentPipe

HEAR_S = 0.1
SHAPES: dict[str, Callable[[ClientJob, CallLedger, threading.Event], None]] = {
    "threads": threads,
    "tasks": tasks,
    "openings": openings,
}


def work(job: ClientJob, parent: Connection) -> None:
    """Call until the parent orders to stop or is gone, and send the last report."""
    # Ctrl-C reaches all processes of the terminal; the parent decides what to do.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TMPDIR"] = tempfile.tempdir = job.folder
    ledger = CallLedger(worker=job.worker)
    pipe = ParentPipe(parent, ledger)
    if job.shape == "children":
        # Without a second thread, since a lock that it holds during a fork is never released in the child.
        children(job, ledger, pipe)
    else:
        stop, ended = threading.Event(), threading.Event()
        reporter = threading.Thread(target=_report, args=(pipe, stop, ended), daemon=True, name="reports")
        reporter.start()
        try:
            SHAPES[job.shape](job, ledger, stop)
        except Exception as error:
            ledger.fault(-1, -1, f"the process could not go on: {type(error).__name__}: {error}")
        finally:
            ended.set()
            reporter.join()
    pipe.last()


def _report(pipe: ParentPipe, stop: threading.Event, ended: threading.Event) -> None:
    """Report until the last call has ended, so that a call that never ends is reported as lost."""
    while not ended.wait(HEAR_S):
        if pipe.stopped():
            stop.set()
