"""Predicted against measured values of all configurations that were simulated and measured under the same load."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from perf.records.candidate import Candidate
from perf.report.drawing import INK, NARROW, plain
from perf.report.study.evidence import Evidence, pooled, rows_per_s
from perf.report.study.points import SHOWN, colour, logarithmic
from perf.report.study.section import Grid, Picture
from perf.report.study.units import change, count, number, whole_percent
from perf.simulate.predict import LIMITS
from perf.stats.percentile import percentile_ms

# The widest limit is drawn for all percentiles.
BAND = LIMITS["p95"]
UNITS = {"throughput": "rows/s", "p50": "ms", "p95": "ms", "p99": "ms"}
SHAPES = {"p50": "o", "p95": "s", "p99": "D"}


@dataclass(frozen=True, kw_only=True)
class Check:
    """One value of one configuration, predicted and measured in the unit of `what`; `n` requests were measured."""

    candidate: Candidate
    what: str
    predicted: float
    measured: float
    n: int

    @property
    def ratio(self) -> float:
        """Predicted over measured; infinity if there is no measured value."""
        return self.predicted / self.measured if self.measured and math.isfinite(self.measured) else math.inf


def checks(evidence: Evidence) -> tuple[Check, ...]:
    """Four checks for each configuration that was measured under the load of its simulation."""
    results = []
    for candidate in evidence.candidates:
        prediction, trials = evidence.predicted.get(candidate), evidence.of(candidate)
        if prediction is None:
            continue
        latencies = pooled(trials)
        measured = {"throughput": (prediction.throughput_rows_per_s, rows_per_s(trials))} | {
            f"p{q}": (prediction.percentiles_ms[q], percentile_ms(latencies, q)) for q in (50, 95, 99)
        }
        requests = sum(trial.requests for trial in trials)
        results += [
            Check(candidate=candidate, what=what, predicted=predicted_value, measured=value, n=requests)
            for what, (predicted_value, value) in measured.items()
        ]
    return tuple(results)


def accuracy(results: Sequence[Check]) -> str:
    """A sentence with the number of checks within their limits and the worst ratio of each kind."""
    texts = []
    for what in UNITS:
        ratios = [check.ratio for check in results if check.what == what and math.isfinite(check.ratio)]
        if not ratios:
            continue
        limit = LIMITS.get(what)
        inside = (
            f"{sum(abs(ratio - 1) <= limit for ratio in ratios)} of {len(ratios)} within {whole_percent(limit)}, "
            if limit
            else ""
        )
        worst = max(ratios, key=lambda ratio: abs(math.log(ratio)) if ratio > 0 else math.inf)
        texts.append(f"{what}: {inside}the worst {change(worst)}")
    return "Predicted over measured, " + "; ".join(texts) + "."


def picture(evidence: Evidence, results: Sequence[Check]) -> Picture:
    """Predicted against measured latencies; on the line they are equal."""
    latencies = [
        check for check in results if check.what in SHAPES and math.isfinite(check.measured) and check.predicted > 0
    ]
    figure = Figure(figsize=NARROW, layout="constrained")
    axes = figure.subplots()
    plain(axes)
    values = [value for check in latencies for value in (check.predicted, check.measured)]
    for axis in "xy":
        logarithmic(axes, axis, values)
    low, high = axes.get_xlim()
    axes.plot([low, high], [low, high], color=INK, linewidth=1)
    axes.fill_between(
        [low, high],
        [low / (1 + BAND), high / (1 + BAND)],
        [low * (1 + BAND), high * (1 + BAND)],
        color=INK,
        alpha=0.08,
        linewidth=0,
    )
    for check in latencies:
        shade = colour(evidence, check.candidate)
        axes.plot(check.measured, check.predicted, SHAPES[check.what], color=shade, markersize=7)
    for what, shape in SHAPES.items():
        axes.plot([], [], shape, color=SHOWN, label=what)
    axes.set(xlabel="measured, ms", ylabel="predicted, ms")
    figure.legend(loc="outside upper left", ncols=3)
    inside = sum(abs(check.ratio - 1) <= BAND for check in latencies)
    caption = (
        f"{inside} of {len(latencies)} predicted percentiles are within {whole_percent(BAND)} of the measured ones "
        f"(grey band; {count(len({check.candidate for check in latencies}), 'configuration')})"
    )
    return Picture(name="accuracy", caption=caption, figure=figure)


def grid(evidence: Evidence, results: Sequence[Check]) -> Grid:
    """A row per check."""
    rows = tuple(
        (
            evidence.label(check.candidate),
            f"{check.what}, {UNITS[check.what]}",
            number(check.predicted),
            number(check.measured),
            change(check.ratio) if math.isfinite(check.ratio) else "",
            f"{check.n:,}",
        )
        for check in results
    )
    titles = ("configuration", "what", "predicted", "measured", "predicted\nover measured", "n\nrequests")
    summary = f"All {count(len(rows), 'prediction')} with measured values"
    return Grid(titles=titles, rows=rows, left=2, summary=summary)


def data(results: Sequence[Check]) -> list[dict[str, object]]:
    """The checks for the JSON file."""
    return [vars(check) | {"candidate": str(check.candidate)} for check in results]
