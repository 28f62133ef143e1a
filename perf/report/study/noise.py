"""The noise of the trials: A/A pairs, the load of the machine, and the course of one window."""

from collections.abc import Sequence

import altair as alt
import numpy as np

from perf.records.last_comparison import P99, THROUGHPUT, Quantity
from perf.records.study import Trial, phase
from perf.report.figure import (
    COLOURS,
    GREY,
    Figure,
    Palette,
    finite,
    horizontal,
    hover,
    log_scale,
    numbers,
    source,
    vertical,
    zoomable,
)
from perf.report.section import Section
from perf.report.study.evidence import Evidence
from perf.report.study.points import OTHER, SHOWN, TARGET, target
from perf.report.units import change, count, ms, number, percent
from perf.stats.interval import Interval
from perf.stats.verdict import differs

TITLE = "Noise"
# More runnable processes per core than the study's own load causes: other programs were at work.
CROWDED = 3.0
SLICES = 120
AGAIN, AGAINST = "same twice", "new / current"
LOAD, BUSY = "load average before it", "cores busy during it, all processes"
TOPS, MIDDLES = "slowest of the slice", "median of the slice"


def noise(evidence: Evidence) -> Section:
    """The A/A pairs, the load average, and the first window at the operating point."""
    trials = evidence.trials
    if not trials:
        return Section(name="noise", title=TITLE, missing=("No configuration was measured.",))
    reasons = too_noisy(evidence)
    again = _again(evidence)
    faults = [f"{name}: {fault}" for name, fault in _faults(trials)]
    ratios = ", ".join(f"{what} x {interval}" for what, interval in again.items())
    pairs = count(len(evidence.twins), "pair")
    sentence = f"A/A noise, the same configuration measured again over before ({pairs}): {ratios}." if again else ""
    window = next(iter(evidence.of(evidence.shown)), None)
    figures = (_same(evidence), _machine(evidence), _window(evidence, window))
    return Section(
        name="noise",
        title=TITLE,
        banner=f"The machine was too noisy to trust small differences: {'; '.join(reasons)}." if reasons else "",
        sentences=tuple(filter(None, (sentence, *faults))),
        missing=() if again else ("No configuration was measured twice in turn, so the A/A noise is unknown.",),
        figures=tuple(figure for figure in figures if figure is not None),
        data={
            "again": {
                what: {"ratio": interval.value, "low": interval.low, "high": interval.high, "pairs": interval.count}
                for what, interval in again.items()
            },
            "load_average": [trial.load_average for trial in trials],
            "too_noisy": reasons,
        },
    )


def too_noisy(evidence: Evidence) -> list[str]:
    """The reasons not to trust small differences; empty for a calm machine."""
    crowd = max((trial.load_average for trial in evidence.trials), default=0.0)
    cores = evidence.study.machine.cores
    reasons = [
        f"the same configuration measured again differs from itself, {what} x {interval}"
        for what, interval in _again(evidence).items()
        if differs(interval)
    ]
    if crowd > CROWDED * cores:
        reasons.append(f"load average {number(crowd)} on {count(cores, 'core')} before a measurement")
    return reasons


def _again(evidence: Evidence) -> dict[str, Interval]:
    """The ratios of the A/A pairs, by quantity."""
    ratios = {quantity.name: evidence.comparison.noise(quantity) for quantity in (THROUGHPUT, P99)}
    return {what: interval for what, interval in ratios.items() if interval is not None}


def _faults(trials: Sequence[Trial]) -> list[tuple[str, str]]:
    return [
        (f"{trial.candidate} ({phase(trial.stage, trial.round)})", fault) for trial in trials for fault in trial.faults
    ]


def _same(evidence: Evidence) -> Figure | None:
    """The ratios of A/A pairs beside those of the comparison: a gain must be outside of the A/A ratios."""
    groups = [
        (f"{quantity.name}, {name}", _ratios(quantity, pairs), name)
        for quantity in (THROUGHPUT, P99)
        for name, pairs in ((AGAIN, evidence.twins), (AGAINST, evidence.pairs))
    ]
    groups = [group for group in groups if group[1]]
    if not groups:
        return None
    rows = [
        {"group": name, "pairs": pairs, "x": ratio, "ratio": f"{ratio:.3f}", "pair": f"{number} of {len(values)}"}
        for name, values, pairs in groups
        for number, ratio in enumerate(values, 1)
    ]
    kinds = Palette(colours={AGAIN: GREY, AGAINST: SHOWN}, field="pairs")
    order = [name for name, _, _ in groups]
    axis = alt.Axis(grid=False, labelExpr="split(datum.label, ', ')")
    marks = alt.Chart(source(rows)).mark_point(size=80, filled=True, opacity=0.75)
    chart = marks.encode(
        x=alt.X("x:Q", title="ratio of two interleaved measurements", scale=log_scale(), axis=numbers()),
        y=alt.Y("group:N", sort=order, title=None, axis=axis),
        color=kinds.colour,
        shape=kinds.shape,
        tooltip=hover("group", "pair", "ratio"),
    ) + vertical(1, "")
    widest = {name: max(abs(ratio - 1) for ratio in values) for name, values, _ in groups}
    caption = "The largest difference from 1: " + ", ".join(
        f"{name} {percent(widest[name])} (n = {count(len(values), 'pair')})" for name, values, _ in groups
    )
    return Figure(name="same", caption=caption, chart=chart.properties(height=40 + 44 * len(groups)))


