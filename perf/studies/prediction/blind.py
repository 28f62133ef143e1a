"""Blind cases: models made from a seed in this run, random configurations, and a client that shares no code with ours.

`python -m perf.studies.prediction blind` draws a seed, makes three models, and measures four random configurations of
each in a closed loop and with Poisson arrivals, by tritonclient's asyncio client in a process of its own. Each of three
rounds has ramps of service times, the client's way, and all configurations in a random order. Nothing in the simulation
knows these models; it is given the times at which the client's requests were due. It prints how many predictions are
within 5, 10 and 20 % of throughput, p50 and p95, how many of the measurements are that close to themselves in other
rounds, and how many of them the intervals hold. A round of a model takes 3 to 5 minutes.
"""

import math
import secrets
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import ClassVar

import numpy as np
from rich.console import Console
from rich.table import Table

from perf.measure.service_time import recorded
from perf.measure.service_time_run import bar
from perf.records import file
from perf.records.candidate import Candidate
from perf.records.study import Prediction
from perf.simulate.predict import LIMITS
from perf.simulate.uncertainty import LEVEL, MISFIT, Bounds, PredictedBounds
from perf.studies.experiment import Origin, now, origin
from perf.studies.prediction import blind_models
from perf.studies.prediction.blind_bench import BlindBench, BlindCase, BlindPoint, client
from perf.studies.prediction.blind_predictor import BlindPredictor, ClientRound
from perf.studies.prediction.points import round_folder
from triton_batching.terminal import Mistake, guarded, program_parser, terminal

RESULTS = Path("perf/results/local/prediction/blind")
FILE = "blind.json"
CASES, ROUNDS, SECONDS = 4, 3, 10.0
# Share of the predictions that must be within the limits: 22 of 24.
GATE = 22 / 24


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure of a case: predicted with its bounds, and measured in each round."""

    predicted: float
    bounds: Bounds
    measured: tuple[float, ...]

    @property
    def error(self) -> float:
        """Predicted over the median of the measured values, minus 1."""
        return self.predicted / median(self.measured) - 1

    @property
    def held(self) -> int:
        """How many of the measured values are within the bounds."""
        return sum(map(self.bounds.hold, self.measured))

    def repeats(self, number: int, limit: float) -> bool:
        """Whether a round's value is within `limit` of the median of the other rounds."""
        others = [value for index, value in enumerate(self.measured) if index != number]
        return bool(others) and abs(self.measured[number] / median(others) - 1) <= limit


@dataclass(frozen=True, kw_only=True)
class BlindComparison:
    """A case under one load; `figures` by the names of `LIMITS`."""

    model: str
    candidate: Candidate
    rows: int
    load: str
    figures: Mapping[str, Figure]

    @property
    def within(self) -> bool:
        """Whether all errors are within their limits."""
        return all(abs(figure.error) <= LIMITS[name] for name, figure in self.figures.items())

    @property
    def repeated(self) -> float:
        """Share of the rounds whose figures are all within the limits of the median of the other rounds; 0 of one."""
        rounds = range(len(self.figures["p50"].measured))
        return fmean(
            all(figure.repeats(number, LIMITS[name]) for name, figure in self.figures.items()) for number in rounds
        )


@dataclass(frozen=True, kw_only=True)
class BlindRecord(Origin):
    """All comparisons of one seed; what the repetitions span was widened by the factor `misfit`."""

    KIND: ClassVar[str] = "blind predictions"
    FORMAT: ClassVar[int] = 1
    seed: int
    points: tuple[BlindComparison, ...]
    misfit: float = 1.0


def misfit(records: Sequence[BlindRecord]) -> float:
    """How many half widths nine of ten single measurements are at most off the middle, as if `misfit` had been 1.

    Where the client's own loads asked for wider intervals too (`perf.simulate.uncertainty.Widening`), that is left in.
    """
    offs = [
        record.misfit * abs(figure.bounds.off(value))
        for record in records
        for each in record.points
        for figure in each.figures.values()
        for value in figure.measured
    ]
    return float(np.quantile(offs, LEVEL))


