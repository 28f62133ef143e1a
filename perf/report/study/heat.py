"""Part 7: maps of the simulated configurations over delay and largest batch, with measured cells outlined."""

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
from perf.report.study.section import Picture, Section
from perf.report.study.units import count, number
from perf.stats.percentile import percentile_ms

TITLE = "Delay and largest batch: simulated, then verified"
# The page has at most this many maps, those closest to the shown candidate first.
MAX_MAPS = 4
# With more cells than this in a row or column, a cell is too small for a number.
MAX_NUMBERED = 8
# All latencies above this multiple of the target have the same shade.
DARKEST = 4.0

Slice = tuple[int, int | None, tuple[int, ...]]


def heat(evidence: Evidence) -> Section:
    """A map for each number of instances and threads, and the accuracy of the simulation."""
    dynamic = [prediction for prediction in evidence.predicted.values() if prediction.candidate.dynamic]
    if not dynamic:
        return Section(name="map", title=TITLE, missing=("No configuration was simulated.",))
    slices = sorted(
        {_slice(prediction.candidate) for prediction in dynamic}, key=lambda part: _distance(part, evidence.shown)
    )
    checks = accuracy.checks(evidence)
    maps = [
        _map(evidence, [prediction for prediction in dynamic if _slice(prediction.candidate) == part], order)
        for order, part in enumerate(slices[:MAX_MAPS], 1)
    ]
    sentences = [
        f"{count(len(dynamic), 'configuration')} simulated, {len(evidence.candidates)} measured. A cell has the "
        "simulated value. Outlined cells were measured, with the measured value in brackets; a thick outline marks the "
        "configuration of this page. A cross means that the target is missed. An empty cell was not simulated, or "
        "behaves like a simpler configuration."
    ]
    if len(slices) > MAX_MAPS:
        sentences.append(
            f"{len(slices) - MAX_MAPS} more combinations of instances, threads and preferred sizes have no map."
        )
    if checks:
        sentences.append(accuracy.accuracy(checks))
    return Section(
        name="map",
        title=TITLE,
        sentences=tuple(sentences),
        missing=()
        if checks
        else ("No configuration was both simulated and measured, so the error of the simulation is unknown.",),
        pictures=(*maps, *([accuracy.picture(evidence, checks)] if checks else [])),
        grids=(accuracy.grid(evidence, checks),) if checks else (),
        data={"predicted": [_data(prediction) for prediction in dynamic], "checks": accuracy.data(checks)},
    )


def _slice(candidate: Candidate) -> Slice:
    return candidate.instances, candidate.threads, candidate.preferred


def _distance(part: Slice, shown: Candidate) -> tuple[object, ...]:
    same = _slice(shown)
    return part != same, part[2] != same[2], abs(part[0] - same[0]), part[1] != same[1], str(part)


def _map(evidence: Evidence, predictions: Sequence[Prediction], order: int) -> Picture:
    sizes = sorted({prediction.candidate.max_batch_size for prediction in predictions})
    delays = sorted({prediction.candidate.delay_us for prediction in predictions})
    values = {
        (prediction.candidate.max_batch_size, prediction.candidate.delay_us): _value(evidence, prediction)
        for prediction in predictions
    }
    table = np.full((len(sizes), len(delays)), np.nan)
    for (size, delay), value in values.items():
        table[sizes.index(size), delays.index(delay)] = value
    figure = Figure(figsize=(NARROW[0], 1.9 + 0.42 * len(sizes)), layout="constrained")
    axes = figure.subplots()
    # Dark is a high latency or a low throughput.
    shades = mpl.colormaps["cividis_r" if evidence.open else "cividis"]
    low, high = float(np.nanmin(table)), float(np.nanmax(table))
    if evidence.open:
        # The latencies of an overload, far above the target, would leave no shades for the others.
        high = max(low, min(high, DARKEST * evidence.study.target.latency_ms))
    norm = (
        mpl.colors.LogNorm(low, high) if evidence.open and low > 0 and high > low else mpl.colors.Normalize(low, high)
    )
    mesh = axes.pcolormesh(np.arange(len(delays) + 1), np.arange(len(sizes) + 1), table, cmap=shades, norm=norm)
    mesh.set_rasterized(False)
    for prediction in predictions:
        size, delay = prediction.candidate.max_batch_size, prediction.candidate.delay_us
        x, y, value = delays.index(delay), sizes.index(size), values[size, delay]
        dark = sum(w * c for w, c in zip((0.3, 0.59, 0.11), shades(norm(value))[:3], strict=True)) < 0.5
        _cell(axes, evidence, prediction, x, y, value, dark, small=max(len(delays), len(sizes)) > MAX_NUMBERED)
    _ticks(axes, delays, sizes)
    return Picture(name=f"map-{order}", caption=_caption(evidence, predictions), figure=figure)


