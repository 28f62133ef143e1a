"""Closed loop: p99 against rows per second, every measurement a point, over what was simulated."""

import math

from matplotlib.figure import Figure

from perf.report.drawing import INK, NARROW, plain
from perf.report.study.evidence import Evidence
from perf.report.study.points import colour, keys, logarithmic, point, target
from perf.report.study.section import Drawn
from perf.report.study.units import number
from perf.stats import pareto
from perf.stats.quantile import percentile_ms


def throughput(evidence: Evidence) -> Drawn:
    """Simulated candidates are dots, their Pareto front is a line: nothing simulated is faster at that latency."""
    found = evidence.trials
    figure = Figure(figsize=NARROW, layout="constrained")
    axes = figure.subplots()
    plain(axes)
    values = [percentile_ms(one.latencies_us, 99) for one in found]
    simulated = [(one.throughput_rows_per_s, one.percentiles_ms[99]) for one in evidence.predicted.values()]
    logarithmic(axes, "y", [*values, *(ms for _, ms in simulated), evidence.study.sla.latency_ms])
    target(axes, evidence)
    axes.plot([x for x, _ in simulated], [y for _, y in simulated], ".", color=INK, alpha=0.4, markersize=5)
    edge = front(simulated)
    axes.plot([x for x, _ in edge], [y for _, y in edge], color=INK, alpha=0.35, linewidth=1, drawstyle="steps-pre")
    for one, value in zip(found, values, strict=True):
        point(axes, one.throughput_rows_per_s, value, one, colour(evidence, one.candidate))
    right = max([one.throughput_rows_per_s for one in found] + [x for x, _ in simulated])
    axes.set(
        xlabel="rows per second (dots and line: simulated, and their front)", ylabel="p99, ms", xlim=(0, 1.06 * right)
    )
    figure.legend(handles=keys(evidence, found), loc="outside upper left", ncols=2, columnspacing=1.4)
    return Drawn(name="throughput", caption=_caption(evidence), figure=figure)


def front(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Of (throughput, latency) those that no other beats in both, by rising throughput."""
    return pareto.front([one for one in points if math.isfinite(one[1])], lambda one: one)[::-1]


def _caption(evidence: Evidence) -> str:
    passed = [one for one in evidence.trials if one.passed]
    if not passed:
        return "No measured point meets the target"
    best = max(passed, key=lambda one: one.throughput_rows_per_s)
    return (
        f"The most of a single window that passes the target is {number(best.throughput_rows_per_s)} rows/s "
        f"({evidence.label(best.candidate)}, {best.load}, n = {best.requests:,} requests)"
    )
