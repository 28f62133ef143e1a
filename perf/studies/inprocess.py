"""Which share of onnxruntime's speed a model keeps in the callers' own process (`serve.inprocess`), without a server.

Callers with one row each, as threads and as tasks, and onnxruntime alone at its best batch size, in turn; each with all
cores. The rates are rows per second, of whole executions: from the end of one to the end of the first one after
`seconds`. A part of an execution would be much of a short turn, in which ResNet-50 runs few.
"""

import argparse
import asyncio
import itertools
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from rich.table import Table

from clients import AsyncModel, Model
from export.graph.recipe import digest
from export.graph.samples import sample
from export.repository import config_file, model_file, model_folder, read_config
from perf.measure.ceiling_run import batch_sizes
from perf.records import file
from perf.stats import rounds
from perf.stats.interval import Interval
from perf.studies.experiment import Origin, command_line, now, onnxruntime_alone, origin, progress_line
from perf.studies.tables import interval_text, plain_table
from serve import inprocess
from serve.inprocess.loaded import Statistics
from triton_batching.machine import cores
from triton_batching.options import path, whole_number
from triton_batching.terminal import guarded, program_parser, terminal

GATE = 0.97
# Seconds for each batch size, to find the best one.
TRY_S = 0.5
WARM_UP = 2
"""Runs before the time is taken: in the first of a shape onnxruntime plans its memory, in the second it takes it."""


@dataclass(frozen=True, kw_only=True)
class InProcessRound:
    """Rows per second of one turn of each side, and the mean rows of the executions of the tasks."""

    alone: float
    threads: float
    tasks: float
    rows_per_execution: float


@dataclass(frozen=True, kw_only=True)
class InProcessRecord(Origin):
    """All rounds of one model, in each of which a side has `seconds`.

    `batch_rows` is onnxruntime's best batch size, the digests are SHA-256.
    """

    KIND: ClassVar[str] = "inprocess"
    FORMAT: ClassVar[int] = 1
    model: str
    callers: int
    seconds: float
    batch_rows: int
    config_sha256: str
    model_sha256: str
    rounds: tuple[InProcessRound, ...]

    @property
    def file_name(self) -> str:
        """The name of the record."""
        return f"{self.model}.inprocess.json"

    def share(self, side: str) -> Interval:
        """The rate of "threads" or "tasks" over that of onnxruntime alone, round by round."""
        return rounds.paired([getattr(turn, side) for turn in self.rounds], [turn.alone for turn in self.rounds])


def measure(
    model: str, *, callers: int, seconds: float, count: int, progress: Callable[[str], None] = lambda _: None
) -> tuple[int, list[InProcessRound]]:
    """The best batch size of onnxruntime alone, and `count` rounds of `seconds` for each side."""
    folder = model_folder(model)
    config = read_config(config_file(folder, None))
    session = onnxruntime_alone(model_file(folder, config), cores())
    rows = sample(config, rows=config.max_batch_size, seed=1)
    progress("batch sizes")
    best = max(batch_sizes(config.max_batch_size), key=lambda size: _alone(session, rows, size, TRY_S))
    row = {name: array[:1] for name, array in rows.items()}
    sides: dict[str, Callable[[], tuple[float, float]]] = {
        "alone": lambda: (_alone(session, rows, best, seconds), 0.0),
        "threads": lambda: _threads(model, row, callers, seconds),
        "tasks": lambda: asyncio.run(_tasks(model, row, callers, seconds)),
    }
    measured = []
    for number in range(count):
        found = {}
        for side in sorted(sides, reverse=number % 2 == 1):
            progress(f"round {number + 1} of {count}: {side}")
            found[side] = sides[side]()
        rates = {side: rate for side, (rate, _) in found.items()}
        measured.append(InProcessRound(**rates, rows_per_execution=found["tasks"][1]))
    return best, measured


def _alone(session: Any, rows: Mapping[str, Any], size: int, seconds: float) -> float:
    feed = {name: array[:size] for name, array in rows.items()}
    for _ in range(WARM_UP):
        session.run(None, feed)
    runs, started = 0, time.perf_counter()
    while (spent := time.perf_counter() - started) < seconds:
        session.run(None, feed)
        runs += 1
    return runs * size / spent


