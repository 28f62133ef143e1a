"""Part 4: the latency tail at the operating point, every request of it, percentile by percentile."""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from perf.records.candidate import Candidate
from perf.report.drawing import NARROW, plain
from perf.report.study.evidence import Evidence, pooled
from perf.report.study.points import colour, logarithmic, target
from perf.report.study.section import Drawn, Grid, Section
from perf.report.study.units import count, ms, number
from perf.stats.quantile import Quantile, quantile

TITLE = "Latency tail at the operating point"
PERCENTS = (50.0, 90.0, 95.0, 99.0, 99.9)
# Of the body so many points are enough for a smooth line; of the slowest requests every one is drawn.
BODY, SLOWEST = 200, 300


def tail(evidence: Evidence) -> Section:
    """The shown candidate and the current configuration under the study's load."""
    order = dict.fromkeys((evidence.shown, evidence.study.default))
    found = {one: pooled(evidence.of(one)) for one in order}
    found = {one: latencies for one, latencies in found.items() if latencies}
    if not found:
        missing = f"No configuration to show was measured under {evidence.study.load}."
        return Section(name="tail", title=TITLE, missing=(missing,))
    quantiles = {one: [quantile(latencies, q) for q in PERCENTS] for one, latencies in found.items()}
    return Section(
        name="tail",
        title=TITLE,
        sentences=tuple(_sentence(evidence, one, quantiles[one]) for one in found),
        drawn=(_drawn(evidence, found),),
        grids=(_grid(evidence, quantiles),),
        data={
            "interval": "95 %, order statistics",
            "percentiles": [{"candidate": str(one), **vars(q)} for one, all_q in quantiles.items() for q in all_q],
        },
    )


def _sentence(evidence: Evidence, candidate: Candidate, quantiles: Sequence[Quantile]) -> str:
    p99 = next(one for one in quantiles if one.percent == 99)
    windows = count(len(evidence.of(candidate)), "window")
    limit = evidence.study.sla.latency_ms
    says = (
        "all of it within the target"
        if p99.high_ms <= limit
        else "all of it over the target"
        if p99.low_ms > limit
        else ""
    )
    says = says or "with the target inside it, so this sample cannot tell"
    return (
        f"{evidence.label(candidate)}: p99 {ms(p99.value_ms)}, 95 % interval {_range(p99)}, {says} "
        f"(n = {p99.n:,} requests in {windows}, pooled)."
    )


def _range(one: Quantile) -> str:
    high = ms(one.high_ms) if math.isfinite(one.high_ms) else "beyond the slowest answer"
    return f"{number(one.low_ms)} to {high}"


def _grid(evidence: Evidence, quantiles: dict[Candidate, list[Quantile]]) -> Grid:
    titles = ("configuration", "n\nrequests", *(f"p{q:g}, ms\n(95 % interval)" for q in PERCENTS))
    rows = tuple(
        (evidence.label(one), f"{found[0].n:,}", *(f"{number(q.value_ms)} ({_short(q)})" for q in found))
        for one, found in quantiles.items()
    )
    return Grid(titles=titles, rows=rows)


def _short(one: Quantile) -> str:
    return f"{number(one.low_ms)} .. {number(one.high_ms) if math.isfinite(one.high_ms) else '?'}"


def _drawn(evidence: Evidence, found: dict[Candidate, tuple[float, ...]]) -> Drawn:
    figure = Figure(figsize=NARROW, layout="constrained")
    axes = figure.subplots()
    plain(axes)
    longest = max(map(len, found.values()))
    every = [us / 1e3 for latencies in found.values() for us in latencies]
    logarithmic(axes, "y", [*every, evidence.study.sla.latency_ms])
    target(axes, evidence)
    for candidate, latencies in reversed(found.items()):
        _line(axes, evidence, candidate, latencies)
    _percentiles(axes, longest)
    axes.set_ylabel("latency, ms")
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles[::-1], labels[::-1], loc="outside upper left", ncols=1)
    return Drawn(name="tail", caption=_caption(evidence, found), figure=figure)


def _line(axes: Axes, evidence: Evidence, candidate: Candidate, latencies: Sequence[float]) -> None:
    """Latency over 1 / (1 - share of faster requests), so that each further nine takes as much room as the last."""
    ordered = np.sort(np.asarray(latencies)) / 1e3
    n = len(ordered)
    body = np.linspace(0, max(n - SLOWEST, 0), BODY).astype(int)
    chosen = np.unique(np.concatenate([body, np.arange(max(n - SLOWEST, 0), n)]))
    chosen = chosen[np.isfinite(ordered[chosen])]
    shade = colour(evidence, candidate)
    axes.plot(n / (n - chosen), ordered[chosen], color=shade, label=f"{evidence.label(candidate)}, n = {n:,}")
    p99 = quantile(latencies, 99)
    top = min(p99.high_ms, axes.get_ylim()[1])
    if math.isfinite(p99.value_ms):
        axes.plot([100, 100], [max(p99.low_ms, axes.get_ylim()[0]), top], color=shade, linewidth=5, alpha=0.45)
        axes.plot(100, p99.value_ms, "o", color=shade, markersize=6)


def _percentiles(axes: Axes, longest: int) -> None:
    shares = [0.0, 0.5, 0.9, 0.95, 0.99, 0.999, 0.9999, 0.99999]
    shown = [share for share in shares if 1 / (1 - share) <= max(longest, 100) * 1.5]
    axes.set_xscale("log")
    axes.set_xlim(1, max(longest, 100) * 1.2)
    axes.xaxis.set_major_locator(FixedLocator([1 / (1 - share) for share in shown]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * (1 - 1 / value):.6g}"))
    axes.set_xlabel("percentile of all requests (thick bar: 95 % interval of p99)")


def _caption(evidence: Evidence, found: dict[Candidate, tuple[float, ...]]) -> str:
    parts = []
    for candidate, latencies in found.items():
        slowest, lost = max(latencies), sum(not math.isfinite(us) for us in latencies)
        end = f"{lost:,} of {len(latencies):,} never answered" if lost else f"the slowest {ms(slowest / 1e3)}"
        over = sum(us > evidence.study.sla.latency_ms * 1e3 for us in latencies)
        parts.append(f"{evidence.label(candidate)}: {over:,} of {len(latencies):,} requests over the target, {end}")
    return "; ".join(parts)
