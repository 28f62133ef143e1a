"""The client processes of a run: started, awaited and stopped together, with everything that they have reported."""

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

# Seconds for all first answers, from the message of the start to the start, and for the end of the processes.
READY_S = 60.0
LEAD_S = 0.2
END_S = 5.0


class CrewError(Failure):
    """The processes could not start to send."""


@dataclass(kw_only=True)
class Member:
    """One process and its last report (see `worker.Report`).

    `ended`: it has sent its last report, or it died. `lost`: it died.
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
    """Running processes and everything that they have reported."""

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
        """Number of requests reported so far."""
        return sum(len(part) for part in self.parts)

    @property
    def lost(self) -> int:
        """Number of processes that ended without a last report."""
        return sum(member.lost for member in self.members)

    @property
    def cpu_s(self) -> float:
        """CPU seconds of all processes since the start, as last reported."""
        return sum(member.cpu_s for member in self.members)

    @property
    def until_ns(self) -> int:
        """Every request due before this moment is reported, or in `going_ns`."""
        return min((member.until_ns for member in self.members if not member.ended), default=time.monotonic_ns())

    @property
    def going_ns(self) -> tuple[int, ...]:
        """Due times of the requests that were in flight at the last report of their process."""
        return tuple(due for member in self.members if not member.ended for due in member.going_ns)

    @property
    def ended(self) -> bool:
        """Whether all processes have ended."""
        return all(member.ended for member in self.members)

    def await_ready(self, progress: Callable[[str], None]) -> None:
        """Wait until every process has its first answer; raises `CrewError` with the error of one without."""
        deadline = time.monotonic() + READY_S
        for ready, member in enumerate(self.members):
            if not member.pipe.poll(max(0.0, deadline - time.monotonic())):
                raise CrewError(f"{ready} of {len(self.members)} processes had a first answer after {READY_S:.0f} s.")
            try:
                error = member.pipe.recv()
            except EOFError:
                error = f"a process ended with code {member.process.exitcode} before its first answer."
            if error:
                raise CrewError(error)
            progress(f"{ready + 1} of {len(self.members)} processes are ready")

    def start(self) -> int:
        """Start all processes at the same moment, and return it in nanoseconds of the monotonic clock."""
        self.start_ns = time.monotonic_ns() + int(LEAD_S * 1e9)
        for member in self.members:
            with contextlib.suppress(OSError):
                member.pipe.send(self.start_ns)
        return self.start_ns

    def listen(self, until_ns: int, over: Callable[["Crew"], bool]) -> None:
        """Take reports until `until_ns` of the monotonic clock, until all have ended, or until `over` says so."""
        while not self.ended and (left := (until_ns - time.monotonic_ns()) / 1e9) > 0:
            for pipe in wait([member.pipe for member in self.members if not member.ended], timeout=min(left, 0.2)):
                self._take(next(member for member in self.members if member.pipe is pipe))
            if over(self):
                return

    def stop(self) -> None:
        """Ask all processes to finish their requests in flight and to send their last reports."""
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
    """Start one process per job; at the end wait for them, and kill those that do not end."""
    context = multiprocessing.get_context("forkserver")
    # One process imports the client and forks the others: quick, and none inherits a connection from here.
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