def compared(bench: BlindBench, rounds: int) -> list[BlindComparison]:
    """Predict every case of a model from the ramps and the client's way of all rounds, beside what was measured."""
    config, cases, numbers = bench.config, bench.drawn(), range(1, rounds + 1)
    counts = [(count, None) for count in sorted({1, *(case.candidate.instances for case in cases)})]
    profiles = [bench.profile(number, counts) for number in numbers]
    clients = [client(round_folder(bench.folder, number), bench.model) for number in numbers]
    predictor = BlindPredictor(
        config=config,
        rounds=[ClientRound.of(config, *each) for each in zip(profiles, clients, strict=True)],
    )
    comparisons = []
    for case in cases:
        loads = case.loads(profiles[0])
        for load, sent in zip(loads, zip(*(bench.sent(n, case, loads) for n in numbers), strict=True), strict=True):
            predictions = predictor.predicted(case.candidate, sent, bench.seconds)
            around = predictor.bounds(case.candidate, sent, bench.seconds, predictions)
            comparisons.append(_comparison(_points(bench, case, load, rounds), predictions, around))
    return comparisons


def _points(bench: BlindBench, case: BlindCase, load: str, rounds: int) -> list[BlindPoint]:
    name = f"{bench.model}.case_{case.number}.{load.partition(':')[0]}.json"
    return [file.read(round_folder(bench.folder, number) / name, BlindPoint) for number in range(1, rounds + 1)]


def _comparison(
    points: Sequence[BlindPoint], predictions: Sequence[Prediction], around: PredictedBounds
) -> BlindComparison:
    """The measured rounds beside the median of what was predicted for the arrivals of each."""
    first = points[0]
    figures = {
        "throughput": Figure(
            predicted=median(prediction.throughput_rows_per_s for prediction in predictions),
            bounds=around.throughput_rows_per_s,
            measured=tuple(point.answered.answered_per_s * point.rows for point in points),
        )
    }
    for percent in (50, 95):
        figures[f"p{percent}"] = Figure(
            predicted=median(prediction.percentiles_ms[percent] for prediction in predictions),
            bounds=around.percentiles_ms[percent],
            measured=tuple(point.answered.percentiles_ms[percent] for point in points),
        )
    return BlindComparison(
        model=first.model, candidate=first.candidate, rows=first.rows, load=first.load, figures=figures
    )


def show(comparisons: Sequence[BlindComparison], console: Console) -> None:
    """Print predicted and measured side by side, how many are within the limits, and what the intervals hold."""
    limits = ", ".join(f"{name} {limit:.0%}" for name, limit in LIMITS.items())
    table = Table(
        "model", "configuration", "load", "rows/s", "p50 ms", "p95 ms", "held", title=f"predicted / measured, {limits}"
    )
    for each in comparisons:
        figures = [each.figures[name] for name in LIMITS]
        count = sum(len(figure.measured) for figure in figures)
        table.add_row(
            each.model,
            f"{each.candidate}, {each.rows} rows",
            each.load,
            *map(cell, figures),
            f"{sum(figure.held for figure in figures)}/{count}",
            style=None if each.within else "bold",
        )
    console.print(table)
    for line in summary(comparisons):
        console.print(line, markup=False)


def passed(comparisons: Sequence[BlindComparison]) -> bool:
    """Whether enough points are within the limits, and the intervals hold as many measurements as they say."""
    figures = [figure for each in comparisons for figure in each.figures.values()]
    held, count = sum(figure.held for figure in figures), sum(len(figure.measured) for figure in figures)
    return sum(each.within for each in comparisons) >= round(GATE * len(comparisons)) and held >= LEVEL * count


def summary(comparisons: Sequence[BlindComparison]) -> list[str]:
    """How many points are within the limits, how many of each figure, and the share that the intervals hold."""
    total, within = len(comparisons), sum(each.within for each in comparisons)
    needed = round(GATE * total)
    lines = [
        f"{within} of {total} within all limits; the gate of {needed} is {'held' if within >= needed else 'missed'}",
        f"one round measured again is within the same limits of the other rounds in {_repeated(comparisons)}",
    ]
    for name, limit in LIMITS.items():
        figures = [each.figures[name] for each in comparisons]
        near = sum(abs(figure.error) <= limit for figure in figures)
        held, count = sum(figure.held for figure in figures), sum(len(figure.measured) for figure in figures)
        bias = median(figure.error for figure in figures)
        lines.append(
            f"{name}: {near} of {total} within {limit:.0%}, median error {bias:+.1%}; "
            f"the {LEVEL:.0%} intervals, in the median +- {_width(figures):.0%}, "
            f"hold {held} of {count} single measurements ({held / count:.0%})"
        )
    lines.append(f"rounds of one closed loop differ in their rate, in the median: {_differences(comparisons)}")
    return lines