class Turn:
    """One turn of callers: it begins when as many answers have come as there are callers, and lasts for `seconds`.

    Until then the batches have fewer rows, because not all callers wait yet. `read` gives what the model has run.
    """

    def __init__(self, read: Callable[[], Statistics], callers: int, seconds: float) -> None:
        self._read, self._callers, self._seconds = read, callers, seconds
        self._answers = itertools.count(1)
        self._first: Statistics | None = None
        self._last: Statistics | None = None

    @property
    def is_over(self) -> bool:
        """Whether the callers may stop."""
        return self._last is not None

    def answered(self) -> None:
        """Take that a caller has got an answer."""
        if next(self._answers) == self._callers:
            self._first = self._read()
        elif self._first and not self._last and time.perf_counter() - self._first.ended >= self._seconds:
            self._last = self._read()

    def rates(self) -> tuple[float, float]:
        """Rows per second, and rows per execution, of the executions that ended in this turn."""
        assert self._first
        assert self._last
        rows = self._last.rows - self._first.rows
        executions = sum(self._last.executions.values()) - sum(self._first.executions.values())
        return rows / (self._last.ended - self._first.ended), rows / executions


def _threads(model: str, row: Mapping[str, Any], callers: int, seconds: float) -> tuple[float, float]:
    transport = inprocess.open(model_folder(model).parent)
    with Model(model, transport=transport) as opened:
        turn = Turn(lambda: transport.statistics(model), callers, seconds)

        def call() -> None:
            while not turn.is_over:
                opened.predict(row)
                turn.answered()

        threads = [threading.Thread(target=call) for _ in range(callers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return turn.rates()


async def _tasks(model: str, row: Mapping[str, Any], callers: int, seconds: float) -> tuple[float, float]:
    transport = inprocess.open_async(model_folder(model).parent)
    async with AsyncModel(model, transport=transport) as opened:
        turn = Turn(lambda: transport.statistics(model), callers, seconds)

        async def call() -> None:
            while not turn.is_over:
                await opened.predict(row)
                turn.answered()

        await asyncio.gather(*(call() for _ in range(callers)))
        return turn.rates()


def table(record: InProcessRecord) -> Table:
    """The shares of onnxruntime's speed."""
    title = f"{record.model}, {record.callers} callers; onnxruntime's best batch has {record.batch_rows} rows"
    shown = plain_table(("callers", "rows/s", "of onnxruntime alone"), title=title)
    for side in ("alone", "threads", "tasks"):
        rate = float(np.median([getattr(turn, side) for turn in record.rounds]))
        shown.add_row(side, f"{rate:,.0f}", "" if side == "alone" else interval_text(record.share(side)))
    return shown


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; exit code 1 if a share is below the gate, 2 for a model that cannot run here."""
    parser = program_parser("python -m perf.studies.inprocess", __doc__, example="resnet50 --rounds 5")
    parser.add_argument("model")
    parser.add_argument("--callers", type=whole_number(1, 10_000), default=64)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each side in a round (default 10)")
    parser.add_argument("--rounds", type=whole_number(2, 1000), default=5)
    parser.add_argument("--results", type=path, help="also write a record into this folder")
    arguments = parser.parse_args(argv)
    return guarded(lambda: _run(arguments, command_line("inprocess", argv)))


def _run(arguments: argparse.Namespace, command: Sequence[str]) -> int:
    console, started_at, model = terminal(), now(), arguments.model
    with progress_line(model) as progress:
        best, measured = measure(
            model,
            callers=arguments.callers,
            seconds=arguments.seconds,
            count=arguments.rounds,
            progress=progress,
        )
    configuration: Path = config_file(model_folder(model), None)
    record = InProcessRecord(
        model=model,
        callers=arguments.callers,
        seconds=arguments.seconds,
        batch_rows=best,
        config_sha256=digest(configuration),
        model_sha256=digest(model_file(model_folder(model), read_config(configuration))),
        rounds=tuple(measured),
        **origin(command, started_at),
    )
    console.print(table(record))
    if arguments.results:
        console.print(f"record: {file.write(record, arguments.results / record.file_name)}", markup=False)
    return 0 if min(record.share(side).value for side in ("threads", "tasks")) >= GATE else 1


if __name__ == "__main__":
    sys.exit(main())
