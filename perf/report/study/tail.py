"""The latency tail at the operating point, with all requests."""

import math
from collections.abc import Sequence

import altair as alt
import numpy as np

from perf.records.candidate import Candidate
from perf.report.figure import Figure, Zoom, finite, hover, lit, log_scale, numbers, source, zoomable
from perf.report.figure import Row as Values
from perf.report.section import Grid, Section
from perf.report.study.evidence import Evidence, pooled, quantile_of, thinned
from perf.report.study.points import ends, palette, series, target
from perf.report.units import count, ms, number
from perf.stats.quantile import Quantile, quantile

TITLE = "Latency tail at the operating point"
PERCENTS = (50.0, 90.0, 95.0, 99.0, 99.9)
# The highest percentile that the studies in git have: every half percent is on record.
HIGHEST = 99.5
THINNED = (
    "The record has percentiles of each window in place of its requests, so no percentile has an interval, it is not "
    "known how many independent requests they are worth, and the tail is not drawn."
)
# 1 / (1 - share): p0, p50, p90, p95, p99 and so on.
TICKS = [1, 2, 10, 20, 100, 1000, 10_000, 100_000]
HOVER = ("configuration", "percentile", "latency", "as slow or slower")
# The body is drawn with this many points; this many of the slowest requests are all drawn.
BODY, SLOWEST = 200, 300


def tail(evidence: Evidence) -> Section:
    """The shown candidate and the current configuration under the study's load."""
    order = dict.fromkeys((evidence.shown, evidence.study.default))
    latencies = {candidate: values for candidate in order if (values := pooled(evidence.of(candidate)))}
    if not latencies:
        missing = f"Neither the shown nor the current configuration was measured under {evidence.study.load}."
        return Section(name="tail", title=TITLE, missing=(missing,))
    of_percentiles = thinned(trial for candidate in latencies for trial in evidence.of(candidate))
    percents = [percent for percent in PERCENTS if not of_percentiles or percent <= HIGHEST]
    quantiles = {
        candidate: [quantile_of(evidence.of(candidate), percent) for percent in percents] for candidate in latencies
    }
    return Section(
        name="tail",
        title=TITLE,
        sentences=tuple(_sentence(evidence, candidate, quantiles[candidate]) for candidate in latencies),
        missing=(THINNED,) if of_percentiles else (),
        figures=() if of_percentiles else (_figure(evidence, latencies),),
        grids=(_grid(evidence, quantiles),),
        data={
            "interval": "95 %, order statistics, of as many independent requests as these are worth",
            "percentiles": [
                {"candidate": str(candidate), **vars(q)} for candidate, values in quantiles.items() for q in values
            ],
        },
    )


def _sentence(evidence: Evidence, candidate: Candidate, quantiles: Sequence[Quantile]) -> str:
    p99 = next(q for q in quantiles if q.percent == 99)
    n = f"n = {p99.n:,} requests in {count(len(evidence.of(candidate)), 'window')}"
    p99_text = f"{evidence.label(candidate)}: p99 {ms(p99.value_ms)}"
    if math.isnan(p99.design_effect):
        return f"{p99_text}, without an interval ({n}, from the percentiles of each)."
    limit = evidence.study.target.latency_ms
    if p99.high_ms <= limit:
        verdict = "all of it within the target"
    elif p99.low_ms > limit:
        verdict = "all of it above the target"
    else:
        verdict = "which includes the target"
    # The verdict counts how the windows differ, too: one number of independent requests is enough.
    return f"{p99_text}, 95 % interval within these windows {_range(p99)}, {verdict} ({n}, pooled)."


def _range(q: Quantile) -> str:
    high = ms(q.high_ms) if math.isfinite(q.high_ms) else "beyond the slowest answer"
    return f"{number(q.low_ms)} to {high}"


def _grid(evidence: Evidence, quantiles: dict[Candidate, list[Quantile]]) -> Grid:
    percents = [q.percent for q in next(iter(quantiles.values()))]
    titles = ("configuration", "n\nrequests", *(f"p{percent:g}, ms\n(95 % interval)" for percent in percents))
    rows = tuple(
        (evidence.label(candidate), f"{values[0].n:,}", *(f"{number(q.value_ms)} ({short(q)})" for q in values))
        for candidate, values in quantiles.items()
    )
    return Grid(titles=titles, rows=rows)


def short(q: Quantile) -> str:
    """The ends of the interval, in milliseconds."""
    if not q.low_ms and not math.isfinite(q.high_ms):
        return "no interval"
    return f"{number(q.low_ms)} .. {number(q.high_ms) if math.isfinite(q.high_ms) else '?'}"


