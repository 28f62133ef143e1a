"""One soak from start to end: a server of its own, clients at work on it, readings, and the record."""

import contextlib
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from clients.regions import FOLDER
from perf.studies.soak import gauges
from perf.studies.soak.crew import ClientCrew, ClientProcess, crew
from perf.studies.soak.gauges import Gauges
from perf.studies.soak.job import MODELS, jobs
from perf.studies.soak.record import Served, SoakRecord, User
from perf.studies.soak.repository import build
from serve.launcher import Server, Settings, launch
from serve.management import api
from serve.management.statistics import Counters
from triton_batching.machine import Machine, versions
from triton_batching.processes import Footprint

# Readings of a run: enough for the slope, and too few to slow the clients.
READINGS, LEAST_EVERY_S = 150, 0.5
CHECK_S = 0.5
LINES, LINE_EVERY_S = 60, 5.0
# How long the processes may take to end after the server: the reaper waits 10 s for a server that has died.
GONE_S = 20.0
SAID = 300


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the program was asked to do."""

    minutes: float
    seed: int
    command: tuple[str, ...]

    @property
    def seconds(self) -> float:
        """How long clients call."""
        return self.minutes * 60


@dataclass(frozen=True, kw_only=True)
class Ended:
    """What is known when all calls have ended. `processes` are the server's and the reaper, which end after that."""

    clients: ClientCrew
    watched: Gauges
    seconds: float
    interrupted: bool
    server_version: str
    served: Mapping[str, Served]
    processes: Mapping[str, int]


def run(asked: Asked, told: Callable[[str], None]) -> SoakRecord:
    """Do it all; Ctrl-C ends it early, with what was found so far. `told` gets a line now and then."""
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    with tempfile.TemporaryDirectory(prefix="perf-soak-") as name:
        folder, models = Path(name) / "tmp", build(Path(name) / "models")
        folder.mkdir()
        told("tritonserver is starting")
        with launch(Settings(models=MODELS, repository=models, environment={"TMPDIR": str(folder)})) as server:
            told(f"tritonserver serves {', '.join(MODELS)}")
            ended = _soak(asked, server, folder, told)
        ended.clients.faults += _left(server, ended.processes)
    told("judging what grew")
    return _record(asked, started_at, ended)


def _soak(asked: Asked, server: Server, folder: Path, told: Callable[[str], None]) -> Ended:
    """Everything between the server's start and its end; `folder` is for temporary files."""
    version = api.call(server.http_url, "")["version"]
    work = jobs(seed=asked.seed, grpc_url=server.grpc_url, http_url=server.http_url, folder=str(folder))
    with crew(work) as clients:
        watched = _gauges(server, clients, folder)
        begin = time.monotonic()
        interrupted = _watch(asked, server, clients, watched, told)
        seconds = time.monotonic() - begin
        told("clients end their calls")
        with contextlib.suppress(KeyboardInterrupt):
            clients.stop()
        if not clients.faults:
            _check(server, clients, watched, seconds, told)
    return Ended(
        clients=clients,
        watched=watched,
        seconds=seconds,
        interrupted=interrupted,
        server_version=version,
        served=_served(server),
        processes={**gauges.of_server(server), **gauges.reaper(server.grpc_url)},
    )


def _record(asked: Asked, started_at: str, ended: Ended) -> SoakRecord:
    return SoakRecord(
        minutes=asked.minutes,
        seconds=round(ended.seconds, 1),
        interrupted=ended.interrupted,
        seed=asked.seed,
        started_at=started_at,
        command=asked.command,
        machine=Machine.this(),
        versions=versions(),
        server_version=ended.server_version,
        users=tuple(_user(member) for member in ended.clients.members),
        served=ended.served,
        failures=ended.clients.failures,
        failed=tuple(ended.clients.failed),
        faults=tuple(ended.clients.faults),
        growths=tuple(ended.watched.judged(ended.seconds)),
    )


