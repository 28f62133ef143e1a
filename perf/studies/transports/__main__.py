"""What a transport costs: shared memory, gRPC and HTTP from the same processes to the same models, in turns.

The models compute nothing: `row` takes 1 KB and gives 8 values back, `sheet` 64 KB, `tile` 256 KB, `picture`
1x3x224x224 FP32; `map` takes 4 values and gives 4 MB back. Every worker is a process with a client per transport, one
request in flight.
"""

import argparse
import itertools
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from clients import Model, TransportName
from perf.records import file
from perf.stats import rounds
from perf.stats.interval import Interval
from perf.stats.percentile import percentile
from perf.studies.experiment import Origin, command_line, now, origin, progress_line
from perf.studies.tables import interval_text, plain_table
from perf.studies.transports.models import SHAPES, build
from serve.launcher import Server, Settings, launch
from triton_batching.terminal import INTERRUPTED, Failure, guarded, program_parser, terminal

TRANSPORTS: tuple[TransportName, ...] = ("shared_memory", "grpc", "http")
# Shared memory over inline gRPC must be above this, in latency and in throughput.
GATES = {"picture": 1.0, "map": 1.5}
WORKERS = (1, 4)


def work(pipe: Connection, urls: dict[TransportName, str], number: int) -> None:
    """Run one worker: for each order (model, transport, seconds) it sends back the latencies of its requests in us."""
    # Ctrl-C reaches the workers too; the first process decides what to do.
    with suppress(KeyboardInterrupt), ExitStack() as stack:
        models = {
            (name, transport): stack.enter_context(Model(name, url=url, transport=transport))
            for name in SHAPES
            for transport, url in urls.items()
        }
        inputs = {name: np.full((1, *shape), number, np.float32) for name, (shape, _) in SHAPES.items()}
        while (order := pipe.recv()) is not None:
            name, transport, seconds = order
            pipe.send(_latencies_us(models[name, transport], inputs[name], seconds))


def _latencies_us(model: Model, row: NDArray[np.float32], seconds: float) -> list[float]:
    latencies = []
    end = time.perf_counter() + seconds
    while (started := time.perf_counter()) < end:
        answer = model.predict(row)
        latencies.append((time.perf_counter() - started) * 1e6)
        if answer.flat[0] != row.flat[0]:
            raise Failure(f"'{model.metadata.name}' gave the answer to another request.")
    return latencies


@contextmanager
def crew(server: Server, count: int) -> Iterator[list[Connection]]:
    """Start `count` workers; yields a pipe to each."""
    urls = {transport: server.http_url if transport == "http" else server.grpc_url for transport in TRANSPORTS}
    context = multiprocessing.get_context("spawn")
    pipes, workers = [], []
    for number in range(count):
        ours, theirs = context.Pipe()
        worker = context.Process(target=work, args=(theirs, urls, number + 1), daemon=True)
        worker.start()
        theirs.close()
        pipes.append(ours)
        workers.append(worker)
    try:
        yield pipes
    finally:
        for pipe, worker in zip(pipes, workers, strict=True):
            with suppress(OSError):  # a worker that failed has ended already
                pipe.send(None)
            worker.join(10)


@dataclass(frozen=True, kw_only=True)
class TransportCell:
    """One model over one transport with `workers` processes; one value per round, in microseconds and requests/s."""

    model: str
    transport: str
    workers: int
    median_us: tuple[float, ...]
    p99_us: tuple[float, ...]
    per_second: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class TransportGain:
    """Shared memory over another transport, round by round; above 1 shared memory is better."""

    model: str
    over: str
    workers: int
    latency: Interval
    throughput: Interval


@dataclass(frozen=True, kw_only=True)
class TransportRecord(Origin):
    """All cells; `partial` if Ctrl-C ended the run before its last round."""

    KIND: ClassVar[str] = "transports"
    FORMAT: ClassVar[int] = 1
    cells: tuple[TransportCell, ...]
    partial: bool = False

    def write(self, folder: Path) -> Path:
        """Write the record; one of fewer rounds does not replace a whole one. Raises `RecordError`."""
        return file.write(self, folder / ("transports.partial.json" if self.partial else "transports.json"))


Rounds = Mapping[tuple[str, TransportName, int], list[list[float]]]
"""The latencies in microseconds of each round, by model, transport and number of workers."""


