"""The client processes of a soak: starts them, takes their reports and stops them."""

import contextlib
import multiprocessing
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from perf.studies.soak.job import ClientJob
from perf.studies.soak.ledger import LOST_S, STOP, CallReport, Failed
from perf.studies.soak.outcome import CallOutcome
from perf.studies.soak.worker import work

# A process without a report for this time hangs.
SILENT_S = LOST_S
# Seconds between the order to stop and the end: a call that is lost, and closing the clients.
END_S = LOST_S + 15.0
# Failures that are recorded in full.
RECORDED = 40


@dataclass(kw_only=True)
class ClientProcess:
    """One process and its reports so far; `ended` after its last report, or when it is given up."""

    job: ClientJob
    process: BaseProcess
    pipe: Connection
    heard_s: float
    began: int = 0
    in_flight: int = 0
    ended: bool = False
    counts: Counter[CallOutcome] = field(default_factory=Counter)


@dataclass(kw_only=True)
class ClientCrew:
    """All processes. `failed` has the first failures in full, `failures` counts all; `faults` are of processes."""

    members: Sequence[ClientProcess]
    failed: list[Failed] = field(default_factory=list)
    failures: int = 0
    faults: list[str] = field(default_factory=list)

    @property
    def counts(self) -> Counter[CallOutcome]:
        """How calls ended, over all processes."""
        return sum((member.counts for member in self.members), Counter())

    @property
    def calls(self) -> int:
        """The number of calls that ended."""
        return sum(self.counts.values())

    @property
    def working(self) -> list[ClientProcess]:
        """The processes that may still report."""
        return [member for member in self.members if not member.ended]

    def listen(self, seconds: float) -> None:
        """Take reports for `seconds`, or until all processes have ended."""
        until = time.monotonic() + seconds
        while (working := self.working) and (left := until - time.monotonic()) > 0:
            for pipe in wait([member.pipe for member in working], timeout=left):
                self._take(next(member for member in working if member.pipe is pipe))
        for member in self.working:
            if time.monotonic() - member.heard_s > SILENT_S:
                self._give_up(member, f"no report for {SILENT_S:.0f} s, with {member.in_flight} calls in flight")

    def stop(self) -> None:
        """Order all processes to stop, and take their last reports."""
        for member in self.working:
            with contextlib.suppress(OSError):
                member.pipe.send(STOP)
        self.listen(END_S)
        for member in self.working:
            self._give_up(member, f"did not end within {END_S:.0f} s, with {member.in_flight} calls in flight")
        for member in self.members:
            if (lost := member.began - sum(member.counts.values())) > 0:
                self.faults.append(f"{member.job.name}: {lost} calls that began have no end")

    def _take(self, member: ClientProcess) -> None:
        try:
            report: CallReport = member.pipe.recv()
        except (EOFError, OSError):
            member.process.join(5)
            self._give_up(member, f"the process ended with code {member.process.exitcode} before its last report")
            return
        member.heard_s = time.monotonic()
        member.began += report.began
        member.in_flight = report.in_flight
        member.counts += report.ended
        member.ended = report.last
        self.failures += report.failures
        self.failed += report.failed[: RECORDED - len(self.failed)]

    def _give_up(self, member: ClientProcess, why: str) -> None:
        member.ended = True
        self.faults.append(f"{member.job.name}: {why}")


@contextlib.contextmanager
def crew(jobs: Sequence[ClientJob]) -> Iterator[ClientCrew]:
    """Start one process per job; at the end all processes are ended, by force if needed."""
    context = multiprocessing.get_context("forkserver")
    # A process that imports the clients is forked for each worker, so that no worker inherits a thread or a connection.
    context.set_forkserver_preload(["perf.studies.soak.worker"])
    members: list[ClientProcess] = []
    try:
        for job in jobs:
            ours, theirs = context.Pipe()
            # Not a daemon, since daemons may not have children.
            process = context.Process(target=work, args=(job, theirs))
            process.start()
            theirs.close()
            members.append(ClientProcess(job=job, process=process, pipe=ours, heard_s=time.monotonic()))
        yield ClientCrew(members=members)
    finally:
        for member in members:
            member.pipe.close()
        for member in members:
            member.process.join(5)
            if member.process.is_alive():
                member.process.kill()
                member.process.join()