def _gauges(server: Server, clients: ClientCrew, folder: Path) -> Gauges:
    def processes() -> Mapping[str, int]:
        members = {
            member.job.name: member.process.pid for member in clients.members if member.process.pid and not member.ended
        }
        return {**gauges.of_server(server), **members, **gauges.reaper(server.grpc_url)}

    return Gauges(
        processes=processes,
        servers=lambda: gauges.of_server(server),
        files={
            "files in /dev/shm": lambda: gauges.shared_files(server),
            "temporary files": lambda: gauges.temporary_files((folder, server.log.parent)),
        },
    )


def _watch(asked: Asked, server: Server, clients: ClientCrew, watched: Gauges, told: Callable[[str], None]) -> bool:
    """Listen and read until the time is over, the server has changed, or Ctrl-C; returns whether it was Ctrl-C."""
    every = max(LEAST_EVERY_S, asked.seconds / READINGS)
    line_every = max(LINE_EVERY_S, asked.seconds / LINES)
    begin = time.monotonic()
    read_s = line_s = 0.0
    try:
        while (now := time.monotonic() - begin) < asked.seconds and clients.working:
            if now >= read_s:
                watched.read(now)
                read_s = now + every
            if now >= line_s:
                told(_line(asked, now, clients, watched))
                line_s = now + line_every
            clients.listen(min(CHECK_S, asked.seconds - now))
            if _check(server, clients, watched, now, told):
                return False
    except KeyboardInterrupt:
        return True
    return False


def _check(server: Server, clients: ClientCrew, watched: Gauges, now: float, told: Callable[[str], None]) -> bool:
    """Whether processes of the server have changed since the start, which is noted as a fault."""
    if changed := watched.changed():
        clients.faults.append(f"after {now:.0f} s {changed}; the log says: {_last_words(server)}")
        told(f"{changed}\n{server.log_tail()}")
    return bool(changed)


def _line(asked: Asked, now: float, clients: ClientCrew, watched: Gauges) -> str:
    counts = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(clients.counts.items()))
    memory = watched.latest("tritonserver: memory") / 2**20
    failed = clients.failures + len(clients.faults)
    first = f", the first: {clients.failed[0]}" if clients.failed else ""
    return (
        f"{now:5.0f} of {asked.seconds:.0f} s: {clients.calls:,} calls ({counts or 'none yet'}), "
        f"tritonserver {memory:.0f} MiB, {failed} failures{first}"
    )


def _last_words(server: Server) -> str:
    """What the log says, without the signal handler's addresses: one line."""
    lines = [line.strip() for line in server.log_tail().splitlines() if line.strip()]
    return next((line for line in lines if "Signal" in line or "error" in line.lower()), "".join(lines[-1:]))[:SAID]


def _served(server: Server) -> dict[str, Served]:
    found = {}
    for model in MODELS:
        # A server that died has no counters left.
        with contextlib.suppress(api.ServerError):
            counted = Counters.read(server.grpc_url, model)
            found[model] = Served(
                requests=counted.requests,
                failed_requests=counted.failed_requests,
                rows=counted.rows,
                executions=counted.executions,
            )
    return found


def _left(server: Server, processes: Mapping[str, int]) -> list[str]:
    """What the server left behind."""
    deadline = time.monotonic() + GONE_S
    while time.monotonic() < deadline and any(Footprint.of(pid) for pid in processes.values()):
        time.sleep(0.1)
    left = [f"{name} (process {pid}) still runs" for name, pid in processes.items() if Footprint.of(pid)]
    files = [path.name for path in FOLDER.glob(f"{server.shared_memory_prefix}*")]
    left += [f"{len(files)} files of the server are left in /dev/shm, one is {files[0]}"] if files else []
    left += ["the server's temporary folder is left behind"] if server.log.parent.exists() else []
    return left


def _user(member: ClientProcess) -> User:
    return User(
        name=member.job.name,
        shape=member.job.shape,
        transport=member.job.transport,
        models=member.job.models,
        callers=member.job.callers,
        outcomes={str(outcome): count for outcome, count in sorted(member.counts.items())},
    )
