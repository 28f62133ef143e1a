"""Many calls over each transport, mixed with cancellations and deadlines; every answer is checked.

Each call sends a number of its own, and the answer must begin with it. Four in five calls are made by the tasks of an
`AsyncModel`, of which some cancel; the others by threads that share a `Model`. Exit code 1 for a wrong answer or
another end than was asked for, or if a process of the server ended.
"""

import argparse
import asyncio
import random
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import psutil
from rich.table import Table

from clients import AsyncModel, ClientError, Model, TimedOutError, TransportName
from perf.records import file
from perf.studies.experiment import Origin, command_line, now, origin, progress_line
from perf.studies.tables import plain_table
from perf.studies.transports import models
from serve.launcher import Server, Settings, launch
from triton_batching.terminal import guarded, program_parser, terminal

TRANSPORTS: tuple[TransportName, ...] = ("grpc", "http", "shared_memory")
MODEL, ELEMENTS = "row", 3200
TASKS, THREADS = 64, 4
RIGHT, LATE, LEFT, WRONG = "right", "late", "left", "wrong"
SOON_S = 0.02
"""Deadlines and cancellations come within this time."""


@dataclass(frozen=True, kw_only=True)
class MixedRecord(Origin):
    """How the calls of each transport ended, and whether the server's processes were the same afterwards."""

    KIND: ClassVar[str] = "mixed calls"
    FORMAT: ClassVar[int] = 1
    ends: Mapping[str, Mapping[str, int]]
    errors: tuple[str, ...]
    server_lasted: bool

    @property
    def passed(self) -> bool:
        """Whether every call ended as it may."""
        return self.server_lasted and not self.errors and not any(ends.get(WRONG) for ends in self.ends.values())

    def write(self, folder: Path) -> Path:
        """Write the record; raises `RecordError`."""
        return file.write(self, folder / "mixed.json")


class Calls:
    """The calls of one transport: `left` of them are to be made, `ends` has how the others ended."""

    def __init__(self, count: int, seed: int) -> None:
        self._lock, self._left, self._random = threading.Lock(), count, random.Random(seed)
        self.ends, self.errors = Counter[str](), list[str]()

    def next(self) -> tuple[int, str, float] | None:
        """The number of the next call, how it may end, and a time in seconds; None after the last one."""
        with self._lock:
            if not self._left:
                return None
            self._left -= 1
            kind = self._random.choices((RIGHT, LATE, LEFT), (8, 1, 1))[0]
            return self._left, kind, self._random.uniform(1e-4, SOON_S)

    def ended(self, end: str, error: BaseException | None = None) -> None:
        """Count a call."""
        with self._lock:
            self.ends[end] += 1
            if error and len(self.errors) < 10:
                self.errors.append(f"{type(error).__name__}: {error}")


def row(number: int) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """One row that begins with a number of its own."""
    array = np.zeros((1, ELEMENTS), np.float32)
    array[0, 0] = number
    return array


async def task(model: AsyncModel, calls: Calls) -> None:
    """Make calls until there is none left."""
    while (call := calls.next()) is not None:
        number, kind, seconds = call
        request = asyncio.ensure_future(model.predict(row(number), timeout_s=seconds if kind == LATE else None))
        if kind == LEFT:
            await asyncio.wait((request,), timeout=seconds)
            request.cancel()
        try:
            answer = await request
            calls.ended(RIGHT if answer.item() == number else WRONG)
        except asyncio.CancelledError as error:
            calls.ended(*((LEFT,) if kind == LEFT else (WRONG, error)))
        except ClientError as error:
            calls.ended(*((LATE,) if kind == LATE and isinstance(error, TimedOutError) else (WRONG, error)))


async def tasks(url: str, transport: TransportName, calls: Calls) -> None:
    """All tasks of an `AsyncModel`."""
    async with AsyncModel(MODEL, url=url, transport=transport) as model:
        await asyncio.gather(*(task(model, calls) for _ in range(TASKS)))


def thread(model: Model, calls: Calls) -> None:
    """Make calls until there is none left; none can be cancelled."""
    while (call := calls.next()) is not None:
        number, kind, seconds = call
        try:
            answer = model.predict(row(number), timeout_s=seconds if kind != RIGHT else None)
            calls.ended(RIGHT if answer.item() == number else WRONG)
        except ClientError as error:
            calls.ended(*((LATE,) if kind != RIGHT and isinstance(error, TimedOutError) else (WRONG, error)))


def threads(url: str, transport: TransportName, calls: Calls) -> None:
    """All threads of a `Model`."""
    with Model(MODEL, url=url, transport=transport) as model:
        started = [threading.Thread(target=thread, args=(model, calls)) for _ in range(THREADS)]
        for each in started:
            each.start()
        for each in started:
            each.join()


def processes(server: Server) -> set[int]:
    """The processes of the server."""
    return {child.pid for child in psutil.Process(server.pid).children(recursive=True)}


def run(count: int, progress: Callable[[str], None]) -> tuple[dict[str, dict[str, int]], list[str], bool]:
    """How `count` calls of each transport ended, the first errors, and whether the server lasted."""
    ends, errors = dict[str, dict[str, int]](), list[str]()
    with tempfile.TemporaryDirectory() as folder:
        models.write(Path(folder), MODEL, (ELEMENTS,), (1,))
        with launch(Settings(models=(MODEL,), repository=Path(folder)), progress=progress) as server:
            before = processes(server)
            for seed, transport in enumerate(TRANSPORTS):
                url = server.http_url if transport == "http" else server.grpc_url
                progress(f"{count:,} calls over {transport}")
                together, alone = Calls(count * 4 // 5, seed), Calls(count - count * 4 // 5, seed)
                asyncio.run(tasks(url, transport, together))
                threads(url, transport, alone)
                ends[transport] = dict(together.ends + alone.ends)
                errors += [f"{transport}: {error}" for error in together.errors + alone.errors]
            lasted = processes(server) == before
    return ends, errors, lasted


def table(ends: Mapping[str, Mapping[str, int]]) -> Table:
    """How the calls ended."""
    rows = plain_table(("transport", "calls", "right answers", "out of time", "cancelled", "wrong"))
    for transport, counts in ends.items():
        figures = (sum(counts.values()), *(counts.get(end, 0) for end in (RIGHT, LATE, LEFT, WRONG)))
        rows.add_row(transport, *(f"{figure:,}" for figure in figures))
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Call and print; exit code 1 for a wrong end, 2 for a mistake, 130 after Ctrl-C."""
    parser = program_parser(
        "python -m perf.studies.cost.mixed", __doc__, example="--results perf/studies/results/clients"
    )
    parser.add_argument("--calls", type=int, default=100_000, help="over each transport (default 100000)")
    parser.add_argument("--results", type=Path, help="also write a record into this folder")
    arguments = parser.parse_args(argv)
    return guarded(lambda: _run(arguments, command_line("cost.mixed", argv)))


def _run(arguments: argparse.Namespace, command: Sequence[str]) -> int:
    console, started_at = terminal(), now()
    with progress_line("mixed calls") as progress:
        ends, errors, lasted = run(arguments.calls, progress)
    console.print(table(ends))
    for error in errors:
        console.print(error, markup=False)
    record = MixedRecord(ends=ends, errors=tuple(errors), server_lasted=lasted, **origin(command, started_at))
    if arguments.results:
        console.print(f"record: {record.write(arguments.results)}", markup=False)
    return 0 if record.passed else 1


if __name__ == "__main__":
    sys.exit(main())
