"""Predictions beside measured points: the errors, and the record of the comparison (`compared.json`)."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perf.load.variant import read
from perf.measure.service_profile import Profile
from perf.measure.service_profile import load as load_ramp
from perf.records import file
from perf.records.study import Prediction
from perf.studies.prediction.points import PredictedPoint, holds, measured, round_folders, together
from perf.studies.prediction.service_rounds import one_ramp

MODELS = ("simulated_accelerator", "ranker", "text_recognition")
FILE = "compared.json"
FORMAT, KIND = 1, "compared predictions"
LOADS = {False: "closed loops", True: "Poisson arrivals"}


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A measured point, its prediction, and the errors of the prediction.

    `drift` is how much longer its executions took than predicted for the same sizes. `own_errors` are the errors of a
    prediction with executions as much longer: a miss that they do not share comes from the drift alone.
    """

    point: PredictedPoint
    prediction: Prediction
    errors: Mapping[str, float]
    drift: float
    own_errors: Mapping[str, float]

    @property
    def verdict(self) -> str:
        """`""` within the limits, else where a miss comes from."""
        if holds(self.errors):
            return ""
        return f"drift {self.drift:+.0%}" if holds(self.own_errors) else "miss"


def compare(folder: Path, models: Sequence[str] = MODELS) -> Iterator[Compared]:
    """Predict every measured point from the ramps of its rounds, all rounds together."""
    for model in models:
        config = read(model, None)
        for some in fitting(folder, model):
            point = together([point for point, _ in some])
            ramps = Profile(ramps=tuple(map(one_ramp, zip(*(ramps.ramps for _, ramps in some), strict=True))))
            prediction = point.predicted(config, ramps)
            longer = prediction.longer(point.counted)
            yield Compared(
                point=point,
                prediction=prediction,
                errors=point.errors(prediction),
                drift=longer - 1,
                own_errors=point.errors(point.predicted(config, ramps, stretch=longer)),
            )


def fitting(folder: Path, model: str) -> list[list[tuple[PredictedPoint, Profile]]]:
    """The measurements of each point, one for each round, with the ramps beside it.

    A measurement is left out if it does not fit its ramps, or if its ramps are not like those of the last round. The
    first round is left out, too, if the number of rounds is even, which has no median.
    """
    rounds = defaultdict(list)
    for each in round_folders(folder):
        for point in measured(each, [model]):
            ramps = Profile(ramps=tuple(load_ramp(each / name) for name in point.ramps))
            if point.fits(ramps):
                rounds[point.file_name].append((point, ramps))
    alike = [
        [measurement for measurement in some if _alike(measurement[1], some[-1][1])]
        for _, some in sorted(rounds.items())
    ]
    return [some[(len(some) + 1) % 2 :] for some in alike]


def _alike(profile: Profile, other: Profile) -> bool:
    """Whether these ramps are of the same model, configuration, machine, versions and levels."""
    return all(
        a.same(b) and [level.concurrency for level in a.levels] == [level.concurrency for level in b.levels]
        for a, b in zip(profile.ramps, other.ramps, strict=True)
    )


def by_load(compared: Sequence[Compared]) -> dict[str, list[Compared]]:
    """The comparisons of closed loops and those of Poisson arrivals."""
    return {
        name: [comparison for comparison in compared if comparison.point.open == is_open]
        for is_open, name in LOADS.items()
    }


def write(compared: Sequence[Compared], folder: Path) -> Path:
    """Write the figures of the comparison, one JSON file."""
    content = {"format": FORMAT, "kind": KIND, "points": [_figures(comparison) for comparison in compared]}
    return file.write_content(content, folder / FILE)


def markdown(folder: Path) -> str:
    """How many predictions of `compared.json` hold, and those that do not.

    A prediction holds if its errors are within `LIMITS`; "own" counts predictions that know the speed of the point's
    own executions.
    """
    points = json.loads((folder / FILE).read_text())["points"]
    lines = []
    for load in LOADS.values():
        some = [point for point in points if point["loop"] == load]
        held, own = (sum(point[name] for point in some) for name in ("holds", "own_holds"))
        lines.append(f"- {load}: {held} of {len(some)} within the limits, {own} with the speed of their own executions")
    lines += [
        "",
        "| miss | rows/s: predicted, measured | p50 | p95 | drift of the executions |",
        "|---|---|---|---|---|",
    ]
    for point in points:
        if not point["holds"]:
            rates = ", ".join(f"{point[side]['throughput_rows_per_s']:.0f}" for side in ("predicted", "measured"))
            p50, p95 = (f"{point['errors'][name]:+.0%}" for name in ("p50", "p95"))
            name = f"`{point['model']}`, {point['configuration']}, `{point['load']}`"
            lines.append(f"| {name} | {rates} | {p50} | {p95} | {point['drift']:+.0%} |")
    return "\n".join(lines)


def _figures(comparison: Compared) -> dict[str, Any]:
    point, prediction = comparison.point, comparison.prediction
    sides = {
        "predicted": (prediction.throughput_rows_per_s, prediction.percentiles_ms, prediction.rows_per_execution),
        "measured": (point.throughput_rows_per_s, point.percentiles_ms, point.counted.rows_per_execution),
    }
    return {
        "model": point.model,
        "configuration": str(point.candidate),
        "load": point.load,
        "loop": LOADS[point.open],
        "rounds": point.rounds,
        **{
            side: {"throughput_rows_per_s": rate, "p50_ms": ms[50], "p95_ms": ms[95], "rows_per_execution": rows}
            for side, (rate, ms, rows) in sides.items()
        },
        "errors": comparison.errors,
        "drift": comparison.drift,
        "holds": holds(comparison.errors),
        "own_holds": holds(comparison.own_errors),
    }
