"""Forked children that live for a few calls: each opens a client, calls and ends; some get SIGKILL in mid-call.

A child reports each call to its parent through a pipe, `begin NUMBER` before it and `end NUMBER OUTCOME MESSAGE` after
it, so that the parent knows which call a killed child had in flight.
"""

import contextlib
import itertools
import os
import select
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from clients import Model
from perf.studies.soak.call import PER_CLIENT, SoakCall, generator
from perf.studies.soak.callers import MOST_CALLS, Opening, described, make_call
from perf.studies.soak.job import ClientJob
from perf.studies.soak.ledger import LOST_S, MESSAGE_CHARACTERS, CallLedger, ParentPipe
from perf.studies.soak.outcome import CallOutcome

# The share of children that are killed: half of them in a call, the others at any moment, often while they open.
KILLED_SHARE = 0.4
IN_CALL_S, ANY_TIME_S = 0.015, 0.15
POLL_S = 0.005
PAUSE_S = 0.2


@dataclass(kw_only=True)
class Child:
    """A living child and its reports so far; `received` is the part of a line that has no end yet."""

    number: int
    caller: int
    pid: int
    pipe: int
    kill_after_s: float | None
    kill_in_call: bool
    forked_s: float
    calls: Mapping[int, SoakCall]
    began_s: float | None = None
    killed: bool = False
    late: bool = False
    received: str = ""
    in_flight: dict[int, SoakCall] = field(default_factory=dict)

    @property
    def due(self) -> bool:
        """Whether it is time to kill it."""
        since = self.began_s if self.kill_in_call else self.forked_s
        return self.kill_after_s is not None and since is not None and time.monotonic() - since >= self.kill_after_s


def children(job: ClientJob, ledger: CallLedger, parent: ParentPipe) -> None:
    """Run `job.callers` children at a time, until the parent orders to stop."""
    for number in itertools.count():
        if parent.stopped():
            return
        living = [_fork(job, caller, number) for caller in range(job.callers)]
        while living:
            parent.stopped()
            _follow(living, ledger)
        time.sleep(float(generator(job, job.callers, PER_CLIENT + number).uniform(0, PAUSE_S)))


def _fork(job: ClientJob, caller: int, number: int) -> Child:
    opening = Opening.draw(job, caller, number)
    first = number * MOST_CALLS
    drawn = [SoakCall.draw(opening.job, caller, first + offset) for offset in range(opening.calls)]
    calls = {call.number: call for call in drawn}
    rng = generator(job, caller, 2 * PER_CLIENT + number)
    in_call = bool(rng.integers(2))
    kill_after_s = float(rng.uniform(0, IN_CALL_S if in_call else ANY_TIME_S)) if rng.random() < KILLED_SHARE else None
    ours, theirs = os.pipe()
    pid = os.fork()
    if not pid:
        _live(opening, calls, theirs)
    os.close(theirs)
    return Child(
        number=number,
        caller=caller,
        pid=pid,
        pipe=ours,
        kill_after_s=kill_after_s,
        kill_in_call=in_call,
        forked_s=time.monotonic(),
        calls=calls,
    )


def _live(opening: Opening, calls: Mapping[int, SoakCall], pipe: int) -> NoReturn:
    """Run the child; it never returns."""
    code = 1
    try:
        log = _PipeLog(pipe)
        with Model(opening.model, url=opening.url, transport=opening.transport) as model:
            for call in calls.values():
                make_call(call, model, log)
        code = 0
    except BaseException as error:
        os.write(pipe, f"fault 0 {described(error)[:MESSAGE_CHARACTERS]!r}\n".encode())
    finally:
        os._exit(code)


class _PipeLog:
    """Writes the child's calls into the pipe; a line is short enough to be written whole."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe

    def begin(self, call: SoakCall) -> None:
        os.write(self._pipe, f"begin {call.number}\n".encode())

    def end(self, call: SoakCall, outcome: CallOutcome, message: str = "") -> None:
        line = message[:MESSAGE_CHARACTERS].replace("\n", " ")
        os.write(self._pipe, f"end {call.number} {outcome.name} {line}\n".encode())


def _follow(living: list[Child], ledger: CallLedger) -> None:
    """Read the children's reports, and kill those that are due."""
    readable, _, _ = select.select([child.pipe for child in living], [], [], POLL_S)
    for child in list(living):
        if child.pipe in readable and not _read(child, ledger):
            living.remove(child)
            _finish(child, ledger)
        elif child.due and not child.killed:
            _kill(child)
            child.killed = True
        elif time.monotonic() - child.forked_s > LOST_S + 2 and not child.late:
            child.late = True
            _kill(child)


def _read(child: Child, ledger: CallLedger) -> bool:
    """Log a child's reports; returns whether there may be more."""
    received = os.read(child.pipe, 1 << 16)
    *lines, child.received = (child.received + received.decode(errors="replace")).split("\n")
    for line in lines:
        event, number, *rest = line.split(" ", 2)
        if event == "fault":
            _fault(child, ledger, f"a child failed outside a call: {' '.join(rest)}")
            continue
        call = child.calls[int(number)]
        if event == "begin":
            child.began_s = child.began_s or time.monotonic()
            child.in_flight[call.number] = call
            ledger.begin(call)
        else:
            outcome, _, message = rest[0].partition(" ")
            child.in_flight.pop(call.number, None)
            ledger.end(call, CallOutcome[outcome], message)
    return bool(received)


def _finish(child: Child, ledger: CallLedger) -> None:
    """Log how an ended child and its calls in flight ended."""
    os.close(child.pipe)
    _, status = os.waitpid(child.pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if child.late:
        _fault(child, ledger, f"a child did not end within {LOST_S:.0f} s")
    elif code and not child.killed and code != 1:
        _fault(child, ledger, f"a child ended with code {code}")
    for call in child.in_flight.values():
        outcome = CallOutcome.KILLED if child.killed else CallOutcome.OTHER
        ledger.end(call, outcome, f"the child ended with code {code} before the answer")


def _fault(child: Child, ledger: CallLedger, message: str) -> None:
    ledger.fault(child.caller, PER_CLIENT + child.number, message)


def _kill(child: Child) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(child.pid, signal.SIGKILL)
