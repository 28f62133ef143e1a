"""Part 9: how much of what was seen may be noise: repetitions of one configuration, the machine's load, one window."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from perf.records.study import Trial
from perf.report.drawing import COLOURS, GREY, INK, NARROW, WIDE, plain
from perf.report.marks import SPREAD_LIMIT
from perf.report.study.evidence import Evidence
from perf.report.study.gain import p99_ms, rows_per_s, spreads
from perf.report.study.points import OTHER, SHOWN, TARGET, logarithmic, target
from perf.report.study.section import Drawn, Section
from perf.report.study.units import change, count, number, percent

TITLE = "Noise"
# A tail moves more than a rate: two windows of 1,000 requests have p99s some 20 % apart by chance alone.
TAIL_LIMIT = 0.5
# Above so many runnable processes per core before a trial, others than the study were at work: its own load is below.
CROWDED = 3.0
SLICES = 120


def noise(evidence: Evidence) -> Section:
    """Repetitions, load average, and how the operating point's first window went."""
    found = evidence.trials
    if not found:
        return Section(name="noise", title=TITLE, missing=("No configuration was measured.",))
    reasons = too_noisy(evidence)
    rates, tails = spreads(evidence.twins, rows_per_s), spreads(evidence.twins, p99_ms)
    said = [f"{one}: {fault}" for one, fault in _faults(found)]
    sentence = (
        f"One configuration measured again ({count(len(rates), 'repetition')}): throughput differed by up to "
        f"{percent(max(rates))}, p99 by up to {percent(max(tails))}."
        if rates and tails
        else ""
    )
    window = next(iter(evidence.of(evidence.shown)), None)
    drawn = [one for one in (_same(evidence), _machine(evidence), _window(evidence, window)) if one is not None]
    return Section(
        name="noise",
        title=TITLE,
        banner=f"The machine was too noisy to trust small differences: {'; '.join(reasons)}." if reasons else "",
        sentences=tuple(filter(None, (sentence, *said))),
        missing=() if rates else ("No configuration was measured twice in turn, so the noise floor is not known.",),
        drawn=tuple(drawn),
        data={
            "throughput_spread": rates,
            "p99_spread": tails,
            "load_average": [one.load_average for one in found],
            "too_noisy": reasons,
        },
    )


def too_noisy(evidence: Evidence) -> list[str]:
    """Reasons not to trust small differences; empty for a calm machine."""
    rates = spreads(evidence.twins, rows_per_s)
    # Of what misses the target the queue may grow without end, and then p99 says how long the window was.
    tails = spreads([pair for pair in evidence.twins if not any(one.passed is False for one in pair)], p99_ms)
    crowd = max((one.load_average for one in evidence.trials), default=0.0)
    cores = evidence.study.machine.cores
    candidates = (
        (
            max(rates, default=0.0) > SPREAD_LIMIT,
            f"one configuration's throughput differed from itself by {_worst(rates)}",
        ),
        (max(tails, default=0.0) > TAIL_LIMIT, f"one configuration's p99 differed from itself by {_worst(tails)}"),
        (crowd > CROWDED * cores, f"load average {number(crowd)} on {count(cores, 'core')} before a measurement"),
    )
    return [reason for holds, reason in candidates if holds]


def _worst(values: Sequence[float]) -> str:
    return percent(max(values, default=0.0))


def _faults(found: Sequence[Trial]) -> list[tuple[str, str]]:
    return [(f"{one.candidate} ({one.stage}, round {one.round})", fault) for one in found for fault in one.faults]


