"""What a transport costs: shared memory, gRPC and HTTP from the same processes to the same models, in turns.

The models compute nothing: `row` takes 1 KB and gives 8 values back, `sheet` 64 KB, `tile` 256 KB, `picture`
1x3x224x224 FP32; `map` takes 4 values and gives 4 MB back. Every worker is a process with a client per transport, one
request in flight.
"""

import argparse
import itertools
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import ClassVar

from rich.table import Table

from clients.transport import Transport
from perf.records import file
from perf.stats.percentile import percentile
from perf.studies.experiment import Origin, command_line, now, origin, progress_line
from perf.studies.transports.models import SHAPES, build
from perf.studies.transports.workers import TRANSPORTS, crew
from serve.launcher import Settings, launch
from triton_batching.terminal import INTERRUPTED, Failure, guarded, program_parser, terminal

# Shared memory over inline gRPC must be above this, in latency and in throughput.
GATES = {"picture": 1.0, "map": 1.5}
WORKERS = (1, 4)


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
    """Shared memory over another transport: medians over the rounds of the ratio within each round, and its extremes.

    Ratios are above 1 if shared memory is better.
    """

    model: str
    over: str
    workers: int
    latency: float
    throughput: float
    latency_range: tuple[float, float]
    throughput_range: tuple[float, float]


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


Rounds = Mapping[tuple[str, Transport, int], list[list[float]]]
"""The latencies in microseconds of each round, by model, transport and number of workers."""


def measure(rounds: int, seconds: float, progress: Callable[[str], None] = lambda _: None) -> list[TransportCell]:
    """Every cell in every round, the transports in turns, after a first round that only warms up.

    Ctrl-C ends it with the complete rounds; raises `KeyboardInterrupt` if there is none.
    """
    latencies: dict[tuple[str, Transport, int], list[list[float]]] = {}
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


def _together(pipes: Sequence[Connection], order: tuple[str, Transport, float]) -> list[float]:
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
    """Shared memory over each other transport, at equal load."""
    by_key = {(cell.model, cell.workers, cell.transport): cell for cell in cells}
    ratios = []
    for (model, workers, transport), other in by_key.items():
        if transport == "shared_memory":
            continue
        shared = by_key[model, workers, "shared_memory"]
        latency = [slow / fast for slow, fast in zip(other.median_us, shared.median_us, strict=True)]
        throughput = [fast / slow for fast, slow in zip(shared.per_second, other.per_second, strict=True)]
        ratios.append(
            TransportGain(
                model=model,
                over=transport,
                workers=workers,
                latency=statistics.median(latency),
                throughput=statistics.median(throughput),
                latency_range=(min(latency), max(latency)),
                throughput_range=(min(throughput), max(throughput)),
            )
        )
    return ratios


def passed(ratios: Sequence[TransportGain]) -> bool:
    """Whether shared memory beats inline gRPC by its gate at every load."""
    return all(min(gain.latency, gain.throughput) > GATES.get(gain.model, 0) for gain in ratios if gain.over == "grpc")


def tables(cells: Sequence[TransportCell]) -> tuple[Table, Table]:
    """The figures, and the ratios with their gates."""
    figures = Table("model", "workers", "transport", "median us", "p99 us", "requests/s")
    for cell in cells:
        values = (cell.median_us, cell.p99_us, cell.per_second)
        medians = (f"{statistics.median(value):,.0f}" for value in values)
        figures.add_row(cell.model, str(cell.workers), cell.transport, *medians)
    ratios = Table("model", "workers", "shared memory over", "latency", "throughput", "gate")
    for gain in gains(cells):
        ratios.add_row(
            gain.model,
            str(gain.workers),
            gain.over,
            spread(gain.latency, gain.latency_range),
            spread(gain.throughput, gain.throughput_range),
            f"> {GATES[gain.model]:.1f}" if gain.over == "grpc" and gain.model in GATES else "",
        )
    return figures, ratios


def spread(median: float, extremes: tuple[float, float]) -> str:
    """A median with its extremes, as text."""
    return f"{median:.2f} ({extremes[0]:.2f} to {extremes[1]:.2f})"


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