def _value(evidence: Evidence, prediction: Prediction) -> float:
    return min(prediction.percentiles_ms[99], 1e6) if evidence.open else prediction.throughput_rows_per_s


def _measured(evidence: Evidence, candidate: Candidate) -> float | None:
    trials = evidence.of(candidate)
    if not trials:
        return None
    if evidence.open:
        return percentile_ms(pooled(trials), 99)
    return middle(trial.throughput_rows_per_s for trial in trials)


def _cell(
    axes: Axes, evidence: Evidence, prediction: Prediction, x: int, y: int, value: float, dark: bool, *, small: bool
) -> None:
    """Draw a cell: its number, a cross if it misses the target, an outline and a second number if it was measured."""
    # The ink depends on the colour of the cell, not on the theme of the page.
    ink = "#f5f5f5" if dark else "#111111"
    measured = _measured(evidence, prediction.candidate)
    missed = prediction.late > evidence.study.target.share
    if not small:
        text = number(value) + (" ✕" if missed else "") + ("" if measured is None else f"\n[{number(measured)}]")
        axes.text(x + 0.5, y + 0.5, text, ha="center", va="center", color=ink, fontsize=9, linespacing=1.0)
    elif missed:
        axes.plot(x + 0.5, y + 0.5, "x", color=ink, markersize=4)
    if measured is not None:
        width = 4 if prediction.candidate == evidence.shown else 2
        frame = Rectangle((x + 0.04, y + 0.04), 0.92, 0.92, fill=False, edgecolor=TARGET, linewidth=width)
        axes.add_patch(frame)


def _ticks(axes: Axes, delays: Sequence[int], sizes: Sequence[int]) -> None:
    axes.set_xticks(np.arange(len(delays)) + 0.5, [f"{delay / 1e3:g}" for delay in delays])
    axes.set_yticks(np.arange(len(sizes)) + 0.5, list(map(str, sizes)))
    axes.tick_params(length=0)
    axes.set(xlabel="max_queue_delay, ms", ylabel="max_batch_size, rows")
    for spine in axes.spines.values():
        spine.set_visible(False)


def _caption(evidence: Evidence, predictions: Sequence[Prediction]) -> str:
    first = predictions[0].candidate
    where = f"{count(first.instances, 'instance')}" + (f", {count(first.threads, 'thread')}" if first.threads else "")
    where += f", preferred {list(first.preferred)}" if first.preferred else ""
    what = "p99, ms" if evidence.open else "rows/s"
    choose = min if evidence.open else max
    met = [prediction for prediction in predictions if prediction.late <= evidence.study.target.share]
    best = choose(met, key=lambda prediction: _value(evidence, prediction), default=None)
    result = (
        "no simulated cell meets the target"
        if best is None
        else f"the best simulated cell within the target is {number(_value(evidence, best))} ({best.candidate})"
    )
    requests = min(prediction.requests for prediction in predictions)
    return f"{where}, {what}: {result} (n = {requests:,} requests or more per cell)"


def _data(prediction: Prediction) -> dict[str, object]:
    return {
        "candidate": str(prediction.candidate),
        "throughput_rows_per_s": prediction.throughput_rows_per_s,
        "percentiles_ms": dict(prediction.percentiles_ms),
        "late": prediction.late,
        "requests": prediction.requests,
    }
