"""Predictions beside measured points: the errors, and the record of the comparison (`compared.json`)."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from perf.load.variant import read
from perf.measure.service_profile import Profile
from perf.measure.service_profile import load as load_ramp
from perf.records import file
from perf.records.study import Prediction
from perf.studies.prediction.points import PredictedPoint, holds, measured, one_ramp, round_folders, together

MODELS = ("simulated_accelerator", "ranker", "text_recognition")
FILE = "compared.json"
LOADS = {False: "closed loops", True: "Poisson arrivals"}


@dataclass(frozen=True, kw_only=True)
class PointComparison:
    """A measured point, its prediction, and the errors of the prediction.

    `drift` is how much longer the executions took than predicted for the same batch sizes. `own_errors` are the errors
    of a prediction with executions that are as much longer: a miss that they do not have comes from the drift alone.
    """

    point: PredictedPoint
    prediction: Prediction
    errors: Mapping[str, float]
    drift: float
    own_errors: Mapping[str, float]

    @property
    def verdict(self) -> str:
        """Where a miss comes from; empty within the limits."""
        if holds(self.errors):
            return ""
        return f"drift {self.drift:+.0%}" if holds(self.own_errors) else "miss"


@dataclass(frozen=True, kw_only=True)
class ComparedSide:
    """The predicted or the measured figures of a point."""

    throughput_rows_per_s: float
    p50_ms: float
    p95_ms: float
    rows_per_execution: float


@dataclass(frozen=True, kw_only=True)
class ComparedPoint:
    """The figures of one `PointComparison`. `own_holds` is whether its `own_errors` are within the limits."""

    model: str
    configuration: str
    load: str
    loop: str
    rounds: int
    predicted: ComparedSide
    measured: ComparedSide
    errors: Mapping[str, float]
    drift: float
    holds: bool
    own_holds: bool


@dataclass(frozen=True, kw_only=True)
class ComparedRecord:
    """All points of a comparison."""

    KIND: ClassVar[str] = "compared predictions"
    FORMAT: ClassVar[int] = 1
    points: tuple[ComparedPoint, ...]


def compare(folder: Path, models: Sequence[str] = MODELS) -> Iterator[PointComparison]:
    """Predict every measured point from the ramps of its rounds, all rounds together."""
    for model in models:
        config = read(model, None)
        for rounds in fitting(folder, model):
            point = together([point for point, _ in rounds])
            ramps = Profile(ramps=tuple(map(one_ramp, zip(*(ramps.ramps for _, ramps in rounds), strict=True))))
            prediction = point.predicted(config, ramps)
            longer = prediction.longer(point.counted)
            yield PointComparison(
                point=point,
                prediction=prediction,
                errors=point.errors(prediction),
                drift=longer - 1,
                own_errors=point.errors(point.predicted(config, ramps, stretch=longer)),
            )


def fitting(folder: Path, model: str) -> list[list[tuple[PredictedPoint, Profile]]]:
    """The measurements of each point, one for each round, with the ramps beside it.

    A measurement is left out if it does not fit its ramps, or if its ramps are not comparable with those of the last
    round. Of an even number of rounds, which has no median, the first is left out too.
    """
    rounds = defaultdict(list)
    for round_ in round_folders(folder):
        for point in measured(round_, [model]):
            ramps = Profile(ramps=tuple(load_ramp(round_ / name) for name in point.ramps))
            if point.fits(ramps):
                rounds[point.file_name].append((point, ramps))
    comparable = [
        [(point, ramps) for point, ramps in measurements if _comparable(ramps, measurements[-1][1])]
        for _, measurements in sorted(rounds.items())
    ]
    return [measurements[(len(measurements) + 1) % 2 :] for measurements in comparable]


def _comparable(profile: Profile, other: Profile) -> bool:
    """Whether these ramps are of the same model, configuration, machine, versions and levels."""
    return all(
        a.same(b) and [level.concurrency for level in a.levels] == [level.concurrency for level in b.levels]
        for a, b in zip(profile.ramps, other.ramps, strict=True)
    )


def by_load(compared: Sequence[PointComparison]) -> dict[str, list[PointComparison]]:
    """The comparisons of closed loops and those of Poisson arrivals."""
    return {
        name: [comparison for comparison in compared if comparison.point.open == is_open]
        for is_open, name in LOADS.items()
    }


def write(compared: Sequence[PointComparison], folder: Path) -> Path:
    """Write the figures of the comparison, one JSON file."""
    record = ComparedRecord(points=tuple(_figures(comparison) for comparison in compared))
    return file.write(record, folder / FILE)


def markdown(folder: Path) -> str:
    """How many predictions of `compared.json` hold, and those that do not.

    A prediction holds if its errors are within `LIMITS`; "own" counts predictions that know the speed of the point's
    own executions.
    """
    points = file.read(folder / FILE, ComparedRecord).points
    lines = []
    for load in LOADS.values():
        of_load = [point for point in points if point.loop == load]
        within, own = sum(point.holds for point in of_load), sum(point.own_holds for point in of_load)
        lines.append(
            f"- {load}: {within} of {len(of_load)} within the limits, {own} if each is predicted with the execution "
            "times of its own measurement"
        )
    lines += [
        "",
        "| miss | rows/s: predicted, measured | p50 | p95 | drift of the executions |",
        "|---|---|---|---|---|",
    ]
    for point in points:
        if not point.holds:
            rates = ", ".join(f"{side.throughput_rows_per_s:.0f}" for side in (point.predicted, point.measured))
            p50, p95 = (f"{point.errors[name]:+.0%}" for name in ("p50", "p95"))
            name = f"`{point.model}`, {point.configuration}, `{point.load}`"
            lines.append(f"| {name} | {rates} | {p50} | {p95} | {point.drift:+.0%} |")
    return "\n".join(lines)


def _figures(comparison: PointComparison) -> ComparedPoint:
    point, prediction = comparison.point, comparison.prediction
    return ComparedPoint(
        model=point.model,
        configuration=str(point.candidate),
        load=point.load,
        loop=LOADS[point.open],
        rounds=point.rounds,
        predicted=_side(prediction.throughput_rows_per_s, prediction.percentiles_ms, prediction.rows_per_execution),
        measured=_side(point.throughput_rows_per_s, point.percentiles_ms, point.counted.rows_per_execution),
        errors=comparison.errors,
        drift=comparison.drift,
        holds=holds(comparison.errors),
        own_holds=holds(comparison.own_errors),
    )


def _side(rate: float, percentiles_ms: Mapping[int, float], rows_per_execution: float) -> ComparedSide:
    return ComparedSide(
        throughput_rows_per_s=rate,
        p50_ms=percentiles_ms[50],
        p95_ms=percentiles_ms[95],
        rows_per_execution=rows_per_execution,
    )
