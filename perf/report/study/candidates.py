"""What was measured, one line per configuration at its operating point: median latency to p99, window by window."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from perf.records.candidate import Candidate
from perf.report.drawing import NARROW, plain
from perf.report.study.evidence import Evidence
from perf.report.study.points import colour, keys, logarithmic, middle, point, target
from perf.report.study.section import Drawn
from perf.report.study.units import count, ms
from perf.stats.quantile import percentile_ms


def candidates(evidence: Evidence) -> Drawn:
    """The lowest p99 on top."""
    order = sorted(evidence.candidates, key=lambda one: middle(_percentiles(evidence, one, 99)))
    found = [trial for one in order for trial in evidence.of(one)]
    figure = Figure(figsize=(NARROW[0], 1.9 + 0.42 * len(order)), layout="constrained")
    axes = figure.subplots()
    plain(axes, "x")
    values = [value for one in order for percent in (50, 99) for value in _percentiles(evidence, one, percent)]
    logarithmic(axes, "x", [*values, evidence.study.sla.latency_ms])
    target(axes, evidence, upright=True)
    for row, one in enumerate(order):
        _line(axes, evidence, one, row)
    axes.set_yticks(range(len(order)), [str(one) for one in order])
    axes.set(xlabel="ms, from p50 (bar) to the p99 of each window", ylim=(len(order) - 0.4, -0.6))
    figure.legend(handles=keys(evidence, found), loc="outside upper left", ncols=2, columnspacing=1.4)
    return Drawn(name="candidates", caption=_caption(evidence, order), figure=figure)


def _line(axes: Axes, evidence: Evidence, candidate: Candidate, row: int) -> None:
    shade = colour(evidence, candidate)
    median = middle(_percentiles(evidence, candidate, 50))
    tails = _percentiles(evidence, candidate, 99)
    axes.plot([median, middle(tails)], [row, row], color=shade, linewidth=2, alpha=0.45)
    axes.plot(median, row, "|", color=shade, markersize=10)
    for trial, value in zip(evidence.of(candidate), tails, strict=True):
        point(axes, value, row, trial, shade)


def _percentiles(evidence: Evidence, candidate: Candidate, percent: float) -> list[float]:
    return [percentile_ms(trial.latencies_us, percent) for trial in evidence.of(candidate)]


def _caption(evidence: Evidence, order: Sequence[Candidate]) -> str:
    lowest = middle(_percentiles(evidence, order[0], 99))
    windows = sum(len(evidence.of(one)) for one in order)
    return (
        f"The lowest p99 is {ms(lowest)} ({evidence.label(order[0])}, {evidence.loads[order[0]]}, median of "
        f"{count(len(evidence.of(order[0])), 'window')}), of {count(len(order), 'measured configuration')} in "
        f"{count(windows, 'window')}"
    )
