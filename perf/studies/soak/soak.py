"""One soak from start to end: a server of its own, clients that call it, readings, and the record."""

import contextlib
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from clients.regions import FOLDER
from perf.studies.experiment import now, origin
from perf.studies.soak import gauges
from perf.studies.soak.crew import ClientCrew, ClientProcess, crew
from perf.studies.soak.gauges import Gauges
from perf.studies.soak.job import MODELS, jobs
from perf.studies.soak.record import Served, SoakRecord, User
from perf.studies.soak.repository import build
from serve.launcher import Server, Settings, launch
from serve.management import api
from serve.management.statistics import Counters
from triton_batching.processes import Footprint

# Readings of a run: enough for the slope, and too few to slow the clients.
READINGS, LEAST_EVERY_S = 150, 0.5
CHECK_S = 0.5
LINES, LINE_EVERY_S = 60, 5.0
# Seconds in which the processes must end after the server: the reaper waits 10 s for a server that has died.
GONE_S = 20.0
LOG_CHARACTERS = 300


@dataclass(frozen=True, kw_only=True)
class SoakRun:
    """The arguments of the program; clients call for `seconds`. `progress` gets a line now and then."""

    minutes: float
    seed: int
    command: tuple[str, ...]
    progress: Callable[[str], None]

    @property
    def seconds(self) -> float:
        """How long clients call."""
        return self.minutes * 60


def run(soak: SoakRun) -> SoakRecord:
    """Run the soak; Ctrl-C ends it early, with the results until then."""
    started_at = now()
    with tempfile.TemporaryDirectory(prefix="perf-soak-") as name:
        folder, models = Path(name) / "tmp", build(Path(name) / "models")
        folder.mkdir()
        soak.progress("tritonserver is starting")
        with launch(Settings(models=MODELS, repository=models, environment={"TMPDIR": str(folder)})) as server:
            soak.progress(f"tritonserver serves {', '.join(MODELS)}")
            version = api.call(server.http_url, "")["version"]
            clients, readings, seconds, interrupted = _call(soak, server, folder)
            served = _served(server)
            processes = {**gauges.of_server(server), **gauges.reaper(server.grpc_url)}
        clients.faults += _left(server, processes)
    soak.progress("judging what grew")
    return SoakRecord(
        minutes=soak.minutes,
        seconds=round(seconds, 1),
        interrupted=interrupted,
        seed=soak.seed,
        server_version=version,
        users=tuple(map(_user, clients.members)),
        served=served,
        failures=clients.failures,
        failed=tuple(clients.failed),
        faults=tuple(clients.faults),
        growths=tuple(readings.judged(seconds)),
        **origin(soak.command, started_at),
    )


def _call(soak: SoakRun, server: Server, folder: Path) -> tuple[ClientCrew, Gauges, float, bool]:
    """Let the clients call; returns them, the readings, the seconds, and whether it was ended by Ctrl-C."""
    work = jobs(seed=soak.seed, grpc_url=server.grpc_url, http_url=server.http_url, folder=str(folder))
    with crew(work) as clients:
        readings = _gauges(server, clients, folder)
        begin = time.monotonic()
        interrupted = _watch(soak, server, clients, readings)
        seconds = time.monotonic() - begin
        soak.progress("clients end their calls")
        with contextlib.suppress(KeyboardInterrupt):
            clients.stop()
        if not clients.faults:
            _check(soak, server, clients, readings, seconds)
    return clients, readings, seconds, interrupted


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


def _watch(soak: SoakRun, server: Server, clients: ClientCrew, readings: Gauges) -> bool:
    """Listen and read until the time is over, the server has changed, or Ctrl-C; returns whether it was Ctrl-C."""
    every = max(LEAST_EVERY_S, soak.seconds / READINGS)
    line_every = max(LINE_EVERY_S, soak.seconds / LINES)
    begin = time.monotonic()
    read_s = line_s = 0.0
    try:
        while (at_s := time.monotonic() - begin) < soak.seconds and clients.working:
            if at_s >= read_s:
                readings.read(at_s)
                read_s = at_s + every
            if at_s >= line_s:
                soak.progress(_line(soak, at_s, clients, readings))
                line_s = at_s + line_every
            clients.listen(min(CHECK_S, soak.seconds - at_s))
            if _check(soak, server, clients, readings, at_s):
                return False
    except KeyboardInterrupt:
        return True
    return False


def _check(soak: SoakRun, server: Server, clients: ClientCrew, readings: Gauges, at_s: float) -> bool:
    """Whether processes of the server have changed since the start, which is noted as a fault."""
    if changed := readings.changed():
        clients.faults.append(f"after {at_s:.0f} s {changed}; the log says: {_log_line(server)}")
        soak.progress(f"{changed}\n{server.log_tail()}")
    return bool(changed)


def _line(soak: SoakRun, at_s: float, clients: ClientCrew, readings: Gauges) -> str:
    counts = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(clients.counts.items()))
    memory = readings.latest("tritonserver: memory") / 2**20
    failures = clients.failures + len(clients.faults)
    first = f", the first: {clients.failed[0]}" if clients.failed else ""
    return (
        f"{at_s:5.0f} of {soak.seconds:.0f} s: {clients.calls:,} calls ({counts or 'none yet'}), "
        f"tritonserver {memory:.0f} MiB, {failures} failures{first}"
    )


def _log_line(server: Server) -> str:
    """The line of the log with the error, without the addresses of the signal handler."""
    lines = [line.strip() for line in server.log_tail().splitlines() if line.strip()]
    error = next((line for line in lines if "Signal" in line or "error" in line.lower()), "".join(lines[-1:]))
    return error[:LOG_CHARACTERS]


def _served(server: Server) -> dict[str, Served]:
    """The server's counters by model; empty if it has died."""
    served = {}
    for model in MODELS:
        with contextlib.suppress(api.ServerError):
            counted = Counters.read(server.grpc_url, model)
            served[model] = Served(
                requests=counted.requests,
                failed_requests=counted.failed_requests,
                rows=counted.rows,
                executions=counted.executions,
            )
    return served


def _left(server: Server, processes: Mapping[str, int]) -> list[str]:
    """The processes and files that the server left behind, a line each."""
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
