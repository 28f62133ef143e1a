"""Part 7: maps of the simulated configurations over delay and largest batch, with measured cells outlined."""

from collections.abc import Sequence

import altair as alt

from perf.records.candidate import Candidate
from perf.records.study import Prediction
from perf.report.figure import Figure, hover, lit, source
from perf.report.figure import Row as Values
from perf.report.section import Section
from perf.report.study import accuracy
from perf.report.study.evidence import Evidence, pooled, quantile_of
from perf.report.study.points import TARGET, ends, middle, series, throughput_text
from perf.report.units import count, ms, number, percent, rate
from perf.stats.percentile import percentile_ms

TITLE = "Delay and largest batch: simulated, then verified"
# The page has at most this many maps, those closest to the shown candidate first.
MAX_MAPS = 4
# With more cells than this in a row or column, a cell is too small for a number.
MAX_NUMBERED = 8
# All latencies above this multiple of the target have the same shade.
DARKEST = 4.0

HOVER = ("configuration", "simulated", "late", "measured")

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
        figures=(*maps, *([accuracy.figure(evidence, checks)] if checks else [])),
        grids=(accuracy.grid(evidence, checks),) if checks else (),
        data={"predicted": [_data(prediction) for prediction in dynamic], "checks": accuracy.data(checks)},
    )


def _slice(candidate: Candidate) -> Slice:
    return candidate.instances, candidate.threads, candidate.preferred


def _distance(part: Slice, shown: Candidate) -> tuple[object, ...]:
    same = _slice(shown)
    return part != same, part[2] != same[2], abs(part[0] - same[0]), part[1] != same[1], str(part)


def _map(evidence: Evidence, predictions: Sequence[Prediction], order: int) -> Figure:
    sizes = sorted({prediction.candidate.max_batch_size for prediction in predictions}, reverse=True)
    delays = sorted({prediction.candidate.delay_us for prediction in predictions})
    values = [_value(evidence, prediction) for prediction in predictions]
    low, high = min(values), max(values)
    if evidence.open:
        # The latencies of an overload, far above the target, would leave no shades for the others.
        high = max(low, min(high, DARKEST * evidence.study.target.latency_ms))
    kind = "log" if evidence.open and low > 0 and high > low else "linear"
    # Dark is a high latency or a low throughput.
    shades = alt.Scale(scheme="cividis", type=kind, domain=[low, high], reverse=evidence.open, clamp=True)  # type: ignore[arg-type]
    middle_value = (low * high) ** 0.5 if kind == "log" else (low + high) / 2
    base = alt.Chart(source([_cell(evidence, each, middle_value) for each in predictions])).encode(
        x=alt.X("delay:O", title="max_queue_delay, ms", axis=alt.Axis(labelAngle=0)),
        y=alt.Y("size:O", title="max_batch_size, rows", sort=sizes),
    )
    frames = base.mark_rect(fill=None, stroke=TARGET).transform_filter("datum.frame > 0")
    chart = base.mark_rect().encode(
        color=alt.Color("value:Q", scale=shades, legend=None), opacity=lit(), tooltip=hover(*HOVER)
    ) + frames.encode(strokeWidth=alt.StrokeWidth("frame:Q", scale=None), opacity=lit())
    # The ink depends on the colour of the cell, not on the theme of the page.
    ink = alt.condition("datum.dark", alt.value("#f5f5f5"), alt.value("#111111"))
    if max(len(delays), len(sizes)) <= MAX_NUMBERED:
        chart += base.mark_text(fontSize=11, lineHeight=12, baseline="middle").encode(text="text:N", color=ink)
    else:
        crosses = base.mark_text(fontSize=11, text="\u2715").transform_filter("datum.missed")
        chart += crosses.encode(color=ink)
    return Figure(
        name=f"map-{order}",
        caption=_caption(evidence, predictions),
        chart=chart.properties(height=20 + 40 * len(sizes)),
    )


def _cell(evidence: Evidence, prediction: Prediction, middle_value: float) -> Values:
    """A cell: its number, a cross if it misses the target, an outline and a second number if it was measured."""
    candidate, value, measured = (
        prediction.candidate,
        _value(evidence, prediction),
        _measured(evidence, prediction.candidate),
    )
    missed = prediction.late > evidence.study.target.share
    below = [] if measured is None else [f"[{number(measured)}]"]
    trials = evidence.of(candidate)
    seen = (
        f"{throughput_text(trials)}, p99 {ends(quantile_of(trials, 99))}, {count(len(trials), 'window')}"
        if trials
        else "no"
    )
    return {
        **series(evidence, candidate),
        "delay": candidate.delay_us / 1e3,
        "size": candidate.max_batch_size,
        "value": value,
        "dark": (value > middle_value) == evidence.open,
        "missed": missed,
        "text": [number(value) + (" \u2715" if missed else ""), *below],
        "frame": 0 if measured is None else 4 if candidate == evidence.shown else 2,
        "simulated": f"{rate(prediction.throughput_rows_per_s)}, p99 {ms(prediction.percentiles_ms[99])}",
        "late": f"{percent(prediction.late)} of {prediction.requests:,} requests, simulated",
        "measured": seen,
    }


def _value(evidence: Evidence, prediction: Prediction) -> float:
    return min(prediction.percentiles_ms[99], 1e6) if evidence.open else prediction.throughput_rows_per_s


def _measured(evidence: Evidence, candidate: Candidate) -> float | None:
    trials = evidence.of(candidate)
    if not trials:
        return None
    if evidence.open:
        return percentile_ms(pooled(trials), 99)
    return middle(trial.throughput_rows_per_s for trial in trials)


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