def _ratios(quantity: Quantity, pairs: Sequence[tuple[Trial, Trial]]) -> list[float]:
    return [quantity.value(a) / quantity.value(b) for a, b in pairs if quantity.usable((a, b))]


def _machine(evidence: Evidence) -> Figure | None:
    minutes = [seconds / 60 for trial in evidence.trials if (seconds := evidence.began_s(trial)) is not None]
    if len(minutes) < len(evidence.trials):
        return None
    cores = evidence.study.machine.cores
    loads = [trial.load_average for trial in evidence.trials]
    rows = [
        {
            **{"what": what, "x": minute, "y": value, "at": f"{minute:.1f} min into the study"},
            **{"measurement": f"{evidence.label(trial.candidate)}, {trial.load}", "value": f"{value:.2f}"},
        }
        for trial, minute in zip(evidence.trials, minutes, strict=True)
        for what, value in ((LOAD, trial.load_average), (BUSY, trial.cores_busy * cores))
    ]
    kinds = Palette(colours={LOAD: OTHER, BUSY: COLOURS[3]}, field="what")
    base = alt.Chart(source(rows)).encode(
        x=alt.X("x:Q", title="minutes into the study", axis=numbers(grid=False), scale=alt.Scale(padding=10)),
        y=alt.Y("y:Q", title="processes, cores", axis=numbers(), scale=alt.Scale(zero=True)),
        color=alt.Color(kinds.colour["shorthand"], scale=kinds.colour["scale"], legend=alt.Legend(columns=1)),
    )
    marks = base.mark_point(size=50, filled=True).encode(
        shape=kinds.shape, tooltip=hover("measurement", "at", "what", "value")
    )
    chart = base.mark_line(strokeWidth=1.5) + marks + horizontal(cores, count(cores, "core"), TARGET)
    caption = (
        f"Load average {number(min(loads))} to {number(max(loads))} on {count(cores, 'core')}, the study's own load "
        f"included (n = {count(len(loads), 'measurement')})"
    )
    return Figure(name="machine", caption=caption, chart=chart.properties(height=260))


def _window(evidence: Evidence, trial: Trial | None) -> Figure | None:
    """The median and the highest latency by slice of the window, which show a warm-up, a stall or a drift."""
    if trial is None or len(trial.latencies_us) < SLICES or len(trial.due_s) != len(trial.latencies_us):
        return None
    order = np.argsort(np.asarray(trial.due_s), kind="stable")
    due, latencies = np.asarray(trial.due_s)[order], np.asarray(trial.latencies_us)[order] / 1e3
    parts = np.array_split(np.arange(len(due)), SLICES)
    x = [float(due[part].mean()) for part in parts]
    middles = [float(np.median(latencies[part])) for part in parts]
    tops = [float(latencies[part].max()) for part in parts]
    rows = [
        {"what": what, "x": at, "y": finite(value), "at": f"{at:.2f} s", "latency": ms(value)}
        for what, values in ((TOPS, tops), (MIDDLES, middles))
        for at, value in zip(x, values, strict=True)
    ]
    kinds = Palette(colours={TOPS: COLOURS[3], MIDDLES: SHOWN}, field="what")
    base = alt.Chart(source(rows)).encode(
        x=alt.X("x:Q", title="seconds into the window", axis=numbers(grid=False)),
        y=alt.Y("y:Q", title="latency, ms", scale=log_scale(), axis=numbers()),
        color=kinds.colour,
    )
    marks = base.mark_point(size=20, filled=True).encode(tooltip=hover("what", "at", "latency"))
    chart = base.mark_line(strokeWidth=1.5) + marks + target(evidence)
    half = len(parts) // 2
    first, second = float(np.median(middles[:half])), float(np.median(middles[half:]))
    changes = f"changes by {change(second / first)}" if np.isfinite([first, second]).all() else "is infinite"
    caption = (
        f"From the first to the second half of the window the median latency {changes} "
        f"({evidence.label(trial.candidate)}, {trial.load}, n = {len(due):,} requests in {SLICES} slices)"
    )
    return Figure(name="window", caption=caption, chart=zoomable(chart.properties(height=280)), wide=True)
