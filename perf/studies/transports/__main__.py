"""What a transport costs: shared memory, gRPC and HTTP from the same processes to the same models, in turns.

The models do nothing else: `row` takes 1 KB and gives 8 values back, `sheet` takes 64 KB, `picture` 1x3x224x224 FP32;
`map` takes 4 values and gives 4 MB back. Every worker is a process with a client per transport, one request in flight.
"""

import argparse
import datetime
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from rich.progress import Progress
from rich.table import Table

from clients.transport import Transport
from perf.studies.transports.models import SHAPES, build
from perf.studies.transports.workers import TRANSPORTS, crowd
from serve.launcher import Settings, launch
from triton_batching import whole_file
from triton_batching.machine import Machine, versions
from triton_batching.terminal import Failure, guarded, program_parser, terminal

GATES = {"picture": 1.0, "map": 1.5}
"""Shared memory over inline gRPC, in latency and in throughput, has to be more than this."""

WORKERS = (1, 4)
INTERRUPTED = 130


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

    Both are larger than 1 where shared memory is better.
    """

    model: str
    over: str
    workers: int
    latency: float
    throughput: float
    latency_range: tuple[float, float]
    throughput_range: tuple[float, float]


def measure(rounds: int, seconds: float, progress: Callable[[str], None] = lambda _: None) -> list[TransportCell]:
    """Every cell in every round, the transports in turns; a first round that warms up is not counted.

    Ctrl-C ends it with the rounds that are complete, when there is one.
    """
    kept: dict[tuple[str, Transport, int], list[list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder, suppress(KeyboardInterrupt):
        build(Path(folder))
        with (
            launch(Settings(models=tuple(SHAPES), repository=Path(folder)), progress=progress) as server,
            crowd(server, max(WORKERS)) as pipes,
        ):
            for number in range(rounds + 1):
                for name in SHAPES:
                    for workers in WORKERS:
                        for transport in TRANSPORTS:
                            progress(f"round {number} of {rounds}: {name}, {transport}, {workers} workers")
                            took = _together(pipes[:workers], (name, transport, seconds if number else 0.2))
                            if number:
                                kept.setdefault((name, transport, workers), []).append(took)
    return complete(kept, seconds)


def complete(kept: Mapping[tuple[str, Transport, int], list[list[float]]], seconds: float) -> list[TransportCell]:
    """The cells with the rounds that all cells have; raises `KeyboardInterrupt` if there is no such round."""
    rounds = min((len(times) for times in kept.values()), default=0)
    if len(kept) < len(SHAPES) * len(WORKERS) * len(TRANSPORTS) or not rounds:
        raise KeyboardInterrupt
    return [_cell(*key, times[:rounds], seconds) for key, times in kept.items()]


def _together(pipes: Sequence[Connection], order: tuple[str, Transport, float]) -> list[float]:
    for pipe in pipes:
        pipe.send(order)
    try:
        return [took for pipe in pipes for took in pipe.recv()]
    except EOFError as error:
        raise Failure("a worker ended before its time; its own message says why.") from error


def _cell(model: str, transport: str, workers: int, rounds: list[list[float]], seconds: float) -> TransportCell:
    ordered = [sorted(took) for took in rounds]
    return TransportCell(
        model=model,
        transport=transport,
        workers=workers,
        median_us=tuple(statistics.median(took) for took in ordered),
        p99_us=tuple(took[math.ceil(0.99 * len(took)) - 1] for took in ordered),
        per_second=tuple(len(took) / seconds for took in ordered),
    )


def gains(cells: Sequence[TransportCell]) -> list[TransportGain]:
    """Shared memory over each other transport, at equal load."""
    by_key = {(cell.model, cell.workers, cell.transport): cell for cell in cells}
    found = []
    for (model, workers, transport), other in by_key.items():
        if transport == "shared_memory":
            continue
        shared = by_key[model, workers, "shared_memory"]
        latency = [slow / fast for slow, fast in zip(other.median_us, shared.median_us, strict=True)]
        throughput = [fast / slow for fast, slow in zip(shared.per_second, other.per_second, strict=True)]
        found.append(
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
    return found


def passed(found: Sequence[TransportGain]) -> bool:
    """Whether shared memory beats inline gRPC by its gate at every load."""
    return all(min(gain.latency, gain.throughput) > GATES.get(gain.model, 0) for gain in found if gain.over == "grpc")


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
            _spread(gain.latency, gain.latency_range),
            _spread(gain.throughput, gain.throughput_range),
            f"> {GATES[gain.model]:.1f}" if gain.over == "grpc" and gain.model in GATES else "",
        )
    return figures, ratios


def _spread(median: float, extremes: tuple[float, float]) -> str:
    return f"{median:.2f}x ({extremes[0]:.2f} to {extremes[1]:.2f})"


def write(
    cells: Sequence[TransportCell], folder: Path, started_at: str, command: Sequence[str], *, partial: bool = False
) -> Path:
    """One record of all cells and the ratios; one of fewer rounds is marked, and does not replace a whole one."""
    content = {
        "format": 1,
        "kind": "transports",
        "machine": asdict(Machine.this()),
        "versions": versions(),
        "started_at": started_at,
        "command": list(command),
        "cells": [asdict(cell) for cell in cells],
        "gains": [asdict(gain) for gain in gains(cells)],
    }
    if partial:
        content["partial"] = True
    path = folder / ("transports.partial.json" if partial else "transports.json")
    return whole_file.write(path, json.dumps(content, indent=1) + "\n")


def main(argv: list[str] | None = None) -> int:
    """Measure and print; exit code 1 for a missed gate or a failed server, 2 for a mistake, 130 after Ctrl-C."""
    parser = program_parser(
        "python -m perf.studies.transports", __doc__, example="--rounds 7 --results perf/studies/results/clients"
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.6, help="of one cell in one round (default 0.6)")
    parser.add_argument("--results", type=Path, help="also write a record into this folder")
    arguments = parser.parse_args(argv)
    command = ["python", "-m", "perf.studies.transports", *(sys.argv[1:] if argv is None else argv)]
    return guarded(lambda: _report(arguments, command))


def _report(arguments: argparse.Namespace, command: list[str]) -> int:
    console = terminal()
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("transports", total=None)
        cells = measure(arguments.rounds, arguments.seconds, progress=lambda text: bar.update(task, description=text))
    done = len(cells[0].per_second)
    partial = done < arguments.rounds
    for table in tables(cells):
        console.print(table)
    if arguments.results:
        console.print(f"written: {write(cells, arguments.results, started, command, partial=partial)}", markup=False)
    if partial:
        console.print(f"PARTIAL: stopped after {done} of {arguments.rounds} rounds.")
        return INTERRUPTED
    return 0 if passed(gains(cells)) else 1


if __name__ == "__main__":
    sys.exit(main())
