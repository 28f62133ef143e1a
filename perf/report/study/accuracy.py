"""Predicted against measured values of all configurations that were simulated and measured under the same load."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import altair as alt

from perf.records.candidate import Candidate
from perf.records.last_comparison import rows_per_s
from perf.report.figure import INK, Figure, finite, hover, lit, log_scale, numbers, source
from perf.report.section import Grid
from perf.report.study.evidence import Evidence, pooled, quantile_of
from perf.report.study.points import ends, palette, series
from perf.report.units import change, count, ms, number, whole_percent
from perf.simulate.predict import LIMITS
from perf.stats.percentile import percentile_ms

# The widest limit is drawn for all percentiles.
BAND = LIMITS["p95"]
UNITS = {"throughput": "rows/s", "p50": "ms", "p95": "ms", "p99": "ms"}
SHAPES = {"p50": "circle", "p95": "square", "p99": "diamond"}
HOVER = ("configuration", "percentile", "predicted", "measured", "predicted over measured", "requests")


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


def figure(evidence: Evidence, results: Sequence[Check]) -> Figure:
    """Predicted against measured latencies with the intervals of these; on the line they are equal."""
    latencies = [
        check for check in results if check.what in SHAPES and math.isfinite(check.measured) and check.predicted > 0
    ]
    values = [value for check in latencies for value in (check.predicted, check.measured)]
    low, high = min(values, default=1.0) / 1.1, max(values, default=10.0) * 1.1
    x = alt.X("x:Q", title="measured, ms", scale=log_scale(), axis=numbers())
    y = alt.Y("y:Q", title="predicted, ms", scale=log_scale(), axis=numbers())
    diagonal = alt.Chart(
        source([{"x": end, "y": end, "below": end / (1 + BAND), "above": end * (1 + BAND)} for end in (low, high)])
    )
    rows = [_row(evidence, check) for check in latencies]
    known = [row for row in rows if row["low"] is not None]
    look = {"y": y, "color": palette(evidence).colour, "opacity": lit()}
    base = alt.Chart(source(rows)).encode(**look)
    intervals = alt.Chart(source(known)).mark_rule(strokeWidth=1.5).encode(x="low:Q", x2="high:Q", **look)
    shapes = alt.Scale(domain=list(SHAPES), range=list(SHAPES.values()))
    chart = (
        diagonal.mark_area(color=INK, opacity=0.08).encode(x=x, y="below:Q", y2="above:Q")
        + diagonal.mark_line(color=INK, strokeWidth=1).encode(x=x, y=y)
        + base.mark_point(size=70, filled=True).encode(
            x=x, shape=alt.Shape("percentile:N", scale=shapes), tooltip=hover(*HOVER)
        )
    )
    if known:
        chart += intervals
    inside = sum(abs(check.ratio - 1) <= BAND for check in latencies)
    caption = (
        f"{inside} of {len(latencies)} predicted percentiles are within {whole_percent(BAND)} of the measured ones "
        f"(grey band; {count(len({check.candidate for check in latencies}), 'configuration')}; lines: 95 % intervals)"
    )
    return Figure(name="accuracy", caption=caption, chart=chart.properties(height=320))


def _row(evidence: Evidence, check: Check) -> dict[str, object]:
    interval = quantile_of(evidence.of(check.candidate), float(check.what[1:]))
    known = interval.low_ms > 0 and math.isfinite(interval.high_ms)
    return {
        **series(evidence, check.candidate),
        "x": check.measured,
        "y": finite(check.predicted),
        "low": interval.low_ms if known else None,
        "high": interval.high_ms if known else None,
        "percentile": check.what,
        "predicted": ms(check.predicted),
        "measured": ends(interval),
        "predicted over measured": change(check.ratio),
        "requests": f"{check.n:,}",
    }


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
