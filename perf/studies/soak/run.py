"""One soak from start to end: a server of its own, client processes, readings of all processes, and the record."""

import contextlib
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from clients._shared_memory import FOLDER, PREFIX
from perf.studies.experiment import now, origin
from perf.studies.soak.call import MODELS, ClientJob, jobs
from perf.studies.soak.client import LOST_S, CallReport, work
from perf.studies.soak.record import BYTES, Growth, Served, SoakRecord, User
from perf.studies.soak.repository import build
from serve.launcher import Server, Settings, launch
from serve.management import api
from serve.management.statistics import Counters
from serve.revival import instances
from triton_batching.processes import Footprint, name, tree, with_argument

# Readings of a run: enough for the slope, and too few to slow the clients. The first third is warm-up.
READINGS, LEAST_EVERY_S, WARM_UP = 150, 0.5, 1 / 3
# Seconds between the order to stop and the report: calls that do not end, and closing the clients.
END_S = LOST_S + 15.0
# Seconds in which the processes must end after the server: the reaper waits 10 s for a server that has died.
GONE_S = 20.0


@dataclass(kw_only=True)
class ClientProcess:
    """One process, and its report once it has ended."""

    job: ClientJob
    process: BaseProcess
    pipe: Connection
    report: CallReport = field(default_factory=CallReport)

    def end(self) -> str:
        """Take the report after the order to stop; returns what went wrong."""
        try:
            if not self.pipe.poll(END_S):
                return f"{self.job.name}: did not end within {END_S:.0f} s"
            self.report = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(5)
            return f"{self.job.name}: the process ended with code {self.process.exitcode} before its report"
        return ""


@contextlib.contextmanager
def _clients(work_of: Sequence[ClientJob]) -> Iterator[list[ClientProcess]]:
    """Start one process per job; at the end all processes are ended, by force if needed."""
    context = multiprocessing.get_context("forkserver")
    # A process that imports the clients is forked for each worker, so that no worker inherits a thread or a connection.
    context.set_forkserver_preload(["perf.studies.soak.client"])
    members: list[ClientProcess] = []
    try:
        for job in work_of:
            ours, theirs = context.Pipe()
            # Not a daemon, since daemons may not have children.
            process = context.Process(target=work, args=(job, theirs))
            process.start()
            theirs.close()
            members.append(ClientProcess(job=job, process=process, pipe=ours))
        yield members
    finally:
        for member in members:
            member.pipe.close()
        for member in members:
            member.process.join(5)
            member.process.kill()
            member.process.join()


def _of_server(server: Server) -> dict[str, int]:
    """tritonserver and the processes of its model instances, by name."""
    named = {name(pid): pid for pid in tree(server.pid) if name(pid) == "tritonserver"} if server.running() else {}
    for pid, model in sorted(instances(server).items()):
        number = 1 + sum(stub.startswith(f"stub of {model} ") for stub in named)
        named[f"stub of {model} {number}"] = pid
    return named


def _reaper(server: Server) -> dict[str, int]:
    """The process that frees the shared memory of dead clients of the server."""
    found = [pid for pid, command in with_argument(server.grpc_url) if any("reaper.py" in text for text in command)]
    return {"reaper": found[0]} if found else {}


