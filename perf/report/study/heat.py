"""Part 7: what was simulated over delay and largest batch, with the measured cells outlined, and how right it was."""

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from perf.records.candidate import Candidate
from perf.records.study import Prediction
from perf.report.drawing import NARROW
from perf.report.study import accuracy
from perf.report.study.evidence import Evidence, pooled
from perf.report.study.points import TARGET, middle
from perf.report.study.section import Drawn, Section
from perf.report.study.units import count, number
from perf.stats.quantile import percentile_ms

TITLE = "Delay and largest batch: simulated, then verified"
# Slices that are drawn: the shown candidate's instances and threads first.
MOST = 4
# Cells more than this in a row or column are too narrow for a number.
ROOM = 8
# Latencies over so many times the target have one shade.
FAR = 4.0

Slice = tuple[int, int | None, tuple[int, ...]]


def heat(evidence: Evidence) -> Section:
    """A map for each count of instances and threads."""
    dynamic = [one for one in evidence.predicted.values() if one.candidate.dynamic]
    if not dynamic:
        return Section(name="map", title=TITLE, missing=("No configuration was simulated.",))
    order = sorted({_slice(one.candidate) for one in dynamic}, key=lambda one: _distance(one, evidence.shown))
    checked = accuracy.checks(evidence)
    drawn = [
        _map(evidence, [p for p in dynamic if _slice(p.candidate) == one], n) for n, one in enumerate(order[:MOST], 1)
    ]
    sentences = [
        f"{count(len(dynamic), 'configuration')} simulated, {len(evidence.candidates)} measured. A cell holds what was "
        "simulated; outlined cells were measured, with the result in brackets (thick: the one that this page shows). "
        "A cross: misses the target. An empty cell was not simulated, or does the same as a simpler configuration."
    ]
    if len(order) > MOST:
        sentences.append(f"{len(order) - MOST} more counts of instances, threads and preferred sizes are not drawn.")
    if checked:
        sentences.append(accuracy.accuracy(checked))
    return Section(
        name="map",
        title=TITLE,
        sentences=tuple(sentences),
        missing=()
        if checked
        else ("Nothing was both simulated and measured, so no error of the simulation is known.",),
        drawn=(*drawn, *([accuracy.drawn(evidence, checked)] if checked else [])),
        grids=(accuracy.grid(evidence, checked),) if checked else (),
        data={"predicted": [_data(one) for one in dynamic], "checks": accuracy.data(checked)},
    )


def _slice(candidate: Candidate) -> Slice:
    return candidate.instances, candidate.threads, candidate.preferred


def _distance(one: Slice, shown: Candidate) -> tuple[object, ...]:
    same = _slice(shown)
    return one != same, one[2] != same[2], abs(one[0] - same[0]), one[1] != same[1], str(one)


def _map(evidence: Evidence, found: Sequence[Prediction], order: int) -> Drawn:
    sizes = sorted({one.candidate.max_batch_size for one in found})
    delays = sorted({one.candidate.delay_us for one in found})
    values = {(one.candidate.max_batch_size, one.candidate.delay_us): _value(evidence, one) for one in found}
    table = np.full((len(sizes), len(delays)), np.nan)
    for (size, delay), value in values.items():
        table[sizes.index(size), delays.index(delay)] = value
    figure = Figure(figsize=(NARROW[0], 1.9 + 0.42 * len(sizes)), layout="constrained")
    axes = figure.subplots()
    # Dark is bad in both: a high latency, a low throughput.
    shades = mpl.colormaps["cividis_r" if evidence.open else "cividis"]
    low, high = float(np.nanmin(table)), float(np.nanmax(table))
    if evidence.open:
        # A queue without end is as bad at ten times the target as at a thousand times; the shades are for the others.
        high = max(low, min(high, FAR * evidence.study.sla.latency_ms))
    norm = (
        mpl.colors.LogNorm(low, high) if evidence.open and low > 0 and high > low else mpl.colors.Normalize(low, high)
    )
    mesh = axes.pcolormesh(np.arange(len(delays) + 1), np.arange(len(sizes) + 1), table, cmap=shades, norm=norm)
    mesh.set_rasterized(False)
    for one in found:
        x, y = delays.index(one.candidate.delay_us), sizes.index(one.candidate.max_batch_size)
        value = values[one.candidate.max_batch_size, one.candidate.delay_us]
        dark = sum(w * c for w, c in zip((0.3, 0.59, 0.11), shades(norm(value))[:3], strict=True)) < 0.5
        _cell(axes, evidence, one, x, y, value, dark, small=max(len(delays), len(sizes)) > ROOM)
    _ticks(axes, delays, sizes)
    return Drawn(name=f"map-{order}", caption=_caption(evidence, found), figure=figure)


