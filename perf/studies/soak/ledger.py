"""The calls of one client process: each begins once and ends once; a failure has the numbers that repeat it."""

import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from perf.studies.soak.call import SoakCall
from perf.studies.soak.outcome import CallOutcome

# A call without an answer for this time is lost. The slowest good call waits for a few executions of 20 ms.
LOST_S = 30.0
# Failures that a process reports in full; it only counts the others.
REPORTED = 20
# Characters of an error's message that are reported.
MESSAGE_CHARACTERS = 400
REPORT_S = 0.5
STOP = "stop"


@dataclass(frozen=True, kw_only=True)
class Failed:
    """A failed call or process. The seed, worker, caller and number repeat it; `model` is empty for a process."""

    worker: int
    caller: int
    number: int
    model: str
    kind: str
    outcome: str
    message: str
    after_s: float

    def __str__(self) -> str:
        place = f"worker {self.worker}, caller {self.caller}, call {self.number}"
        kind = f" ('{self.model}', {self.kind})" if self.model else ""
        return f"{place}{kind}: {self.outcome}: {self.message}"


@dataclass(frozen=True, kw_only=True)
class CallReport:
    """What happened in a process since its last report; `in_flight` is the number of calls without an end."""

    began: int
    ended: Counter[CallOutcome]
    failed: tuple[Failed, ...]
    failures: int
    in_flight: int
    last: bool = False


@dataclass(kw_only=True)
class CallLedger:
    """Counts the calls of all threads of a process; `clock` is in seconds."""

    worker: int
    clock: Callable[[], float] = time.monotonic
    _start: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _in_flight: dict[tuple[int, int], tuple[SoakCall, float]] = field(default_factory=dict)
    _began: int = 0
    _ended: Counter[CallOutcome] = field(default_factory=Counter)
    _failed: list[Failed] = field(default_factory=list)
    _failures: int = 0
    _reported: int = 0

    def __post_init__(self) -> None:
        self._start = self.clock()

    def begin(self, call: SoakCall) -> None:
        """Log a call that is about to be sent."""
        with self._lock:
            self._in_flight[call.caller, call.number] = (call, self.clock())
            self._began += 1

    def end(self, call: SoakCall, outcome: CallOutcome, message: str = "") -> None:
        """Log how a call ended; a call that counts as lost is not counted again."""
        with self._lock:
            if self._in_flight.pop((call.caller, call.number), None) is None:
                return
            self._ended[outcome] += 1
            if outcome not in call.allowed and outcome is not CallOutcome.KILLED:
                self._fail(call.caller, call.number, outcome, message, call)

    def fault(self, caller: int, number: int, message: str) -> None:
        """Log a failure outside a call: a client did not open, a child died."""
        with self._lock:
            self._fail(caller, number, CallOutcome.OTHER, message)

    def report(self, *, last: bool = False) -> CallReport:
        """What is new since the last report; a call in flight for longer than `LOST_S` counts as lost."""
        with self._lock:
            now = self.clock()
            for key, (call, since) in list(self._in_flight.items()):
                if now - since > LOST_S:
                    del self._in_flight[key]
                    self._ended[CallOutcome.LOST] += 1
                    message = f"no answer and no error within {LOST_S:.0f} s"
                    self._fail(call.caller, call.number, CallOutcome.LOST, message, call)
            report = CallReport(
                began=self._began,
                ended=self._ended,
                failed=tuple(self._failed),
                failures=self._failures,
                in_flight=len(self._in_flight),
                last=last,
            )
            self._began, self._ended, self._failed, self._failures = 0, Counter(), [], 0
            return report

    def _fail(self, caller: int, number: int, outcome: CallOutcome, message: str, call: SoakCall | None = None) -> None:
        self._failures += 1
        if self._reported >= REPORTED:
            return
        self._reported += 1
        self._failed.append(
            Failed(
                worker=self.worker,
                caller=caller,
                number=number,
                model=call.model if call else "",
                kind=str(call.kind) if call else "",
                outcome=str(outcome),
                message=message[:MESSAGE_CHARACTERS],
                after_s=round(self.clock() - self._start, 1),
            )
        )


class ParentPipe:
    """A client process's pipe to its parent: sends reports at a steady pace, and receives the order to stop.

    For one thread.
    """

    def __init__(self, parent: Connection, ledger: CallLedger) -> None:
        self._parent, self._ledger = parent, ledger
        self._sent = time.monotonic()
        self._stopped = False

    def stopped(self) -> bool:
        """Whether the parent ordered to stop; sends a report that is due. Without a parent the process ends here."""
        try:
            if time.monotonic() - self._sent >= REPORT_S:
                self._sent = time.monotonic()
                self._parent.send(self._ledger.report())
            self._stopped = self._stopped or (self._parent.poll(0) and self._parent.recv() == STOP)
        except (OSError, EOFError):
            os._exit(1)
        return self._stopped

    def last(self) -> None:
        """Send the last report."""
        self._parent.send(self._ledger.report(last=True))
