"""The worker processes of a fleet: started, awaited, stopped; what they report is kept as it comes."""

import contextlib
import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

import numpy as np

from perf.load.timings import Timings, empty
from perf.load.worker import STOP, Job, Report, work
from triton_batching.terminal import Failure

READY_S = 60.0
LEAD_S = 0.2
END_S = 5.0


class CrewError(Failure):
    """The processes could not begin."""


@dataclass(kw_only=True)
class Member:
    """One process, and what it last said: its CPU time, until when its reports hold everything, what is on its way.

    `ended` once it has sent its last report or died.
    """

    process: BaseProcess
    pipe: Connection
    cpu_s: float = 0.0
    until_ns: int = 0
    going_ns: tuple[int, ...] = ()
    ended: bool = False
    lost: bool = False


@dataclass(kw_only=True)
class Crew:
    """Running processes and everything that they have reported.

    `lost` counts those that ended without a last report: what they sent after their last one is not known.
    """

    members: Sequence[Member]
    parts: list[Timings] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    start_ns: int = 0

    @property
    def timings(self) -> Timings:
        """All requests reported so far."""
        return np.concatenate(self.parts) if self.parts else empty()

    @property
    def reported(self) -> int:
        """How many requests are known to be over."""
        return sum(len(part) for part in self.parts)

    @property
    def lost(self) -> int:
        """How many processes died."""
        return sum(member.lost for member in self.members)

    @property
    def cpu_s(self) -> float:
        """CPU seconds of all processes since the start, as last reported."""
        return sum(member.cpu_s for member in self.members)

    @property
    def until_ns(self) -> int:
        """Until when everything that was due is known, or known to be on its way."""
        return min((member.until_ns for member in self.members if not member.ended), default=time.monotonic_ns())

    @property
    def going_ns(self) -> tuple[int, ...]:
        """When the requests were due that were on their way at the last report of their process."""
        return tuple(due for member in self.members if not member.ended for due in member.going_ns)

    @property
    def ended(self) -> bool:
        """Whether no process is at work any more."""
        return all(member.ended for member in self.members)

    def await_ready(self, progress: Callable[[str], None]) -> None:
        """Wait until every process has had its first answer; raises `CrewError` with the words of one that had none."""
        deadline = time.monotonic() + READY_S
        for ready, member in enumerate(self.members):
            if not member.pipe.poll(max(0.0, deadline - time.monotonic())):
                raise CrewError(f"{ready} of {len(self.members)} processes had a first answer after {READY_S:.0f} s.")
            try:
                said = member.pipe.recv()
            except EOFError:
                said = f"a process ended with code {member.process.exitcode} before its first answer."
            if said:
                raise CrewError(said)
            progress(f"{ready + 1} of {len(self.members)} processes are ready")

    def start(self) -> int:
        """Let all begin together; the moment in nanoseconds of the monotonic clock."""
        self.start_ns = time.monotonic_ns() + int(LEAD_S * 1e9)
        for member in self.members:
            with contextlib.suppress(OSError):
                member.pipe.send(self.start_ns)
        return self.start_ns

    def listen(self, until_ns: int, over: Callable[["Crew"], bool]) -> None:
        """Take reports until this moment of the monotonic clock, until all have ended, or until it is `over`."""
        while not self.ended and (left := (until_ns - time.monotonic_ns()) / 1e9) > 0:
            for pipe in wait([member.pipe for member in self.members if not member.ended], timeout=min(left, 0.2)):
                self._take(next(member for member in self.members if member.pipe is pipe))
            if over(self):
                return

    def stop(self) -> None:
        """Ask all to finish the request they are at, and take their last reports; who does not end in time is lost."""
        for member in self.members:
            with contextlib.suppress(OSError):
                member.pipe.send(STOP)

    def _take(self, member: Member) -> None:
        try:
            report = member.pipe.recv()
        except (EOFError, OSError):
            member.ended = member.lost = True
            return
        if isinstance(report, Report):
            self.parts.append(report.timings)
            self.errors.update(report.errors)
            member.cpu_s, member.ended = report.cpu_s, report.last
            member.until_ns, member.going_ns = report.until_ns, report.going_ns
        else:
            self.errors[str(report)] += 1


@contextlib.contextmanager
def crew(jobs: Sequence[Job]) -> Iterator[Crew]:
    """Start one process per job, and end them all at the end, by force if they must."""
    context = multiprocessing.get_context("forkserver")
    # One process imports the client and is forked for each worker: light, and none inherits a connection from here.
    context.set_forkserver_preload(["perf.load.worker"])
    members: list[Member] = []
    try:
        for job in jobs:
            ours, theirs = context.Pipe()
            process = context.Process(target=work, args=(job, theirs), daemon=True)
            process.start()
            theirs.close()
            members.append(Member(process=process, pipe=ours))
        yield Crew(members=members)
    finally:
        for member in members:
            member.pipe.close()
        deadline = time.monotonic() + END_S
        for member in members:
            member.process.join(max(0.0, deadline - time.monotonic()))
            if member.process.is_alive():
                member.process.kill()
                member.process.join()