@dataclass(kw_only=True)
class Soak:
    """One run with its server, its client processes and the readings of each series: unit, times, values."""

    server: Server
    folder: Path
    seconds: float
    progress: Callable[[str], None]
    clients: list[ClientProcess]
    faults: list[str] = field(default_factory=list)
    series: dict[str, tuple[str, list[float], list[float]]] = field(default_factory=dict)

    def watch(self) -> tuple[float, bool]:
        """Read until the time is over, a process has ended, or Ctrl-C; returns the seconds, and if it was Ctrl-C."""
        every = max(LEAST_EVERY_S, self.seconds / READINGS)
        begin, at_s, first = time.monotonic(), 0.0, _of_server(self.server)
        try:
            while at_s < self.seconds and not self.faults and all(each.process.is_alive() for each in self.clients):
                self._read(at_s)
                time.sleep(min(every, self.seconds - at_s))
                at_s = time.monotonic() - begin
                self._compare(first, at_s)
        except KeyboardInterrupt:
            return at_s, True
        return at_s, False

    def end(self) -> None:
        """Order all clients to stop, and take their reports."""
        for member in self.clients:
            with contextlib.suppress(OSError):
                member.pipe.send("stop")
        self.faults += filter(None, (member.end() for member in self.clients))

    def growths(self, seconds: float) -> Iterator[Growth]:
        """The growth of every series that has readings after the warm-up."""
        for series, (unit, times, values) in self.series.items():
            warm = sum(at_s < seconds * WARM_UP for at_s in times)
            if times[warm:]:
                yield Growth.judge(series, unit, times[warm:], values[warm:])

    def _read(self, at_s: float) -> None:
        """Read everything once."""
        clients = {each.job.name: each.process.pid or 0 for each in self.clients}
        for process, pid in {**_of_server(self.server), **clients, **_reaper(self.server)}.items():
            if footprint := Footprint.of(pid):
                self._add(f"{process}: memory", BYTES, at_s, footprint.memory_bytes)
                self._add(f"{process}: descriptors", "descriptors", at_s, footprint.descriptors)
                self._add(f"{process}: threads", "threads", at_s, footprint.threads)
        prefixes = (self.server.shared_memory_prefix, PREFIX)
        shared = sum(path.name.startswith(prefixes) for path in FOLDER.iterdir())
        self._add("files in /dev/shm", "files", at_s, shared)
        below = (len(names) + len(files) for top in self._temporary for _, names, files in os.walk(top))
        self._add("temporary files", "files", at_s, sum(below))
        memory = self.series["tritonserver: memory"][2][-1] if "tritonserver: memory" in self.series else 0
        self.progress(f"{at_s:.0f} of {self.seconds:.0f} s: tritonserver holds {memory / 2**20:.0f} MiB")

    @property
    def _temporary(self) -> tuple[Path, Path]:
        return self.folder, self.server.log.parent

    def _add(self, series: str, unit: str, at_s: float, value: float) -> None:
        _, times, values = self.series.setdefault(series, (unit, [], []))
        times.append(at_s)
        values.append(value)

    def _compare(self, first: Mapping[str, int], at_s: float) -> None:
        """Note the processes of the server that are gone or new."""
        current = _of_server(self.server)
        self.faults += [
            f"after {at_s:.0f} s {process} was process {first.get(process, 'none')} and is "
            f"{current.get(process, 'none')}; the log ends with: {self.server.log_tail()[-300:]}"
            for process in sorted({*current, *first})
            if current.get(process) != first.get(process)
        ]


def run(minutes: float, seed: int, command: tuple[str, ...], progress: Callable[[str], None]) -> SoakRecord:
    """Run the soak; Ctrl-C ends it early, with the results until then. `progress` gets a line now and then."""
    started_at = now()
    with tempfile.TemporaryDirectory(prefix="perf-soak-") as top:
        folder, models = Path(top) / "tmp", build(Path(top) / "models")
        folder.mkdir()
        progress("tritonserver is starting")
        with launch(Settings(models=MODELS, repository=models, environment={"TMPDIR": str(folder)})) as server:
            version = api.call(server.http_url, "")["version"]
            work_of = jobs(seed=seed, grpc_url=server.grpc_url, http_url=server.http_url, folder=str(folder))
            with _clients(work_of) as clients:
                soak = Soak(server=server, folder=folder, seconds=minutes * 60, progress=progress, clients=clients)
                seconds, interrupted = soak.watch()
                progress("clients end their calls")
                soak.end()
            served = _served(server)
            processes = {**_of_server(server), **_reaper(server)}
        soak.faults += _left(server, processes)
    reports = [member.report for member in clients]
    return SoakRecord(
        minutes=minutes,
        seconds=round(seconds, 1),
        interrupted=interrupted,
        seed=seed,
        server_version=version,
        users=tuple(map(_user, clients)),
        served=served,
        failures=sum(report.failures for report in reports),
        failed=tuple(failed for report in reports for failed in report.failed),
        faults=tuple(soak.faults),
        growths=tuple(soak.growths(seconds)),
        **origin(command, started_at),
    )


def _served(server: Server) -> dict[str, Served]:
    """The server's counters by model; empty if it has died."""
    served = {}
    for model in MODELS:
        with contextlib.suppress(api.ServerError):
            counted = Counters.read(server.grpc_url, model)
            served[model] = Served(rows=counted.rows, executions=counted.executions)
    return served


def _left(server: Server, processes: Mapping[str, int]) -> list[str]:
    """The processes and files that the server left behind, a line each."""
    deadline = time.monotonic() + GONE_S
    while time.monotonic() < deadline and any(Footprint.of(pid) for pid in processes.values()):
        time.sleep(0.1)
    left = [f"{process} (process {pid}) still runs" for process, pid in processes.items() if Footprint.of(pid)]
    files = [path.name for path in FOLDER.glob(f"{server.shared_memory_prefix}*")]
    left += [f"{len(files)} files of the server are left in /dev/shm, one is {files[0]}"] if files else []
    left += ["the server's temporary folder is left behind"] if server.log.parent.exists() else []
    return left


def _user(member: ClientProcess) -> User:
    outcomes = {str(outcome): count for outcome, count in sorted(member.report.outcomes.items())}
    job = member.job
    return User(name=job.name, models=job.models, callers=job.callers, outcomes=outcomes)
