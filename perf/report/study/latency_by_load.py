"""Latency against offered rate (open loop) or throughput (closed loop), with the table of all trials."""

import math
from collections.abc import Callable, Iterable, Sequence

import altair as alt

from perf.records.candidate import Candidate
from perf.records.last_comparison import rows_per_s
from perf.records.study import PHASES, Trial
from perf.report.figure import HEIGHT, INK, Figure, finite, hover, lit, log_scale, numbers, source, zoomable
from perf.report.figure import Row as Values
from perf.report.section import Grid, Section
from perf.report.study.evidence import Evidence, quantile_of, word
from perf.report.study.points import middle, palette, points, series, target, trial_row
from perf.report.study.tail import short
from perf.report.units import count, ms, number, percent, rate
from perf.stats import pareto
from perf.stats.percentile import percentile_ms

PERCENTS = (50.0, 95.0, 99.0)
OFFERED = "offered, requests per second"
TITLES = (
    *("configuration", "measured for", "load", "round", "requests\nn", "offered\nrequests/s", "achieved\nrows/s"),
    *("p50\nms", "p95\nms", "p99 ms\n(95 % interval)", "late\n%", "sent late\n%", "not sent\nn", "failed\nn", "target"),
)


def latency_by_load(evidence: Evidence) -> Section:
    """Latency against load; if all trials have the same rate, only by configuration."""
    trials = evidence.trials
    title = f"Latency against {'offered rate' if evidence.open else 'throughput'}"
    if not trials:
        return Section(name="load", title=title, missing=("No configuration was measured.",))
    figures = [candidates(evidence)]
    if evidence.open and len({trial.load for trial in trials}) > 1:
        figures = [rates(evidence), completion(evidence), *figures]
    if not evidence.open:
        figures = [throughput(evidence), *figures]
    return Section(
        name="load",
        title=title,
        sentences=(_sentence(evidence),),
        figures=tuple(figures),
        grids=(grid(evidence, trials, f"All {count(len(trials), 'measurement')}"),),
        data={"trials": [data(evidence, trial) for trial in trials]},
    )


def _sentence(evidence: Evidence) -> str:
    trials = evidence.trials
    requests = sum(trial.requests for trial in trials)
    verdicts = [evidence.passed([trial]) for trial in trials]
    passed = [verdicts.count(value) for value in (True, False, None)]
    not_sent, failed = sum(trial.not_sent for trial in trials), sum(trial.failed for trial in trials)
    sent_late = percent(sum(trial.late_sends for trial in trials) / max(requests, 1))
    loop = "open loop: latency counts from the time at which a request was due" if evidence.open else "closed loop"
    return (
        f"{count(len(trials), 'measurement')} of {requests:,} requests in all ({loop}): {passed[0]} pass the target, "
        f"{passed[1]} fail it, {passed[2]} cannot tell. {not_sent:,} not sent, {failed:,} failed, {sent_late} sent "
        "more than 1 ms late."
    )


def grid(evidence: Evidence, trials: Iterable[Trial], summary: str = "") -> Grid:
    """A row per trial in the order of measurement; latencies are of all due requests, answered or not."""
    return Grid(titles=TITLES, rows=tuple(_row(evidence, trial) for trial in trials), left=3, summary=summary)


def data(evidence: Evidence, trial: Trial) -> dict[str, object]:
    """The row of a trial for the JSON file."""
    p99 = quantile_of([trial], 99)
    return {
        "candidate": str(trial.candidate),
        "stage": trial.stage,
        "load": trial.load,
        "round": trial.round,
        "requests": trial.requests,
        "offered_per_s": trial.offered_per_s,
        "throughput_rows_per_s": trial.throughput_rows_per_s,
        **{f"p{q}_ms": percentile_ms(trial.latencies_us, q) for q in (50, 95, 99)},
        "p99_low_ms": p99.low_ms,
        "p99_high_ms": p99.high_ms,
        "late": trial.late,
        "late_sends": trial.late_sends,
        "not_sent": trial.not_sent,
        "failed": trial.failed,
        "target": word(evidence.passed([trial])),
    }


def _row(evidence: Evidence, trial: Trial) -> tuple[str, ...]:
    requests = max(trial.requests, 1)
    p99 = quantile_of([trial], 99)
    return (
        evidence.label(trial.candidate),
        PHASES.get(trial.stage, trial.stage),
        trial.load,
        str(trial.round),
        f"{trial.requests:,}",
        "" if trial.offered_per_s is None else number(trial.offered_per_s),
        number(trial.throughput_rows_per_s),
        *(number(percentile_ms(trial.latencies_us, q)) for q in (50, 95)),
        f"{number(p99.value_ms)} ({short(p99)})",
        percent(trial.late / requests)[:-2],
        percent(trial.late_sends / requests)[:-2],
        f"{trial.not_sent:,}",
        f"{trial.failed:,}",
        word(evidence.passed([trial])),
    )