def measure(rounds: int, seconds: float, progress: Callable[[str], None] = lambda _: None) -> list[TransportCell]:
    """Every cell in every round, the transports in turns, after a first round that only warms up.

    Ctrl-C ends it with the complete rounds; raises `KeyboardInterrupt` if there is none.
    """
    latencies: dict[tuple[str, TransportName, int], list[list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder, suppress(KeyboardInterrupt):
        build(Path(folder))
        with (
            launch(Settings(models=tuple(SHAPES), repository=Path(folder)), progress=progress) as server,
            crew(server, max(WORKERS)) as pipes,
        ):
            for number in range(rounds + 1):
                for model, workers, transport in itertools.product(SHAPES, WORKERS, TRANSPORTS):
                    progress(f"round {number} of {rounds}: {model}, {transport}, {workers} workers")
                    round_us = _together(pipes[:workers], (model, transport, seconds if number else 0.2))
                    if number:
                        latencies.setdefault((model, transport, workers), []).append(round_us)
    return complete(latencies, seconds)


def complete(latencies: Rounds, seconds: float) -> list[TransportCell]:
    """The cells with the rounds that all cells have; raises `KeyboardInterrupt` if there is no such round."""
    rounds = min((len(cell) for cell in latencies.values()), default=0)
    if len(latencies) < len(SHAPES) * len(WORKERS) * len(TRANSPORTS) or not rounds:
        raise KeyboardInterrupt
    return [_cell(*key, cell[:rounds], seconds) for key, cell in latencies.items()]


def _together(pipes: Sequence[Connection], order: tuple[str, TransportName, float]) -> list[float]:
    """Send an order to all workers; returns the latencies of all their requests."""
    for pipe in pipes:
        pipe.send(order)
    try:
        return [latency_us for pipe in pipes for latency_us in pipe.recv()]
    except EOFError as error:
        raise Failure("a worker ended too early; its own message says why.") from error


def _cell(model: str, transport: str, workers: int, rounds: list[list[float]], seconds: float) -> TransportCell:
    return TransportCell(
        model=model,
        transport=transport,
        workers=workers,
        median_us=tuple(statistics.median(latencies) for latencies in rounds),
        p99_us=tuple(float(percentile(latencies, 99)) for latencies in rounds),
        per_second=tuple(len(latencies) / seconds for latencies in rounds),
    )


def gains(cells: Sequence[TransportCell]) -> list[TransportGain]:
    """Shared memory over gRPC and over HTTP, at equal load."""
    shared = {(cell.model, cell.workers): cell for cell in cells if cell.transport == "shared_memory"}
    return [
        TransportGain(
            model=cell.model,
            over=cell.transport,
            workers=cell.workers,
            latency=rounds.paired(cell.median_us, shared[cell.model, cell.workers].median_us),
            throughput=rounds.paired(shared[cell.model, cell.workers].per_second, cell.per_second),
        )
        for cell in cells
        if cell.transport != "shared_memory"
    ]


def passed(ratios: Sequence[TransportGain]) -> bool:
    """Whether shared memory beats inline gRPC by its gate at every load."""
    return all(
        min(gain.latency.value, gain.throughput.value) > GATES.get(gain.model, 0)
        for gain in ratios
        if gain.over == "grpc"
    )


def tables(cells: Sequence[TransportCell]) -> tuple[Table, Table]:
    """The figures, and the gains."""
    figures = Table("model", "workers", "transport", "median us", "p99 us", "requests/s")
    for cell in cells:
        values = (cell.median_us, cell.p99_us, cell.per_second)
        medians = (f"{statistics.median(value):,.0f}" for value in values)
        figures.add_row(cell.model, str(cell.workers), cell.transport, *medians)
    return figures, gains_table(cells)


def gains_table(cells: Sequence[TransportCell]) -> Table:
    """Shared memory against gRPC and HTTP."""
    ratios = plain_table(("tensors", "processes", "against", "latency", "throughput"))
    for gain in gains(cells):
        texts = (interval_text(gain.latency), interval_text(gain.throughput))
        ratios.add_row(gain.model, str(gain.workers), gain.over, *texts)
    return ratios


def main(argv: list[str] | None = None) -> int:
    """Measure and print; exit code 1 for a missed gate or a failed server, 2 for a mistake, 130 after Ctrl-C."""
    parser = program_parser(
        "python -m perf.studies.transports", __doc__, example="--rounds 7 --results perf/studies/results/clients"
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.6, help="of one cell in one round (default 0.6)")
    parser.add_argument("--results", type=Path, help="also write a record into this folder")
    arguments = parser.parse_args(argv)
    return guarded(lambda: _run(arguments, command_line("transports", argv)))


def _run(arguments: argparse.Namespace, command: Sequence[str]) -> int:
    console, started_at = terminal(), now()
    with progress_line("transports") as progress:
        cells = measure(arguments.rounds, arguments.seconds, progress)
    rounds = len(cells[0].per_second)
    partial = rounds < arguments.rounds
    for table in tables(cells):
        console.print(table)
    if arguments.results:
        record = TransportRecord(cells=tuple(cells), partial=partial, **origin(command, started_at))
        console.print(f"record: {record.write(arguments.results)}", markup=False)
    if partial:
        console.print(f"PARTIAL: stopped after {rounds} of {arguments.rounds} rounds.")
        return INTERRUPTED
    return 0 if passed(gains(cells)) else 1


if __name__ == "__main__":
    sys.exit(main())
