"""A client process's line to its parent: reports go one way at a steady pace, the word to stop comes the other."""

import os
import time
from multiprocessing.connection import Connection

from perf.studies.soak.ledger import CallLedger

REPORT_S = 0.5
STOP = "stop"


class Line:
    """For one thread."""

    def __init__(self, parent: Connection, ledger: CallLedger) -> None:
        self._parent, self._ledger = parent, ledger
        self._sent = time.monotonic()
        self._told = False

    def stopped(self) -> bool:
        """Report when it is time; whether the parent said stop. Without a parent the process ends here."""
        try:
            if time.monotonic() - self._sent >= REPORT_S:
                self._sent = time.monotonic()
                self._parent.send(self._ledger.report())
            # The parent sends one thing only.
            self._told = self._told or (self._parent.poll(0) and self._parent.recv() == STOP)
        except (OSError, EOFError):
            os._exit(1)
        return self._told

    def last(self) -> None:
        """Say that nothing more comes."""
        self._parent.send(self._ledger.report(last=True))
