"""Predicted against measured, for every configuration that was both simulated and measured under the same load."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from perf.records.candidate import Candidate
from perf.report.drawing import INK, NARROW, plain
from perf.report.study.evidence import Evidence, pooled, rows_per_s
from perf.report.study.points import SHOWN, colour, logarithmic
from perf.report.study.section import Drawn, Grid
from perf.report.study.units import change, count, number, whole_percent
from perf.simulate.predict import LIMITS
from perf.stats.quantile import percentile_ms

# The widest of the limits is drawn for all percentiles.
BAND = LIMITS["p95"]
UNITS = {"throughput": "rows/s", "p50": "ms", "p95": "ms", "p99": "ms"}
SHAPES = {"p50": "o", "p95": "s", "p99": "D"}


@dataclass(frozen=True, kw_only=True)
class Check:
    """One figure of one configuration: predicted and measured in the unit of `what`, from `n` requests."""

    candidate: Candidate
    what: str
    predicted: float
    measured: float
    n: int

    @property
    def ratio(self) -> float:
        """Predicted over measured; infinite where it was not measured."""
        return self.predicted / self.measured if self.measured and math.isfinite(self.measured) else math.inf


def checks(evidence: Evidence) -> tuple[Check, ...]:
    """Four for every configuration that was measured at the load that it was simulated under."""
    found = []
    for candidate in evidence.candidates:
        prediction, trials = evidence.predicted.get(candidate), evidence.of(candidate)
        if prediction is None:
            continue
        latencies = pooled(trials)
        measured = {"throughput": (prediction.throughput_rows_per_s, rows_per_s(trials))} | {
            f"p{q}": (prediction.percentiles_ms[q], percentile_ms(latencies, q)) for q in (50, 95, 99)
        }
        found += [
            Check(candidate=candidate, what=what, predicted=ours, measured=theirs, n=len(latencies))
            for what, (ours, theirs) in measured.items()
        ]
    return tuple(found)


def accuracy(found: Sequence[Check]) -> str:
    """How many of the checks are within their limits, and the worst of each kind."""
    said = []
    for what in UNITS:
        ratios = [one.ratio for one in found if one.what == what and math.isfinite(one.ratio)]
        if not ratios:
            continue
        limit = LIMITS.get(what)
        inside = (
            f"{sum(abs(one - 1) <= limit for one in ratios)} of {len(ratios)} within {whole_percent(limit)}, "
            if limit
            else ""
        )
        worst = max(ratios, key=lambda one: abs(math.log(one)) if one > 0 else math.inf)
        said.append(f"{what}: {inside}the worst {change(worst)}")
    return "Predicted over measured, " + "; ".join(said) + "."


def drawn(evidence: Evidence, found: Sequence[Check]) -> Drawn:
    """Latencies predicted against measured; on the line, they agree."""
    latencies = [one for one in found if one.what in SHAPES and math.isfinite(one.measured) and one.predicted > 0]
    figure = Figure(figsize=NARROW, layout="constrained")
    axes = figure.subplots()
    plain(axes)
    every = [value for one in latencies for value in (one.predicted, one.measured)]
    for axis in "xy":
        logarithmic(axes, axis, every)
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
    for one in latencies:
        axes.plot(one.measured, one.predicted, SHAPES[one.what], color=colour(evidence, one.candidate), markersize=7)
    for what, shape in SHAPES.items():
        axes.plot([], [], shape, color=SHOWN, label=what)
    axes.set(xlabel="measured, ms", ylabel="predicted, ms")
    figure.legend(loc="outside upper left", ncols=3)
    inside = sum(abs(one.ratio - 1) <= BAND for one in latencies)
    caption = (
        f"{inside} of {len(latencies)} predicted percentiles are within {whole_percent(BAND)} of the measured ones "
        f"(grey band; {count(len({one.candidate for one in latencies}), 'configuration')})"
    )
    return Drawn(name="accuracy", caption=caption, figure=figure)


def grid(evidence: Evidence, found: Sequence[Check]) -> Grid:
    """Every check with its numbers."""
    rows = tuple(
        (
            evidence.label(one.candidate),
            f"{one.what}, {UNITS[one.what]}",
            number(one.predicted),
            number(one.measured),
            change(one.ratio) if math.isfinite(one.ratio) else "",
            f"{one.n:,}",
        )
        for one in found
    )
    titles = ("configuration", "what", "predicted", "measured", "predicted\nover measured", "n\nrequests")
    return Grid(
        titles=titles, rows=rows, left=2, summary=f"All {count(len(rows), 'prediction')} beside what was measured"
    )


def data(found: Sequence[Check]) -> list[dict[str, object]]:
    """The same for the JSON file."""
    return [vars(one) | {"candidate": str(one.candidate)} for one in found]
