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

# A call without an answer for so long is lost. The slowest honest one waits for a few executions of 20 ms.
LOST_S = 30.0
# How many failures a process reports in full; it only counts the others.
TOLD = 20
TEXT = 400

REPORT_S = 0.5
STOP = "stop"


@dataclass(frozen=True, kw_only=True)
class Failed:
    """A call, or a process, that ended in what it may not. The seed, worker, caller and number repeat it."""

    worker: int
    caller: int
    number: int
    model: str
    kind: str
    outcome: str
    said: str
    after_s: float

    def __str__(self) -> str:
        where = f"worker {self.worker}, caller {self.caller}, call {self.number}"
        what = f" ('{self.model}', {self.kind})" if self.model else ""
        return f"{where}{what}: {self.outcome}: {self.said}"


@dataclass(frozen=True, kw_only=True)
class CallReport:
    """What happened in a process since its last report; `going` calls are on their way."""

    began: int
    ended: Counter[CallOutcome]
    failed: tuple[Failed, ...]
    failures: int
    going: int
    last: bool = False


@dataclass(kw_only=True)
class CallLedger:
    """Kept by all threads of a process; `clock` is in seconds."""

    worker: int
    clock: Callable[[], float] = time.monotonic
    _start: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _going: dict[tuple[int, int], tuple[SoakCall, float]] = field(default_factory=dict)
    _began: int = 0
    _ended: Counter[CallOutcome] = field(default_factory=Counter)
    _failed: list[Failed] = field(default_factory=list)
    _failures: int = 0
    _told: int = 0

    def __post_init__(self) -> None:
        self._start = self.clock()

    def begin(self, call: SoakCall) -> None:
        """It is about to be sent."""
        with self._lock:
            self._going[call.caller, call.number] = (call, self.clock())
            self._began += 1

    def end(self, call: SoakCall, outcome: CallOutcome, said: str = "") -> None:
        """It ended; one that was lost before is not counted again."""
        with self._lock:
            if self._going.pop((call.caller, call.number), None) is None:
                return
            self._ended[outcome] += 1
            if outcome not in call.allowed and outcome is not CallOutcome.KILLED:
                self._fail(call, outcome, said)

    def fault(self, caller: int, number: int, said: str) -> None:
        """Something other than a call failed: a client did not open, a child died."""
        with self._lock:
            self._note(
                Failed(
                    worker=self.worker,
                    caller=caller,
                    number=number,
                    model="",
                    kind="",
                    outcome=str(CallOutcome.OTHER),
                    said=said[:TEXT],
                    after_s=round(self.clock() - self._start, 1),
                )
            )

    def report(self, *, last: bool = False) -> CallReport:
        """What is new since the last report; a call in flight for longer than `LOST_S` counts as lost."""
        with self._lock:
            now = self.clock()
            for key, (call, since) in list(self._going.items()):
                if now - since > LOST_S:
                    del self._going[key]
                    self._ended[CallOutcome.LOST] += 1
                    self._fail(call, CallOutcome.LOST, f"no answer and no error within {LOST_S:.0f} s")
            report = CallReport(
                began=self._began,
                ended=self._ended,
                failed=tuple(self._failed),
                failures=self._failures,
                going=len(self._going),
                last=last,
            )
            self._began, self._ended, self._failed, self._failures = 0, Counter(), [], 0
            return report

    def _fail(self, call: SoakCall, outcome: CallOutcome, said: str) -> None:
        self._note(
            Failed(
                worker=self.worker,
                caller=call.caller,
                number=call.number,
                model=call.model,
                kind=str(call.kind),
                outcome=str(outcome),
                said=said[:TEXT],
                after_s=round(self.clock() - self._start, 1),
            )
        )

    def _note(self, failed: Failed) -> None:
        self._failures += 1
        if self._told < TOLD:
            self._told += 1
            self._failed.append(failed)


class ParentPipe:
    """A client process's pipe to its parent: reports go out at a steady pace, the word to stop comes in.

    For one thread.
    """

    def __init__(self, parent: Connection, ledger: CallLedger) -> None:
        self._parent, self._ledger = parent, ledger
        self._sent = time.monotonic()
        self._stopped = False

    def stopped(self) -> bool:
        """Whether the parent said stop; sends a report when it is due. The process ends here if the parent is gone."""
        try:
            if time.monotonic() - self._sent >= REPORT_S:
                self._sent = time.monotonic()
                self._parent.send(self._ledger.report())
            # The parent sends one thing only.
            self._stopped = self._stopped or (self._parent.poll(0) and self._parent.recv() == STOP)
        except (OSError, EOFError):
            os._exit(1)
        return self._stopped

    def last(self) -> None:
        """Send the last report."""
        self._parent.send(self._ledger.report(last=True))