def _value(evidence: Evidence, one: Prediction) -> float:
    return min(one.percentiles_ms[99], 1e6) if evidence.open else one.throughput_rows_per_s


def _measured(evidence: Evidence, candidate: Candidate) -> float | None:
    trials = evidence.of(candidate)
    if not trials:
        return None
    if evidence.open:
        return percentile_ms(pooled(trials), 99)
    return middle(one.throughput_rows_per_s for one in trials)


def _cell(
    axes: Axes, evidence: Evidence, one: Prediction, x: int, y: int, value: float, dark: bool, *, small: bool
) -> None:
    """The number, a cross where the target is missed, an outline and the measured number where there is one."""
    # Not the page's ink: it lies on the colour of the cell in both themes.
    ink = "#f5f5f5" if dark else "#111111"
    measured = _measured(evidence, one.candidate)
    missed = one.late > evidence.study.sla.share
    if not small:
        text = number(value) + (" ✕" if missed else "") + ("" if measured is None else f"\n[{number(measured)}]")
        axes.text(x + 0.5, y + 0.5, text, ha="center", va="center", color=ink, fontsize=9, linespacing=1.0)
    elif missed:
        axes.plot(x + 0.5, y + 0.5, "x", color=ink, markersize=4)
    if measured is not None:
        wide = one.candidate == evidence.shown
        frame = Rectangle((x + 0.04, y + 0.04), 0.92, 0.92, fill=False, edgecolor=TARGET, linewidth=4 if wide else 2)
        axes.add_patch(frame)


def _ticks(axes: Axes, delays: Sequence[int], sizes: Sequence[int]) -> None:
    axes.set_xticks(np.arange(len(delays)) + 0.5, [f"{one / 1e3:g}" for one in delays])
    axes.set_yticks(np.arange(len(sizes)) + 0.5, [str(one) for one in sizes])
    axes.tick_params(length=0)
    axes.set(xlabel="max_queue_delay, ms", ylabel="max_batch_size, rows")
    for spine in axes.spines.values():
        spine.set_visible(False)


def _caption(evidence: Evidence, found: Sequence[Prediction]) -> str:
    first = found[0].candidate
    where = f"{count(first.instances, 'instance')}" + (f", {count(first.threads, 'thread')}" if first.threads else "")
    where += f", preferred {list(first.preferred)}" if first.preferred else ""
    what = "p99, ms" if evidence.open else "rows/s"
    choose = min if evidence.open else max
    met = [one for one in found if one.late <= evidence.study.sla.share]
    best = choose(met, key=lambda one: _value(evidence, one), default=None)
    found_best = (
        "no simulated cell meets the target"
        if best is None
        else f"the best simulated cell within the target is {number(_value(evidence, best))} ({best.candidate})"
    )
    return f"{where}, {what}: {found_best} (n = {min(one.requests for one in found):,} requests or more a cell)"


def _data(one: Prediction) -> dict[str, object]:
    return {
        "candidate": str(one.candidate),
        "throughput_rows_per_s": one.throughput_rows_per_s,
        "percentiles_ms": dict(one.percentiles_ms),
        "late": one.late,
        "requests": one.requests,
    }
