"""The readings of all processes of a soak, and whether the server's processes are still the same."""

import os
from collections.abc import Callable, Iterable, Mapping
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
    """The readings of one quantity: times in seconds of the run, and values."""

    unit: str
    times: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)


@dataclass(kw_only=True)
class Gauges:
    """`processes` maps names to the pids to read; those of `servers`, the server's own processes, must not change."""

    processes: Callable[[], Mapping[str, int]]
    servers: Callable[[], Mapping[str, int]]
    files: Mapping[str, Callable[[], int]]
    series: dict[str, Series] = field(default_factory=dict)
    _first: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._first = self.servers()

    def changed(self) -> str:
        """The processes of the server that are gone or new, in one line; empty if there are none."""
        now = self.servers()
        if now == self._first:
            return ""
        lines = [
            f"{name} was process {self._first.get(name, 'none')} and is {now.get(name, 'none')}"
            for name in sorted({*now, *self._first})
            if now.get(name) != self._first.get(name)
        ]
        return f"a process of the server died or was started again: {'; '.join(lines)}"

    def read(self, at_s: float) -> None:
        """Read everything once."""
        for name, pid in self.processes().items():
            if footprint := Footprint.of(pid):
                self._add(f"{name}: memory", BYTES, at_s, footprint.memory_bytes)
                self._add(f"{name}: descriptors", "descriptors", at_s, footprint.descriptors)
                self._add(f"{name}: threads", "threads", at_s, footprint.threads)
        for name, count in self.files.items():
            self._add(name, "files", at_s, count())

    def judged(self, seconds: float) -> list[Growth]:
        """The verdict on every series, after `seconds` of a run."""
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
    """The process that frees the shared memory of dead clients on the server at `url`."""
    for pid, arguments in with_argument(url):
        if any(Path(argument).name == REAPER for argument in arguments):
            return {"reaper": pid}
    return {}


def shared_files(server: Server) -> int:
    """The number of files in /dev/shm of this server, and of clients of any server on this machine."""
    return sum(path.name.startswith((server.shared_memory_prefix, PREFIX)) for path in FOLDER.iterdir())


def temporary_files(folders: Iterable[Path]) -> int:
    """The number of files and folders below `folders`; links are not followed."""
    return sum(len(names) + len(files) for folder in folders for _, names, files in os.walk(folder))
