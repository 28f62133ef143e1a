"""Open loop: latency percentiles against the offered rate, and what of it was really sent and answered."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from perf.records.candidate import Candidate
from perf.records.study import Trial
from perf.report.drawing import NARROW, plain
from perf.report.study.evidence import Evidence
from perf.report.study.points import colour, keys, logarithmic, middle, point, target
from perf.report.study.section import Drawn
from perf.report.study.units import count, number
from perf.stats.quantile import percentile_ms

PERCENTS = (50.0, 95.0, 99.0)
TALL = (NARROW[0], 6.4)


def rates(evidence: Evidence) -> Drawn:
    """A panel for p50, p95 and p99; every measurement is a point."""
    figure = Figure(figsize=TALL, layout="constrained")
    found = [one for one in evidence.trials if one.offered_per_s is not None]
    panels = figure.subplots(len(PERCENTS), 1, sharex=True)
    for axes, percents in zip(panels, PERCENTS, strict=True):
        _panel(axes, evidence, found, percents)
    panels[-1].set_xlabel("offered, requests per second")
    figure.legend(handles=keys(evidence, found), loc="outside upper left", ncols=2, columnspacing=1.4)
    return Drawn(name="rates", caption=_caption(evidence, found), figure=figure)


def _panel(axes: Axes, evidence: Evidence, found: Sequence[Trial], percents: float) -> None:
    values = [percentile_ms(one.latencies_us, percents) for one in found]
    plain(axes)
    logarithmic(axes, "y", [*values, evidence.study.sla.latency_ms])
    target(axes, evidence)
    for candidate in dict.fromkeys(one.candidate for one in found):
        if evidence.role(candidate):
            _line(axes, evidence, candidate, [one for one in found if one.candidate == candidate], percents)
    for one, value in zip(found, values, strict=True):
        point(axes, _beside(evidence, one), value, one, colour(evidence, one.candidate))
    axes.set_xlim(0, 1.06 * max(one.offered_per_s or 0.0 for one in found))
    axes.set_ylabel(f"p{percents:g}, ms")


def _beside(evidence: Evidence, trial: Trial) -> float:
    """The offered rate, a little to one side for each configuration, so that none hides another."""
    top = max(one.offered_per_s or 0.0 for one in evidence.trials)
    side = {"current": 1, "": 2}.get(evidence.role(trial.candidate), 0)
    return (trial.offered_per_s or 0.0) + 0.018 * side * top


def _line(axes: Axes, evidence: Evidence, candidate: Candidate, found: Sequence[Trial], percents: float) -> None:
    """Through the medians of each load."""
    medians = []
    for name in {one.load: None for one in found}:
        ours = [one for one in found if one.load == name]
        rate = middle(one.offered_per_s or 0.0 for one in ours)
        medians.append((rate, middle(percentile_ms(one.latencies_us, percents) for one in ours)))
    line = sorted(medians)
    axes.plot([x for x, _ in line], [y for _, y in line], color=colour(evidence, candidate), linewidth=1.2, alpha=0.7)


def _caption(evidence: Evidence, found: Sequence[Trial]) -> str:
    said: list[tuple[Candidate, str]] = []
    for candidate in (evidence.shown, evidence.study.default):
        ours = [one for one in found if one.candidate == candidate]
        passed = [one.offered_per_s or 0.0 for one in ours if one.passed]
        if ours and candidate not in [one for one, _ in said]:
            top = f"passes up to {number(max(passed))} requests/s" if passed else "passes at no measured rate"
            said.append((candidate, f"{evidence.label(candidate)} {top} ({count(len(ours), 'measurement')})"))
    return "; ".join(text for _, text in said)


def kept(evidence: Evidence) -> Drawn:
    """What was offered against what was done, and what the client itself did late or not at all."""
    found = [one for one in evidence.trials if one.offered_per_s]
    figure = Figure(figsize=NARROW, layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True)
    for axes, value, label in (
        (upper, _achieved, "% of offered\nanswered"),
        (lower, _sent_late, "% sent late,\nlost or failed"),
    ):
        plain(axes)
        for one in found:
            point(axes, _beside(evidence, one), value(one), one, colour(evidence, one.candidate))
        axes.set_ylabel(label)
        axes.set_ylim(0, 1.12 * max(1.0, *map(value, found)))
    lower.set(xlabel="offered, requests per second", xlim=(0, 1.06 * max(one.offered_per_s or 0.0 for one in found)))
    figure.legend(handles=keys(evidence, found), loc="outside upper left", ncols=2, columnspacing=1.4)
    worst = min(found, key=_achieved)
    caption = (
        f"The least that was answered of what was due in a window: {_achieved(worst):.1f} % ({worst.candidate} at "
        f"{number(worst.offered_per_s or 0.0)} requests/s, n = {worst.requests:,} requests)"
    )
    return Drawn(name="kept", caption=caption, figure=figure)


def _achieved(trial: Trial) -> float:
    """Answered rows over rows that were due, percent; one request is as many rows as all others."""
    answered = trial.requests - trial.not_sent - trial.failed
    rows = trial.counted.rows / trial.counted.requests if trial.counted.requests else 1.0
    done = trial.throughput_rows_per_s / rows
    return 100 * min(done / (trial.offered_per_s or 1.0), answered / max(trial.requests, 1))


def _sent_late(trial: Trial) -> float:
    return 100 * (trial.late_sends + trial.not_sent + trial.failed) / max(trial.requests, 1)
