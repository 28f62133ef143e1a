"""Part 9: the noise of the trials: A/A pairs, the load of the machine, and the course of one window."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from perf.records.last_comparison import P99, THROUGHPUT, Quantity
from perf.records.study import Trial
from perf.report.drawing import COLOURS, GREY, INK, NARROW, WIDE, plain
from perf.report.study.evidence import Evidence
from perf.report.study.points import OTHER, SHOWN, TARGET, logarithmic, target
from perf.report.study.section import Picture, Section
from perf.report.study.units import change, count, number, percent
from perf.stats.interval import Interval
from perf.stats.verdict import differs

TITLE = "Noise"
# More runnable processes per core than the study's own load causes: other programs were at work.
CROWDED = 3.0
SLICES = 120


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
    pictures = (_same(evidence), _machine(evidence), _window(evidence, window))
    return Section(
        name="noise",
        title=TITLE,
        banner=f"The machine was too noisy to trust small differences: {'; '.join(reasons)}." if reasons else "",
        sentences=tuple(filter(None, (sentence, *faults))),
        missing=() if again else ("No configuration was measured twice in turn, so the A/A noise is unknown.",),
        pictures=tuple(picture for picture in pictures if picture is not None),
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
        (f"{trial.candidate} ({trial.stage}, round {trial.round})", fault) for trial in trials for fault in trial.faults
    ]


def _same(evidence: Evidence) -> Picture | None:
    """The ratios of A/A pairs beside those of the comparison: a gain must be outside of the A/A ratios."""
    groups = [
        (f"{quantity.name}, {name}", _ratios(quantity, pairs), shade)
        for quantity in (THROUGHPUT, P99)
        for name, pairs, shade in (("same twice", evidence.twins, GREY), ("new / current", evidence.pairs, SHOWN))
    ]
    groups = [group for group in groups if group[1]]
    if not groups:
        return None
    figure = Figure(figsize=NARROW, layout="constrained")
    axes = figure.subplots()
    plain(axes, "x")
    logarithmic(axes, "x", [1.0, *(ratio for _, values, _ in groups for ratio in values)])
    axes.axvline(1, color=INK, linewidth=1)
    for row, (_, values, shade) in enumerate(groups):
        axes.plot(values, [row] * len(values), "o", color=shade, markersize=8, alpha=0.75)
    axes.set_yticks(range(len(groups)), [name for name, _, _ in groups])
    axes.set(ylim=(len(groups) - 0.5, -0.5), xlabel="ratio of two interleaved measurements")
    widest = {name: max(abs(ratio - 1) for ratio in values) for name, values, _ in groups}
    caption = "The largest difference from 1: " + ", ".join(
        f"{name} {percent(widest[name])} (n = {count(len(values), 'pair')})" for name, values, _ in groups
    )
    return Picture(name="same", caption=caption, figure=figure)


def _ratios(quantity: Quantity, pairs: Sequence[tuple[Trial, Trial]]) -> list[float]:
    return [quantity.value(a) / quantity.value(b) for a, b in pairs if quantity.usable((a, b))]


def _machine(evidence: Evidence) -> Picture | None:
    minutes = [seconds / 60 for trial in evidence.trials if (seconds := evidence.began_s(trial)) is not None]
    if len(minutes) < len(evidence.trials):
        return None
    figure = Figure(figsize=NARROW, layout="constrained")
    axes = figure.subplots()
    plain(axes)
    cores = evidence.study.machine.cores
    loads = [trial.load_average for trial in evidence.trials]
    axes.plot(minutes, loads, "o-", color=OTHER, label="load average before it")
    busy = [trial.cores_busy * cores for trial in evidence.trials]
    axes.plot(minutes, busy, "s-", color=COLOURS[3], label="cores busy during it, all processes")
    axes.axhline(cores, color=TARGET, linewidth=1.4, linestyle=(0, (5, 3)), label=count(cores, "core"))
    axes.set(xlabel="minutes into the study (each point: a measurement)", ylabel="processes, cores")
    axes.set_ylim(bottom=0)
    figure.legend(loc="outside upper left", ncols=1)
    caption = (
        f"Load average {number(min(loads))} to {number(max(loads))} on {count(cores, 'core')}, the study's own load "
        f"included (n = {count(len(loads), 'measurement')})"
    )
    return Picture(name="machine", caption=caption, figure=figure)


def _window(evidence: Evidence, trial: Trial | None) -> Picture | None:
    """The median and the highest latency by slice of the window, which show a warm-up, a stall or a drift."""
    if trial is None or len(trial.latencies_us) < SLICES or len(trial.due_s) != len(trial.latencies_us):
        return None
    order = np.argsort(np.asarray(trial.due_s), kind="stable")
    due, latencies = np.asarray(trial.due_s)[order], np.asarray(trial.latencies_us)[order] / 1e3
    parts = np.array_split(np.arange(len(due)), SLICES)
    x = [float(due[part].mean()) for part in parts]
    middles = [float(np.median(latencies[part])) for part in parts]
    tops = [float(latencies[part].max()) for part in parts]
    figure = Figure(figsize=WIDE, layout="constrained")
    axes = figure.subplots()
    plain(axes)
    logarithmic(axes, "y", [*middles, *tops, evidence.study.target.latency_ms])
    target(axes, evidence)
    axes.plot(x, tops, color=SHOWN, linewidth=1, alpha=0.6, label="slowest of the slice")
    axes.plot(x, middles, color=SHOWN, linewidth=2, label="median of the slice")
    axes.set(xlabel="seconds into the window", ylabel="latency, ms", xlim=(0, float(due[-1]) * 1.01))
    figure.legend(loc="outside upper left", ncols=2)
    half = len(parts) // 2
    first, second = float(np.median(middles[:half])), float(np.median(middles[half:]))
    changes = f"changes by {change(second / first)}" if np.isfinite([first, second]).all() else "is infinite"
    caption = (
        f"From the first to the second half of the window the median latency {changes} "
        f"({evidence.label(trial.candidate)}, {trial.load}, n = {len(due):,} requests in {SLICES} slices)"
    )
    return Picture(name="window", caption=caption, figure=figure, wide=True)
