"""What a soak reads of all its processes every few seconds, and whether the server's are still the same."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from clients.regions import FOLDER, PREFIX
from perf.studies.soak.growth import BYTES, WARM_UP, Growth, judge
from serve.launcher import Server
from serve.revival import instances
from triton_batching.processes import Footprint, tree, with_argument
from triton_batching.processes import name as name_of

REAPER, PROGRAM = "reaper.py", "tritonserver"


@dataclass(kw_only=True)
class Series:
    """The readings of one thing: when, in seconds of the run, and how much."""

    unit: str
    times: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)


@dataclass(kw_only=True)
class Gauges:
    """`processes` names every process to read by its pid; of `servers` (those of the server alone) none may change."""

    processes: Callable[[], Mapping[str, int]]
    servers: Callable[[], Mapping[str, int]]
    files: Mapping[str, Callable[[], int]]
    series: dict[str, Series] = field(default_factory=dict)
    _known: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._known = self.servers()

    def changed(self) -> str:
        """Which process of the server is gone or new, in one line; empty when all are those of the start."""
        now = self.servers()
        if now == self._known:
            return ""
        lines = [
            f"{name} was process {self._known.get(name, 'none')} and is {now.get(name, 'none')}"
            for name in sorted({*now, *self._known})
            if now.get(name) != self._known.get(name)
        ]
        return f"a process of the server died or was started again: {'; '.join(lines)}"

    def read(self, at_s: float) -> None:
        """Read everything once."""
        for name, pid in self.processes().items():
            if found := Footprint.of(pid):
                self._add(f"{name}: memory", BYTES, at_s, found.memory_bytes)
                self._add(f"{name}: descriptors", "descriptors", at_s, found.descriptors)
                self._add(f"{name}: threads", "threads", at_s, found.threads)
        for name, count in self.files.items():
            self._add(name, "files", at_s, count())

    def judged(self, seconds: float) -> list[Growth]:
        """Every series, after `seconds` of a run."""
        warm_s, count = seconds * WARM_UP, len(self.series)
        return [
            judge(name, series.unit, series.times, series.values, warm_s=warm_s, of=count)
            for name, series in self.series.items()
        ]

    def latest(self, name: str) -> float:
        """The last reading of a series; 0 before the first."""
        return self.series[name].values[-1] if name in self.series else 0.0

    def _add(self, name: str, unit: str, at_s: float, value: float) -> None:
        series = self.series.setdefault(name, Series(unit=unit))
        series.times.append(at_s)
        series.values.append(value)


def of_server(server: Server) -> dict[str, int]:
    """tritonserver and the processes of its model instances, by name."""
    stubs: dict[str, int] = {}
    named = instances(server)
    for pid in sorted(named):
        number = 1 + sum(name.startswith(f"stub of {named[pid]} ") for name in stubs)
        stubs[f"stub of {named[pid]} {number}"] = pid
    main = (pid for pid in tree(server.pid) if name_of(pid) == PROGRAM)
    if server.running() and (pid := next(main, 0)):
        return {"tritonserver": pid, **stubs}
    return stubs


def reaper(url: str) -> dict[str, int]:
    """The process that lets go of dead clients' shared memory on the server at `url`."""
    for pid, arguments in with_argument(url):
        if any(Path(argument).name == REAPER for argument in arguments):
            return {"reaper": pid}
    return {}


def shared_files(server: Server) -> int:
    """Files in /dev/shm of this server and of clients of any server on this machine."""
    return sum(path.name.startswith((server.shared_memory_prefix, PREFIX)) for path in FOLDER.iterdir())


def temporary_files(folders: Iterable[Path]) -> int:
    """Files and folders below the temporary ones; links are not followed."""
    return sum(1 for folder in folders for _ in _below(folder))


def _below(folder: Path) -> Iterator[str]:
    for _, folders, files in os.walk(folder):
        yield from folders
        yield from files