def candidates(evidence: Evidence) -> Figure:
    """A line per configuration at its operating point, from the median to the p99 of each window; lowest p99 on top."""
    order = sorted(evidence.candidates, key=lambda candidate: middle(_percentiles(evidence, candidate, 99)))
    trials = [trial for candidate in order for trial in evidence.of(candidate)]
    labels = [evidence.label(candidate) for candidate in order]
    x = alt.X("x:Q", title="latency, ms", scale=log_scale(), axis=numbers())
    y = alt.Y(
        "configuration:N",
        sort=labels,
        title=None,
        axis=alt.Axis(grid=False, labelExpr="split(replace(datum.label, ' (', ', ('), ', ')"),
    )
    rows = [trial_row(evidence, trial, percentile_ms(trial.latencies_us, 99), 0.0) for trial in trials]
    spans = alt.Chart(source([_span(evidence, candidate) for candidate in order])).encode(
        y=y, color=palette(evidence).colour, opacity=lit()
    )
    chart = (
        spans.mark_rule(strokeWidth=2).encode(x=x, x2="p99:Q")
        + spans.mark_tick(thickness=3).encode(x=x)
        + points(evidence, rows, x, y)
        + target(evidence, upright=True)
    )
    best = order[0]
    caption = (
        f"The lowest p99 is {ms(middle(_percentiles(evidence, best, 99)))} ({evidence.label(best)}, "
        f"{evidence.loads[best]}, median of {count(len(evidence.of(best)), 'window')}), of "
        f"{count(len(order), 'measured configuration')} in {count(len(trials), 'window')} (bar: p50; "
        "points: p99 of each window)"
    )
    return Figure(name="candidates", caption=caption, chart=chart.properties(height=40 + 56 * len(order)))


def _span(evidence: Evidence, candidate: Candidate) -> Values:
    """The medians of the p50 and of the p99 of all windows."""
    p50, p99 = (finite(middle(_percentiles(evidence, candidate, q))) for q in (50, 99))
    return {**series(evidence, candidate), "x": p50, "p99": p99}


def _percentiles(evidence: Evidence, candidate: Candidate, q: float) -> list[float]:
    return [percentile_ms(trial.latencies_us, q) for trial in evidence.of(candidate)]


def rates(evidence: Evidence) -> Figure:
    """Open loop: a percentile of the latency against the offered rate."""
    trials = [trial for trial in evidence.trials if trial.offered_per_s]
    x = alt.X("x:Q", title=OFFERED, scale=alt.Scale(zero=True), axis=numbers(grid=False))
    y = alt.Y("y:Q", title="latency, ms", scale=log_scale(), axis=numbers())
    rows = [
        trial_row(evidence, trial, trial.offered_per_s or 0.0, percentile_ms(trial.latencies_us, q), of=f"p{q:g}")
        for q in PERCENTS
        for trial in trials
    ]
    medians = alt.Chart(source(_medians(evidence, trials))).mark_line(strokeWidth=1.5)
    lines = medians.encode(x=x, y=y, color=palette(evidence).colour, detail="configuration:N", opacity=lit(0.7))
    bind = alt.binding_radio(options=[f"p{q:g}" for q in PERCENTS], name="Percentile ")
    shown = alt.param(name="percentile", value="p99", bind=bind)
    layers = (lines + points(evidence, rows, x, y)).transform_filter("datum.of == percentile") + target(evidence)
    return Figure(
        name="rates",
        caption="Latency against the offered rate (points: windows; lines: their medians)",
        chart=zoomable(layers.add_params(shown).properties(height=HEIGHT)),
    )


def _medians(evidence: Evidence, trials: Sequence[Trial]) -> Sequence[Values]:
    """The medians of each load, for the configurations with a role."""
    groups = dict.fromkeys((trial.candidate, trial.load) for trial in trials if evidence.role(trial.candidate))
    rows = []
    for candidate, load in groups:
        same = [trial for trial in trials if (trial.candidate, trial.load) == (candidate, load)]
        offered = middle(trial.offered_per_s or 0.0 for trial in same)
        for q in PERCENTS:
            y = finite(middle(percentile_ms(trial.latencies_us, q) for trial in same))
            rows.append({**series(evidence, candidate), "x": offered, "y": y, "of": f"p{q:g}"})
    return rows


