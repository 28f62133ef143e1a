"""Forked children that live for a few calls: each opens a client, calls and ends; some get SIGKILL in mid-call.

A child tells its parent of each call through a pipe, `begin NUMBER` before it and `end NUMBER OUTCOME WORDS` after it,
so that what was on its way when it was killed is known.
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
from perf.studies.soak.call import ONCE, SoakCall, generator
from perf.studies.soak.job import ClientJob
from perf.studies.soak.ledger import LOST_S, TEXT, CallLedger, ParentPipe
from perf.studies.soak.openings import MOST_CALLS, Opening
from perf.studies.soak.outcome import CallOutcome
from perf.studies.soak.settle import described, settle

# Of the children; half of them in a call, the others at any moment, often while they open.
KILLED_SHARE = 0.4
IN_CALL_S, AT_ALL_S = 0.015, 0.15
POLL_S = 0.005
PAUSE_S = 0.2


@dataclass(kw_only=True)
class Child:
    """A living child and what it has told so far."""

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
    said: str = ""
    going: dict[int, SoakCall] = field(default_factory=dict)

    @property
    def due(self) -> bool:
        """Whether it is time to kill it."""
        since = self.began_s if self.kill_in_call else self.forked_s
        return self.kill_after_s is not None and since is not None and time.monotonic() - since >= self.kill_after_s


def children(job: ClientJob, ledger: CallLedger, line: ParentPipe) -> None:
    """`job.callers` children at a time, until the parent says stop."""
    for round_number in itertools.count():
        if line.stopped():
            return
        living = [_fork(job, caller, round_number) for caller in range(job.callers)]
        while living:
            line.stopped()
            _follow(living, ledger)
        time.sleep(float(generator(job, job.callers, ONCE + round_number).uniform(0, PAUSE_S)))


def _fork(job: ClientJob, caller: int, number: int) -> Child:
    opening = Opening.drawn(job, caller, number)
    calls = {_number: SoakCall.drawn(opening.job, caller, _number) for _number in _numbers(opening, number)}
    rng = generator(job, caller, 2 * ONCE + number)
    in_call = bool(rng.integers(2))
    kill_after_s = float(rng.uniform(0, IN_CALL_S if in_call else AT_ALL_S)) if rng.random() < KILLED_SHARE else None
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


def _numbers(opening: Opening, number: int) -> range:
    return range(number * MOST_CALLS, number * MOST_CALLS + opening.calls)


def _live(opening: Opening, calls: Mapping[int, SoakCall], pipe: int) -> NoReturn:
    """What the child does; it never returns."""
    code = 1
    try:
        book, url = _Book(pipe), opening.job.url(opening.transport)
        with Model(opening.model, url=url, transport=opening.transport) as model:
            for call in calls.values():
                settle(call, model, book)
        code = 0
    except BaseException as error:
        os.write(pipe, f"fault 0 {described(error)[:TEXT]!r}\n".encode())
    finally:
        os._exit(code)


class _Book:
    """Writes the child's calls into the pipe; a line is short enough to be written whole."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe

    def begin(self, call: SoakCall) -> None:
        os.write(self._pipe, f"begin {call.number}\n".encode())

    def end(self, call: SoakCall, outcome: CallOutcome, said: str = "") -> None:
        words = said[:TEXT].replace("\n", " ")
        os.write(self._pipe, f"end {call.number} {outcome.name} {words}\n".encode())


def _follow(living: list[Child], ledger: CallLedger) -> None:
    """Take what the children tell, and kill those whose time it is."""
    readable, _, _ = select.select([child.pipe for child in living], [], [], POLL_S)
    for child in list(living):
        if child.pipe in readable and not _heard(child, ledger):
            living.remove(child)
            _buried(child, ledger)
        elif child.due and not child.killed:
            _kill(child)
            child.killed = True
        elif time.monotonic() - child.forked_s > LOST_S + 2 and not child.late:
            child.late = True
            _kill(child)


def _heard(child: Child, ledger: CallLedger) -> bool:
    """Whether it may tell more."""
    received = os.read(child.pipe, 1 << 16)
    *lines, child.said = (child.said + received.decode(errors="replace")).split("\n")
    for text in lines:
        word, number, *rest = text.split(" ", 2)
        if word == "fault":
            ledger.fault(child.caller, ONCE + child.number, f"a child failed outside of a call: {' '.join(rest)}")
            continue
        call = child.calls[int(number)]
        if word == "begin":
            child.began_s = child.began_s or time.monotonic()
            child.going[call.number] = call
            ledger.begin(call)
        else:
            outcome, said = (*rest[0].split(" ", 1), "")[:2]
            child.going.pop(call.number, None)
            ledger.end(call, CallOutcome[outcome], said)
    return bool(received)


def _buried(child: Child, ledger: CallLedger) -> None:
    os.close(child.pipe)
    _, status = os.waitpid(child.pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if child.late:
        ledger.fault(child.caller, ONCE + child.number, f"a child did not end within {LOST_S:.0f} s")
    elif code and not child.killed and code != 1:
        ledger.fault(child.caller, ONCE + child.number, f"a child ended with code {code}")
    for call in child.going.values():
        ended = CallOutcome.KILLED if child.killed else CallOutcome.OTHER
        ledger.end(call, ended, f"its child ended with code {code} before it had an answer")


def _kill(child: Child) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(child.pid, signal.SIGKILL)