def _width(figures: Sequence[Figure]) -> float:
    """The median of the half widths of intervals, as shares."""
    return median(math.sqrt(figure.bounds.high / figure.bounds.low) - 1 for figure in figures)


def _repeated(comparisons: Sequence[BlindComparison]) -> str:
    """Of how many points a round repeats the others: what a prediction could reach on this machine; by models."""
    if len(comparisons[0].figures["p50"].measured) < 2:
        return "an unknown number: there was one round"
    models: dict[str, list[float]] = {}
    for each in comparisons:
        models.setdefault(each.model, []).append(each.repeated)
    parts = ", ".join(f"{model} {sum(shares):.1f} of {len(shares)}" for model, shares in models.items())
    return f"{sum(map(sum, models.values())):.1f} of {len(comparisons)} ({parts})"


def _differences(comparisons: Sequence[BlindComparison]) -> str:
    """By how much the largest rate of a closed loop's rounds is above the smallest, the median of each model's."""
    above: dict[str, list[float]] = {}
    for each in comparisons:
        if each.load.startswith("closed"):
            rates = each.figures["throughput"].measured
            above.setdefault(each.model, []).append(max(rates) / min(rates) - 1)
    return ", ".join(f"{model} {median(values):.0%}" for model, values in above.items())


def cell(figure: Figure) -> str:
    """A figure as text: predicted with its interval, measured, and the error."""
    return f"{figure.predicted:.1f} ({figure.bounds:.1f}) / {median(figure.measured):.1f} ({figure.error:+.0%})"


def main(argv: Sequence[str]) -> int:
    """Measure what has no record, predict, print and record; exit code 2 for a mistake, 1 if the gate is missed."""
    parser = program_parser("python -m perf.studies.prediction blind", __doc__, example="--seed 7 --rounds 1")
    parser.add_argument("models", nargs="*", help=f"default: {' '.join(blind_models.KINDS)}")
    parser.add_argument("--seed", type=int, help="of models and cases (default: a new one, which is printed)")
    parser.add_argument("--cases", type=int, default=CASES, help=f"configurations of each model (default {CASES})")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"number of rounds (default {ROUNDS})")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"length of a window (default {SECONDS:g})")
    parser.add_argument("--only-compare", action="store_true", help="measure nothing, compare the records of --seed")
    parser.add_argument("--results", type=Path, default=RESULTS, help=f"folder of the records (default {RESULTS})")
    arguments = parser.parse_args(argv)
    command = recorded("perf.studies.prediction", ["blind", *argv])
    seed = secrets.randbelow(10**6) if arguments.seed is None else arguments.seed
    folder, models = arguments.results / f"seed_{seed}", arguments.models or list(blind_models.KINDS)

    def run() -> int:
        if unknown := set(models) - set(blind_models.KINDS):
            raise Mistake(f"{', '.join(sorted(unknown))}: no blind model. Name one of {', '.join(blind_models.KINDS)}.")
        if min(arguments.rounds, arguments.cases) < 1 or arguments.seconds <= 0 or seed < 0:
            raise Mistake("--rounds, --cases, --seconds: nothing would be measured. Write 1 or more; --seed 0 or more.")
        if arguments.only_compare and arguments.seed is None:
            raise Mistake("--only-compare: which records? Name their --seed.")
        console = terminal()
        console.print(f"seed {seed}: records in {folder}", markup=False)
        with tempfile.TemporaryDirectory(prefix="triton-batching-blind-") as repository:
            benches = [
                BlindBench(
                    model=model,
                    seed=seed,
                    repository=Path(repository),
                    folder=folder,
                    cases=arguments.cases,
                    seconds=arguments.seconds,
                    command=command,
                )
                for model in models
            ]
            if not arguments.only_compare:
                with bar(console, arguments.rounds * arguments.cases * len(benches)) as progress:
                    for number in range(1, arguments.rounds + 1):
                        for bench in benches[:: 1 if number % 2 else -1]:
                            bench.run(number, progress)
            comparisons = [each for bench in benches for each in compared(bench, arguments.rounds)]
        show(comparisons, console)
        record = BlindRecord(**origin(command, now()), seed=seed, points=tuple(comparisons), misfit=MISFIT)
        file.write(record, folder / FILE)
        return 0 if passed(comparisons) else 1

    return guarded(run, on_interrupt=f"stopped; go on with: --seed {seed}. Finished measurements are in {folder}.")