def _figure(evidence: Evidence, latencies: dict[Candidate, tuple[float, ...]]) -> Figure:
    """Latency over 1 / (1 - share of faster requests), so that each nine has the same width."""
    longest = max(max(map(len, latencies.values())), 100)
    # Ticks with a percentile that people ask for; fixed ones would be drawn outside of a zoomed axis, too.
    label = f"indexof({TICKS}, round(datum.value)) < 0 ? '' : format(100 * (1 - 1 / datum.value), '.6~g')"
    axis = alt.Axis(labelExpr=label, grid=False, labelOverlap="greedy")
    scale = alt.Scale(type="log", domain=[1, 1.2 * longest], nice=False)
    x = alt.X("x:Q", title="percentile of all requests", scale=scale, axis=axis)
    y = alt.Y("y:Q", title="latency, ms", scale=log_scale(), axis=numbers())
    rows = [row for candidate, values in latencies.items() for row in _line(evidence, candidate, values)]
    intervals = [_interval(evidence, candidate, values) for candidate, values in latencies.items()]
    look = {"color": palette(evidence).colour, "opacity": lit()}
    line = alt.Chart(source(rows)).encode(x=x, y=y, **look)
    thick = alt.Chart(source(intervals)).encode(x=x, **look)
    chart = (
        line.mark_line(strokeWidth=2).encode(order="x:Q")
        + line.mark_point(size=24, filled=True).encode(tooltip=hover(*HOVER))
        + thick.mark_rule(strokeWidth=6).encode(y=alt.Y("low:Q"), y2="high:Q", opacity=lit(0.45))
        + thick.mark_point(size=70, filled=True).encode(y=y, tooltip=hover("configuration", "requests", "p99"))
        + target(evidence)
    )
    return Figure(
        name="tail",
        caption=f"{_caption(evidence, latencies)} (thick bar: 95 % interval of p99)",
        chart=zoomable(chart.properties(height=320)),
        zooms=_zooms(latencies, longest),
    )


def _zooms(latencies: dict[Candidate, tuple[float, ...]], longest: int) -> tuple[Zoom, ...]:
    """All requests, and the slowest ones, with the latencies that they have."""
    answered = [np.sort([us / 1e3 for us in values if math.isfinite(us)]) for values in latencies.values()]

    def zoom(label: str, share: float) -> Zoom:
        slow = [values[int(share * len(values)) :] for values in answered if len(values)]
        y = (min(float(values[0]) for values in slow) / 1.1, max(float(values[-1]) for values in slow) * 1.1)
        return Zoom(label=label, x=(0.95 / (1 - share), 1.2 * longest), y=y)

    if not any(map(len, answered)):
        return ()
    return zoom("all requests", 0.0), zoom("the slowest 10 %", 0.9), zoom("the slowest 1 %", 0.99)


def _line(evidence: Evidence, candidate: Candidate, latencies: Sequence[float]) -> list[Values]:
    """The body in `BODY` points, and all of the `SLOWEST` requests."""
    ordered = np.sort(np.asarray(latencies)) / 1e3
    n = len(ordered)
    body = np.linspace(0, max(n - SLOWEST, 0), BODY).astype(int)
    chosen = np.unique(np.concatenate([body, np.arange(max(n - SLOWEST, 0), n)]))
    return [
        {
            **series(evidence, candidate),
            "x": round(n / (n - at), 4),
            "y": round(float(ordered[at]), 4),
            "percentile": f"{100 * at / n:.4g}",
            "latency": ms(float(ordered[at])),
            "as slow or slower": f"{n - at:,} of {n:,} requests",
        }
        for at in chosen.tolist()
        if np.isfinite(ordered[at])
    ]


def _interval(evidence: Evidence, candidate: Candidate, latencies: Sequence[float]) -> Values:
    p99 = quantile(latencies, 99)
    highest = max((us / 1e3 for us in latencies if math.isfinite(us)), default=math.nan)
    return {
        **series(evidence, candidate),
        "x": 100,
        "y": finite(p99.value_ms),
        "low": finite(p99.low_ms),
        "high": finite(min(p99.high_ms, highest)),
        "requests": f"{p99.n:,}",
        "p99": ends(p99),
    }


def _caption(evidence: Evidence, latencies: dict[Candidate, tuple[float, ...]]) -> str:
    texts = []
    for candidate, values in latencies.items():
        lost = sum(not math.isfinite(us) for us in values)
        end = f"{lost:,} of {len(values):,} never answered" if lost else f"the slowest {ms(max(values) / 1e3)}"
        over = sum(us > evidence.study.target.latency_ms * 1e3 for us in values)
        texts.append(f"{evidence.label(candidate)}: {over:,} of {len(values):,} requests above the target, {end}")
    return "; ".join(texts)
