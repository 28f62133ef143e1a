"""How a trial is drawn: the colour stands for its configuration, the shape for the verdict on the latency target."""

from collections.abc import Iterable, Sequence
from typing import Any

import altair as alt
import numpy as np

from perf.records.candidate import Candidate
from perf.records.study import Trial, phase
from perf.report.figure import (
    COLOURS,
    GREY,
    INK,
    Chart,
    Palette,
    finite,
    horizontal,
    hover,
    lit,
    source,
    vertical,
)
from perf.report.figure import Row as Values
from perf.report.study.evidence import Evidence, quantile_of, word
from perf.report.units import ms, number, percent, plain_ms
from perf.stats.percentile import percentile_ms
from perf.stats.quantile import Quantile

SHOWN, OTHER = COLOURS[0], COLOURS[2]
# Okabe and Ito's vermillion, for the target.
TARGET = COLOURS[1]
OTHERS = "others"
SHAPES = {True: "circle", False: "cross", None: "diamond"}
WORDS = {True: "passes", False: "fails", None: "cannot tell"}
HOVER = (
    *("configuration", "load", "measured for", "requests", "rows/s", "p50", "p95", "p99", "late", "not answered"),
    "target",
)


def palette(evidence: Evidence) -> Palette:
    """Blue for the shown candidate, grey for the current configuration, green for all others together."""
    colours = {OTHERS: OTHER, evidence.label(evidence.study.default): GREY, evidence.label(evidence.shown): SHOWN}
    return Palette(colours=dict(reversed(colours.items())), field="series")


def series(evidence: Evidence, candidate: Candidate) -> dict[str, str]:
    """The configuration of a row, and the name of its colour."""
    label = evidence.label(candidate)
    return {"configuration": label, "series": label if evidence.role(candidate) else OTHERS}


def trial_row(evidence: Evidence, trial: Trial, x: float, y: float, **more: object) -> dict[str, Any]:
    """A trial at a place of a chart, with all that a reader sees of it; infinity has no place."""
    requests = max(trial.requests, 1)
    passed = evidence.passed([trial])
    return {
        **series(evidence, trial.candidate),
        "x": finite(x),
        "y": finite(y),
        "verdict": WORDS[passed],
        "load": trial.load + (f", {trial.offered_per_s:,.1f} requests/s offered" if trial.offered_per_s else ""),
        "measured for": f"{phase(trial.stage, trial.round)}, {trial.seconds:.1f} s",
        "requests": f"{trial.requests:,}",
        "rows/s": number(trial.throughput_rows_per_s),
        **{f"p{q}": ms(percentile_ms(trial.latencies_us, q)) for q in (50, 95)},
        "p99": ends(quantile_of([trial], 99)),
        "late": percent(trial.late / requests),
        "not answered": f"{trial.not_sent + trial.failed:,}",
        "target": f"{plain_ms(evidence.study.target.latency_ms)}: {word(passed)}",
        **more,
    }


def ends(q: Quantile) -> str:
    """A percentile with its interval in words."""
    if not q.low_ms and finite(q.high_ms) is None:
        return f"{ms(q.value_ms)}, without an interval"
    return f"{ms(q.value_ms)} (95 %: {number(q.low_ms)} to {number(q.high_ms)})"


def points(evidence: Evidence, rows: Sequence[Values], x: alt.X, y: alt.Y) -> Chart:
    """The trials at their places; those without a place on one axis are at its end, as triangles."""
    shape = alt.Shape(
        "verdict:N",
        scale=alt.Scale(domain=list(WORDS.values()), range=list(SHAPES.values())),
        # A mark with a fill of its own would have a transparent outline in the legend, whatever is asked for here.
        legend=alt.Legend(symbolFillColor="transparent", symbolStrokeColor=INK),
    )
    look = {"color": palette(evidence).colour, "opacity": lit(), "tooltip": hover(*HOVER)}
    finite_rows = [row for row in rows if row["x"] is not None and row["y"] is not None]
    marks: Chart = (
        alt.Chart(source(finite_rows)).mark_point(size=90, strokeWidth=2).encode(x=x, y=y, shape=shape, **look)
    )
    never = {axis: [row for row in rows if row[axis] is None] for axis in "xy"}
    if never["y"]:
        arrow = alt.Chart(source(never["y"])).mark_point(size=90, shape="triangle-up", filled=True)
        marks = marks + arrow.encode(x=x, y=alt.value(4), **look)
    if never["x"]:
        arrow = alt.Chart(source(never["x"])).mark_point(size=90, shape="triangle-right", filled=True)
        marks = marks + arrow.encode(x=alt.value("width"), y=y, **look)
    return marks


def target(evidence: Evidence, *, upright: bool = False) -> Chart:
    """A labelled line at the latency target."""
    target_ms = evidence.study.target.latency_ms
    return (vertical if upright else horizontal)(target_ms, f"target {plain_ms(target_ms)}", TARGET)


def middle(values: Iterable[float]) -> float:
    """The median; infinite values count as the highest."""
    return float(np.median(list(values)))
