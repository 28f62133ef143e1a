"""Part 4: the latency tail at the operating point, with all requests."""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from perf.records.candidate import Candidate
from perf.report.drawing import NARROW, plain
from perf.report.study.evidence import Evidence, pooled, quantile_of, thinned
from perf.report.study.points import colour, logarithmic, target
from perf.report.study.section import Grid, Picture, Section
from perf.report.study.units import count, ms, number
from perf.stats.quantile import Quantile, quantile

TITLE = "Latency tail at the operating point"
PERCENTS = (50.0, 90.0, 95.0, 99.0, 99.9)
# The highest percentile that the studies in git have: every half percent is on record.
HIGHEST = 99.5
THINNED = (
    "The record has percentiles of each window in place of its requests, so no percentile has an interval, it is not "
    "known how many independent requests they are worth, and the tail is not drawn."
)
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
        pictures=() if of_percentiles else (_picture(evidence, latencies),),
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
        verdict = "which includes the target, so this sample cannot tell"
    worth = f"pooled, worth {p99.n / p99.design_effect:,.0f} independent ones"
    return f"{p99_text}, 95 % interval {_range(p99)}, {verdict} ({n}, {worth})."


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


def _picture(evidence: Evidence, latencies: dict[Candidate, tuple[float, ...]]) -> Picture:
    figure = Figure(figsize=NARROW, layout="constrained")
    axes = figure.subplots()
    plain(axes)
    longest = max(map(len, latencies.values()))
    all_ms = [us / 1e3 for values in latencies.values() for us in values]
    logarithmic(axes, "y", [*all_ms, evidence.study.target.latency_ms])
    target(axes, evidence)
    for candidate, values in reversed(latencies.items()):
        _line(axes, evidence, candidate, values)
    _percentiles(axes, longest)
    axes.set_ylabel("latency, ms")
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles[::-1], labels[::-1], loc="outside upper left", ncols=1)
    return Picture(name="tail", caption=_caption(evidence, latencies), figure=figure)


def _line(axes: Axes, evidence: Evidence, candidate: Candidate, latencies: Sequence[float]) -> None:
    """Draw latency over 1 / (1 - share of faster requests), so that each nine has the same width."""
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
    ticks = [1 / (1 - share) for share in shares if 1 / (1 - share) <= max(longest, 100) * 1.5]
    axes.set_xscale("log")
    axes.set_xlim(1, max(longest, 100) * 1.2)
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * (1 - 1 / value):.6g}"))
    axes.set_xlabel("percentile of all requests (thick bar: 95 % interval of p99)")


def _caption(evidence: Evidence, latencies: dict[Candidate, tuple[float, ...]]) -> str:
    texts = []
    for candidate, values in latencies.items():
        lost = sum(not math.isfinite(us) for us in values)
        end = f"{lost:,} of {len(values):,} never answered" if lost else f"the slowest {ms(max(values) / 1e3)}"
        over = sum(us > evidence.study.target.latency_ms * 1e3 for us in values)
        texts.append(f"{evidence.label(candidate)}: {over:,} of {len(values):,} requests above the target, {end}")
    return "; ".join(texts)
