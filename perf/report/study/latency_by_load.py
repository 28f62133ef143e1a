"""Part 3: latency against offered rate (open loop) or throughput (closed loop), with the table of all trials."""

import math
from collections.abc import Callable, Iterable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from perf.records.candidate import Candidate
from perf.records.study import Trial
from perf.report.drawing import INK, NARROW, plain
from perf.report.study.evidence import Evidence, quantile_of, rows_per_s, word
from perf.report.study.points import colour, keys, logarithmic, middle, point, target
from perf.report.study.section import Grid, Picture, Section
from perf.report.study.sustained import highest
from perf.report.study.tail import short
from perf.report.study.units import count, ms, number, percent, rate
from perf.stats import pareto
from perf.stats.percentile import percentile_ms

PERCENTS = (50.0, 95.0, 99.0)
TALL = (NARROW[0], 6.4)
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
    pictures = [candidates(evidence)]
    if evidence.open and len({trial.load for trial in trials}) > 1:
        pictures = [rates(evidence), completion(evidence), *pictures]
    if not evidence.open:
        pictures = [throughput(evidence), *pictures]
    return Section(
        name="load",
        title=title,
        sentences=(_sentence(evidence),),
        pictures=tuple(pictures),
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
        trial.stage,
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


def candidates(evidence: Evidence) -> Picture:
    """A line per configuration at its operating point, from the median to the p99 of each window; lowest p99 on top."""
    order = sorted(evidence.candidates, key=lambda candidate: middle(_percentiles(evidence, candidate, 99)))
    trials = [trial for candidate in order for trial in evidence.of(candidate)]
    figure = Figure(figsize=(NARROW[0], 1.9 + 0.42 * len(order)), layout="constrained")
    axes = figure.subplots()
    plain(axes, "x")
    values = [percentile_ms(trial.latencies_us, q) for trial in trials for q in (50, 99)]
    logarithmic(axes, "x", [*values, evidence.study.target.latency_ms])
    target(axes, evidence, upright=True)
    for row, candidate in enumerate(order):
        _median_to_p99(axes, evidence, candidate, row)
    axes.set_yticks(range(len(order)), list(map(str, order)))
    axes.set(xlabel="ms, from p50 (bar) to the p99 of each window", ylim=(len(order) - 0.4, -0.6))
    figure.legend(handles=keys(evidence, trials), loc="outside upper left", ncols=2, columnspacing=1.4)
    best = order[0]
    caption = (
        f"The lowest p99 is {ms(middle(_percentiles(evidence, best, 99)))} ({evidence.label(best)}, "
        f"{evidence.loads[best]}, median of {count(len(evidence.of(best)), 'window')}), of "
        f"{count(len(order), 'measured configuration')} in {count(len(trials), 'window')}"
    )
    return Picture(name="candidates", caption=caption, figure=figure)


def _median_to_p99(axes: Axes, evidence: Evidence, candidate: Candidate, row: int) -> None:
    shade = colour(evidence, candidate)
    median = middle(_percentiles(evidence, candidate, 50))
    tails = _percentiles(evidence, candidate, 99)
    axes.plot([median, middle(tails)], [row, row], color=shade, linewidth=2, alpha=0.45)
    axes.plot(median, row, "|", color=shade, markersize=10)
    for trial, value in zip(evidence.of(candidate), tails, strict=True):
        point(axes, evidence, trial, value, row)


def _percentiles(evidence: Evidence, candidate: Candidate, q: float) -> list[float]:
    return [percentile_ms(trial.latencies_us, q) for trial in evidence.of(candidate)]


def rates(evidence: Evidence) -> Picture:
    """Open loop: a panel each for p50, p95 and p99 against the offered rate; every trial is a point."""
    figure = Figure(figsize=TALL, layout="constrained")
    trials = [trial for trial in evidence.trials if trial.offered_per_s is not None]
    panels = figure.subplots(len(PERCENTS), 1, sharex=True)
    for axes, q in zip(panels, PERCENTS, strict=True):
        _panel(axes, evidence, trials, q)
    panels[-1].set_xlabel("offered, requests per second")
    figure.legend(handles=keys(evidence, trials), loc="outside upper left", ncols=2, columnspacing=1.4)
    return Picture(name="rates", caption=_highest_passing(evidence), figure=figure)


def _panel(axes: Axes, evidence: Evidence, trials: Sequence[Trial], q: float) -> None:
    values = [percentile_ms(trial.latencies_us, q) for trial in trials]
    plain(axes)
    logarithmic(axes, "y", [*values, evidence.study.target.latency_ms])
    target(axes, evidence)
    for candidate in dict.fromkeys(trial.candidate for trial in trials):
        if evidence.role(candidate):
            _medians(axes, evidence, candidate, [trial for trial in trials if trial.candidate == candidate], q)
    for trial, value in zip(trials, values, strict=True):
        point(axes, evidence, trial, _shifted_rate(evidence, trial), value)
    axes.set_xlim(0, 1.06 * max(trial.offered_per_s or 0.0 for trial in trials))
    axes.set_ylabel(f"p{q:g}, ms")


def _shifted_rate(evidence: Evidence, trial: Trial) -> float:
    """The offered rate, shifted a little for each configuration so that no point hides another."""
    top = max(other.offered_per_s or 0.0 for other in evidence.trials)
    shift = {"current": 1, "": 2}.get(evidence.role(trial.candidate), 0)
    return (trial.offered_per_s or 0.0) + 0.018 * shift * top


def _medians(axes: Axes, evidence: Evidence, candidate: Candidate, trials: Sequence[Trial], q: float) -> None:
    """A line through the medians of each load."""
    line = []
    for load in {trial.load: None for trial in trials}:
        same_load = [trial for trial in trials if trial.load == load]
        rate = middle(trial.offered_per_s or 0.0 for trial in same_load)
        line.append((rate, middle(percentile_ms(trial.latencies_us, q) for trial in same_load)))
    line.sort()
    axes.plot([x for x, _ in line], [y for _, y in line], color=colour(evidence, candidate), linewidth=1.2, alpha=0.7)


def _highest_passing(evidence: Evidence) -> str:
    both = dict.fromkeys((evidence.shown, evidence.study.default))
    texts = {candidate: highest(evidence, candidate) for candidate in both}
    return "; ".join(f"{evidence.label(candidate)}: {text}" for candidate, text in texts.items() if text)


def completion(evidence: Evidence) -> Picture:
    """Open loop: the share of the offered requests that were answered, and that were late, lost or failed."""
    trials = [trial for trial in evidence.trials if trial.offered_per_s]
    figure = Figure(figsize=NARROW, layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True)
    panels: tuple[tuple[Axes, Callable[[Trial], float], str], ...] = (
        (upper, _answered_percent, "% of offered\nanswered"),
        (lower, _sent_late_percent, "% sent late,\nlost or failed"),
    )
    for axes, value, label in panels:
        plain(axes)
        for trial in trials:
            point(axes, evidence, trial, _shifted_rate(evidence, trial), value(trial))
        axes.set_ylabel(label)
        axes.set_ylim(0, 1.12 * max(1.0, *map(value, trials)))
    highest = max(trial.offered_per_s or 0.0 for trial in trials)
    lower.set(xlabel="offered, requests per second", xlim=(0, 1.06 * highest))
    figure.legend(handles=keys(evidence, trials), loc="outside upper left", ncols=2, columnspacing=1.4)
    worst = min(trials, key=_answered_percent)
    caption = (
        f"The lowest share of offered requests that were answered in a window: {_answered_percent(worst):.1f} % "
        f"({worst.candidate} at {number(worst.offered_per_s or 0.0)} requests/s, n = {worst.requests:,} requests)"
    )
    return Picture(name="completion", caption=caption, figure=figure)


def _answered_percent(trial: Trial) -> float:
    """Answered requests over offered requests, percent; all requests of a trial have the same number of rows."""
    answered = trial.requests - trial.not_sent - trial.failed
    rows = trial.counted.rows / trial.counted.requests if trial.counted.requests else 1.0
    answered_per_s = trial.throughput_rows_per_s / rows
    return 100 * min(answered_per_s / (trial.offered_per_s or 1.0), answered / max(trial.requests, 1))


def _sent_late_percent(trial: Trial) -> float:
    return 100 * (trial.late_sends + trial.not_sent + trial.failed) / max(trial.requests, 1)


def throughput(evidence: Evidence) -> Picture:
    """Closed loop: p99 against rows per second, of trials (points) and simulated candidates (dots and Pareto front)."""
    trials = evidence.trials
    figure = Figure(figsize=NARROW, layout="constrained")
    axes = figure.subplots()
    plain(axes)
    values = [percentile_ms(trial.latencies_us, 99) for trial in trials]
    simulated = [
        (prediction.throughput_rows_per_s, prediction.percentiles_ms[99]) for prediction in evidence.predicted.values()
    ]
    logarithmic(axes, "y", [*values, *(latency for _, latency in simulated), evidence.study.target.latency_ms])
    target(axes, evidence)
    axes.plot([x for x, _ in simulated], [y for _, y in simulated], ".", color=INK, alpha=0.4, markersize=5)
    edge = front(simulated)
    axes.plot([x for x, _ in edge], [y for _, y in edge], color=INK, alpha=0.35, linewidth=1, drawstyle="steps-pre")
    for trial, value in zip(trials, values, strict=True):
        point(axes, evidence, trial, trial.throughput_rows_per_s, value)
    right = max([trial.throughput_rows_per_s for trial in trials] + [x for x, _ in simulated])
    label = "rows per second (dots and line: simulated, and their front)"
    axes.set(xlabel=label, ylabel="p99, ms", xlim=(0, 1.06 * right))
    figure.legend(handles=keys(evidence, trials), loc="outside upper left", ncols=2, columnspacing=1.4)
    return Picture(name="throughput", caption=_caption(evidence), figure=figure)


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