def completion(evidence: Evidence) -> Figure:
    """Open loop: the share of the offered requests that were answered, and that were late, lost or failed."""
    trials = [trial for trial in evidence.trials if trial.offered_per_s]
    kinds: dict[str, Callable[[Trial], float]] = {
        "answered": _answered_percent,
        "sent late, lost or failed": _sent_late_percent,
    }
    rows = [
        trial_row(evidence, trial, trial.offered_per_s or 0.0, value(trial), of=kind)
        for kind, value in kinds.items()
        for trial in trials
    ]
    x = alt.X("x:Q", title=OFFERED, scale=alt.Scale(zero=True), axis=numbers(grid=False))
    y = alt.Y("y:Q", title="% of the offered requests", scale=alt.Scale(zero=True), axis=numbers())
    bind = alt.binding_radio(options=list(kinds), name="Requests ")
    chart = points(evidence, rows, x, y).transform_filter("datum.of == counted")
    worst = min(trials, key=_answered_percent)
    caption = (
        f"The lowest share of offered requests that were answered in a window: {_answered_percent(worst):.1f} % "
        f"({worst.candidate} at {number(worst.offered_per_s or 0.0)} requests/s, n = {worst.requests:,} requests)"
    )
    shown = alt.param(name="counted", value="answered", bind=bind)
    return Figure(name="completion", caption=caption, chart=chart.add_params(shown).properties(height=HEIGHT))


def _answered_percent(trial: Trial) -> float:
    """Answered requests over offered requests, percent; all requests of a trial have the same number of rows."""
    answered = trial.requests - trial.not_sent - trial.failed
    rows = trial.counted.rows / trial.counted.requests if trial.counted.requests else 1.0
    answered_per_s = trial.throughput_rows_per_s / rows
    return 100 * min(answered_per_s / (trial.offered_per_s or 1.0), answered / max(trial.requests, 1))


def _sent_late_percent(trial: Trial) -> float:
    return 100 * (trial.late_sends + trial.not_sent + trial.failed) / max(trial.requests, 1)


def throughput(evidence: Evidence) -> Figure:
    """Closed loop: p99 against rows per second, of trials (points) and simulated candidates (dots and Pareto front)."""
    trials = evidence.trials
    x = alt.X("x:Q", title="rows per second", scale=alt.Scale(zero=True), axis=numbers(grid=False))
    y = alt.Y("y:Q", title="p99, ms", scale=log_scale(), axis=numbers())
    rows = [
        trial_row(evidence, trial, trial.throughput_rows_per_s, percentile_ms(trial.latencies_us, 99))
        for trial in trials
    ]
    simulated = [
        {
            **series(evidence, prediction.candidate),
            "x": prediction.throughput_rows_per_s,
            "y": finite(prediction.percentiles_ms[99]),
            "simulated": f"{rate(prediction.throughput_rows_per_s)}, p99 {ms(prediction.percentiles_ms[99])}",
            "requests": f"{prediction.requests:,}",
        }
        for prediction in evidence.predicted.values()
    ]
    edge = front([(each.throughput_rows_per_s, each.percentiles_ms[99]) for each in evidence.predicted.values()])
    dots = alt.Chart(source(simulated)).mark_point(size=30, filled=True, color=INK)
    line = alt.Chart(source([{"x": at, "y": latency} for at, latency in edge]))
    chart = (
        line.mark_line(color=INK, opacity=0.35, strokeWidth=1, interpolate="step-before").encode(x=x, y=y)
        + dots.encode(x=x, y=y, opacity=lit(0.45), tooltip=hover("configuration", "simulated", "requests"))
        + points(evidence, rows, x, y)
        + target(evidence)
    )
    caption = f"{_caption(evidence)} (small dots and line: simulated configurations and the best of them)"
    return Figure(name="throughput", caption=caption, chart=zoomable(chart.properties(height=320)))


def front(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The (throughput, latency) points that no other point beats in both, by rising throughput."""
    return pareto.front([point for point in points if math.isfinite(point[1])], lambda point: point)[::-1]


def _caption(evidence: Evidence) -> str:
    texts = []
    for candidate in dict.fromkeys((evidence.shown, evidence.study.default)):
        if trials := evidence.of(candidate):
            windows = count(len(trials), "window")
            texts.append(f"{evidence.label(candidate)}: {rate(rows_per_s(trials))} in {windows} at {trials[0].load}")
    return "; ".join(texts) or "Neither the shown nor the current configuration was measured"
