"""Measure a full grid of configurations once, and compare the tuner's choices with the best of the grid.

`python -m perf.studies.grid ranker --load closed:32` measures the missing configurations in a seeded order and stops
after --limit seconds; the same command continues. With --judge STUDY it measures the study's choice and the best
configuration of the grid that meets the study's target again, in turn.
"""

import argparse
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from perf.load.variant import read as read_variant
from perf.measure.ramp_plan import RESULTS as RESULTS  # perf.tune's own, whose studies a judgement reads
from perf.records import file
from perf.records.candidate import Candidate
from perf.records.study import Study
from perf.records.traffic import Traffic
from perf.stats.latency_target import LatencyTarget
from perf.studies.experiment import command_line
from perf.studies.grid.record import Grid, GridError, GridTrial, judge, lines
from perf.studies.tables import plain_table
from perf.tune.live import LiveBench
from perf.tune.study_log import Bench
from triton_batching.machine import Machine
from triton_batching.terminal import Mistake, guarded, program_parser, terminal

GRID = "grid"
INCOMPLETE = 3
# So many servers start at a time, which is faster than one by one.
SIDE_BY_SIDE = 4
# A target that no request misses; the targets of the studies are applied later.
NO_TARGET = LatencyTarget(latency_ms=60_000)


def candidates(
    sizes: Sequence[int], delays_us: Sequence[int], pairs: Sequence[tuple[int, int | None]]
) -> list[Candidate]:
    """All candidates of the grid; `pairs` are instances with their threads."""
    return [
        Candidate(max_batch_size=size, delay_us=delay, instances=instances, threads=threads)
        for size in sizes
        for delay in delays_us
        for instances, threads in pairs
    ]


def measure(
    grid: Grid,
    candidates: Sequence[Candidate],
    path: Path,
    bench: Bench,
    *,
    seconds: float,
    until: float,
    progress: Callable[[str], None],
) -> Grid:
    """Measure the missing candidates in a seeded order; returns the grid as far as it is measured.

    Each trial is on disk before the next begins, and none begins after `until` (`time.monotonic`).
    """
    order = list(candidates)
    random.Random(grid.seed).shuffle(order)
    traffic = Traffic.of_record(grid.load, rows=grid.rows)
    missing = [candidate for candidate in order if grid.of(candidate) is None]
    for number, candidate in enumerate(missing):
        if time.monotonic() >= until:
            break
        if number % SIDE_BY_SIDE == 0:
            for started in missing[number : number + SIDE_BY_SIDE]:
                bench.prepare(started)
        progress(f"{len(grid.points) + 1} of {len(order)}: {candidate}")
        trial = bench.measure(candidate, traffic, stage=GRID, round=1, seconds=seconds)
        bench.retire(candidate)
        grid = replace(grid, points=(*grid.points, GridTrial.of(trial)))
        grid.write(path)
    return grid


def main(argv: list[str] | None = None) -> int:
    """Measure, print, and judge; exit code 1 if a judgement fails, 3 if trials are missing, 2 for a mistake."""
    arguments = _parser().parse_args(argv)
    stopped = "stopped; run the same command to continue."
    return guarded(lambda: run(arguments, command_line("grid", argv), terminal()), on_interrupt=stopped)


def run(arguments: argparse.Namespace, command: tuple[str, ...], console: Console) -> int:
    """Measure the grid, then judge the studies; returns the exit code."""
    traffic = Traffic.parse(arguments.load, rows=arguments.rows)
    path = arguments.results / f"{arguments.model}.{str(traffic).replace(':', '-')}.json"
    pairs = [_pair(text) for text in arguments.pairs.split(",")]
    planned = candidates(_numbers(arguments.sizes), _numbers(arguments.delays_us), pairs)
    grid = stored(path, arguments.model, traffic, command, len(planned))
    until = time.monotonic() + arguments.limit
    with (
        Console(stderr=True, emoji=False).status("starting") as status,
        LiveBench(config=read_variant(arguments.model, None), target=NO_TARGET, command=command) as bench,
    ):
        grid = measure(grid, planned, path, bench, seconds=arguments.seconds, until=until, progress=status.update)
        missing = sum(grid.of(candidate) is None for candidate in planned)
        if missing:
            console.print(
                f"{missing} of {len(planned)} trials are missing; run the same command to continue", markup=False
            )
            return INCOMPLETE
        judgements = [
            judge(Study.read(study), grid, arguments.results, bench, progress=status.update)
            for study in arguments.judge
        ]
    console.print(table(grid))
    for judged in judgements:
        for line in lines(judged):
            console.print(line, markup=False)
    return int(not all(judged.passed for judged in judgements))


def table(grid: Grid) -> Table:
    """The 15 configurations with the highest throughput, each measured once."""
    titles = ("configuration", "rows/s", "p99 ms", "rows/execution")
    rows = plain_table(titles, title=f"{grid.model}, {grid.load}: the grid's best")
    for trial in sorted(grid.points, key=lambda trial: -trial.throughput_rows_per_s)[:15]:
        rows.add_row(
            str(trial.candidate),
            f"{trial.throughput_rows_per_s:.4g}",
            f"{trial.p99_ms:.4g}",
            f"{trial.rows_per_execution:.3g}",
        )
    return rows


def stored(path: Path, model: str, traffic: Traffic, command: tuple[str, ...], planned: int) -> Grid:
    """The grid on disk, or an empty one; raises `GridError` for a grid of another load or machine."""
    new = Grid(
        model=model,
        load=str(traffic),
        rows=traffic.rows,
        machine=Machine.this(),
        command=command,
        seed=1,
        planned=planned,
    )
    if not path.exists():
        return new
    grid = file.read(path, Grid)
    if (grid.model, grid.load, grid.rows, grid.machine) != (new.model, new.load, new.rows, new.machine):
        raise GridError(f"{path}: has another load or machine. Move it, or name another folder with --results.")
    return grid


def _numbers(text: str) -> list[int]:
    if not all(part.isdecimal() for part in text.split(",")):
        raise Mistake(f"{text}: not a list of whole numbers. Write 1,2,4.")
    return [int(part) for part in text.split(",")]


def _pair(text: str) -> tuple[int, int | None]:
    parts = text.split("x")
    if not all(part.isdecimal() for part in parts) or len(parts) > 2:
        raise Mistake(f"--pairs {text}: write instances or instances x threads, for example 1x2,2x1.")
    return int(parts[0]), int(parts[1]) if len(parts) == 2 else None


def _parser() -> argparse.ArgumentParser:
    parser = program_parser("python -m perf.studies.grid", __doc__, example="simulated_accelerator --load closed:32")
    parser.add_argument("model")
    parser.add_argument("--load", default="closed:32")
    parser.add_argument("-b", "--rows", type=int, default=1)
    parser.add_argument("--sizes", default="1,2,4,8,16,32", help="values of max_batch_size")
    parser.add_argument("--delays-us", default="0,1000,2500,5000,10000,20000", help="queue delays in microseconds")
    parser.add_argument("--pairs", default="1,2", help="instances, or instances x threads as in 1x2,2x1")
    parser.add_argument("--seconds", type=float, default=2.5, help="of each trial (default 2.5)")
    parser.add_argument(
        "--limit", type=float, default=3600, metavar="S", help="begin no trial after this time in seconds"
    )
    parser.add_argument("--judge", type=Path, nargs="*", default=[], metavar="STUDY", help="records of perf.tune")
    parser.add_argument("--results", type=Path, default=RESULTS, help=f"folder of the records (default {RESULTS})")
    return parser


if __name__ == "__main__":
    sys.exit(main())
