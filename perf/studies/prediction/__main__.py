"""The simulation against the real server: six configurations of each model, in a closed loop and with Poisson arrivals.

`python -m perf.studies.prediction simulated_accelerator` measures what has no record yet and prints predicted and
measured figures side by side. It measures in three rounds. Each has ramps of service times and all configurations, so
that a slow minute changes both, and the medians over the rounds leave it out. A round of a model takes 3 to 5 minutes.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from perf.load.variant import read
from perf.measure.service_time import recorded
from perf.measure.service_time_run import bar
from perf.simulate.predict import LIMITS
from perf.studies.prediction.bench import KINDS, PredictionBench
from perf.studies.prediction.comparison import MODELS, PointComparison, by_load, compare, write
from perf.studies.prediction.points import ROUNDS, holds, measured, round_folders
from triton_batching.terminal import Mistake, guarded, program_parser, terminal

RESULTS = Path("perf/results/local/prediction")


def show(compared: Sequence[PointComparison], console: Console) -> None:
    """Print predicted and measured side by side, and how many are within the limits."""
    limits = ", ".join(f"{name} {limit:.0%}" for name, limit in LIMITS.items())
    table = Table(
        "model",
        "configuration",
        "load",
        "rows/s",
        "p50 ms",
        "p95 ms",
        "rows/execution",
        "rounds",
        "",
        title=f"predicted / measured, limits {limits}",
    )
    for comparison in compared:
        point, predicted = comparison.point, comparison.prediction
        table.add_row(
            point.model,
            str(point.candidate),
            point.load,
            _pair(predicted.throughput_rows_per_s, point.throughput_rows_per_s),
            _pair(predicted.percentiles_ms[50], point.percentiles_ms[50]),
            _pair(predicted.percentiles_ms[95], point.percentiles_ms[95]),
            f"{predicted.rows_per_execution:.2f} / {point.counted.rows_per_execution:.2f}",
            str(comparison.point.rounds),
            comparison.verdict,
        )
    console.print(table)
    for name, comparisons in by_load(compared).items():
        within = sum(holds(comparison.errors) for comparison in comparisons)
        own = sum(holds(comparison.own_errors) for comparison in comparisons)
        console.print(
            f"{name}: {within} of {len(comparisons)} within the limits, {own} if each is predicted with the execution "
            "times of its own measurement",
            markup=False,
        )


def _pair(predicted: float, measured: float) -> str:
    return f"{predicted:.1f} / {measured:.1f} ({predicted / measured - 1:+.1%})"


def main(argv: list[str] | None = None) -> int:
    """Measure what is missing, predict, print; exit code 2 for a user's mistake, 1 for a failed measurement."""
    parser = program_parser("python -m perf.studies.prediction", __doc__, example="simulated_accelerator ranker")
    parser.add_argument("models", nargs="*", default=MODELS, help=f"default: {' '.join(MODELS)}")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"number of rounds, odd (default {ROUNDS})")
    parser.add_argument("--only-compare", action="store_true", help="measure nothing, compare the records")
    parser.add_argument("--results", type=Path, default=RESULTS, help=f"folder of the records (default {RESULTS})")
    arguments = parser.parse_args(argv)
    command = recorded("perf.studies.prediction", argv)

    def run() -> None:
        if arguments.rounds < 1 or arguments.rounds % 2 == 0:
            raise Mistake(f"--rounds {arguments.rounds}: an even number of rounds has no median. Write 1, 3 or 5.")
        if not arguments.only_compare:
            _measure(arguments, command)
        _compare(arguments.results, arguments.models)

    return guarded(run, on_interrupt=f"stopped; finished measurements are in {arguments.results}.")


def _measure(arguments: argparse.Namespace, command: tuple[str, ...]) -> None:
    with bar(terminal(), arguments.rounds * len(arguments.models) * len(KINDS)) as progress:
        for model in arguments.models:
            config = read(model, None)
            bench = PredictionBench(config=config, folder=arguments.results, command=command, rounds=arguments.rounds)
            bench.run(progress)


def _compare(results: Path, models: Sequence[str]) -> None:
    """Predict the recorded measurements, print the comparison and write it; raises `Mistake` without any."""
    console, compared = terminal(), list(compare(results, models))
    if not compared:
        names = " ".join(models)
        raise Mistake(
            f"{results}: holds no measured point of {names}, so there is nothing to compare. "
            f"Measure first: python -m perf.studies.prediction {names} --results {results}"
        )
    show(compared, console)
    write(compared, results)
    rounds = [point.rounds for folder in round_folders(results) for point in measured(folder, models)]
    if left := sum(rounds) - sum(comparison.point.rounds for comparison in compared):
        console.print(
            f"left out: {left} measured point(s). They have another machine, other versions or other service times "
            "than the last of their kind, or they are the first of two rounds, which have no median",
            markup=False,
        )


if __name__ == "__main__":
    sys.exit(main())