def _same(evidence: Evidence) -> Drawn | None:
    """Ratios of repetitions beside those of the comparison: a gain is what lies outside of the former."""
    groups = [
        ("throughput, same twice", [rows_per_s(a) / rows_per_s(b) for a, b in evidence.twins if rows_per_s(b)], GREY),
        (
            "throughput, new / current",
            [rows_per_s(a) / rows_per_s(b) for a, b in evidence.pairs if rows_per_s(b)],
            SHOWN,
        ),
        ("p99, same twice", [p99_ms(a) / p99_ms(b) for a, b in evidence.twins if np.isfinite(p99_ms(b))], GREY),
        ("p99, new / current", [p99_ms(a) / p99_ms(b) for a, b in evidence.pairs if np.isfinite(p99_ms(b))], SHOWN),
    ]
    groups = [(name, [one for one in values if np.isfinite(one)], shade) for name, values, shade in groups]
    groups = [group for group in groups if group[1]]
    if not groups:
        return None
    figure = Figure(figsize=NARROW, layout="constrained")
    axes = figure.subplots()
    plain(axes, "x")
    logarithmic(axes, "x", [1.0, *(one for _, values, _ in groups for one in values)])
    axes.axvline(1, color=INK, linewidth=1)
    for row, (_, values, shade) in enumerate(groups):
        axes.plot(values, [row] * len(values), "o", color=shade, markersize=8, alpha=0.75)
    axes.set_yticks(range(len(groups)), [name for name, _, _ in groups])
    axes.set(ylim=(len(groups) - 0.5, -0.5), xlabel="ratio of two measurements made in turn")
    widest = {name: max(abs(one - 1) for one in values) for name, values, _ in groups}
    caption = "The farthest from 1: " + ", ".join(
        f"{name} {percent(widest[name])} (n = {count(len(values), 'pair')})" for name, values, _ in groups
    )
    return Drawn(name="same", caption=caption, figure=figure)


def _machine(evidence: Evidence) -> Drawn | None:
    minutes = [s / 60 for one in evidence.trials if (s := evidence.began_s(one)) is not None]
    if len(minutes) < len(evidence.trials):
        return None
    figure = Figure(figsize=NARROW, layout="constrained")
    axes = figure.subplots()
    plain(axes)
    cores = evidence.study.machine.cores
    axes.plot(minutes, [one.load_average for one in evidence.trials], "o-", color=OTHER, label="load average before it")
    busy = [one.cores_busy * cores for one in evidence.trials]
    axes.plot(minutes, busy, "s-", color=COLOURS[3], label="cores busy during it, all processes")
    axes.axhline(cores, color=TARGET, linewidth=1.4, linestyle=(0, (5, 3)), label=count(cores, "core"))
    axes.set(xlabel="minutes into the study (each point: a measurement)", ylabel="processes, cores")
    axes.set_ylim(bottom=0)
    figure.legend(loc="outside upper left", ncols=1)
    loads = [one.load_average for one in evidence.trials]
    caption = (
        f"Load average {number(min(loads))} to {number(max(loads))} on {count(cores, 'core')}, the study's own load "
        f"included (n = {count(len(loads), 'measurement')})"
    )
    return Drawn(name="machine", caption=caption, figure=figure)


def _window(evidence: Evidence, trial: Trial | None) -> Drawn | None:
    """Median and highest latency by slice of the window, so that a warm-up, a stall or a drift is seen."""
    if trial is None or len(trial.latencies_us) < SLICES or len(trial.due_s) != len(trial.latencies_us):
        return None
    order = np.argsort(np.asarray(trial.due_s), kind="stable")
    due, latencies = np.asarray(trial.due_s)[order], np.asarray(trial.latencies_us)[order] / 1e3
    parts = np.array_split(np.arange(len(due)), SLICES)
    x = [float(due[part].mean()) for part in parts]
    middles, tops = (
        [float(np.median(latencies[part])) for part in parts],
        [float(latencies[part].max()) for part in parts],
    )
    figure = Figure(figsize=WIDE, layout="constrained")
    axes = figure.subplots()
    plain(axes)
    logarithmic(axes, "y", [*middles, *tops, evidence.study.sla.latency_ms])
    target(axes, evidence)
    axes.plot(x, tops, color=SHOWN, linewidth=1, alpha=0.6, label="slowest of the slice")
    axes.plot(x, middles, color=SHOWN, linewidth=2, label="median of the slice")
    axes.set(xlabel="seconds into the window", ylabel="latency, ms", xlim=(0, float(due[-1]) * 1.01))
    figure.legend(loc="outside upper left", ncols=2)
    half = len(parts) // 2
    first, second = float(np.median(middles[:half])), float(np.median(middles[half:]))
    changes = f"changes by {change(second / first)}" if np.isfinite([first, second]).all() else "has no end"
    caption = (
        f"From the first half of the window to the second the median latency {changes} "
        f"({evidence.label(trial.candidate)}, {trial.load}, n = {len(due):,} requests in {SLICES} slices)"
    )
    return Drawn(name="window", caption=caption, figure=figure, wide=True)
