"""Part 5: the executed batch sizes, and what each costs: s(b) with its fit, the throughput b / s(b), and its knee."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from clients.counters import Counters
from perf.measure.service_curve import FittedLine, Size, fit
from perf.records.candidate import Candidate
from perf.report.drawing import COLOURS, GREY, NARROW, plain
from perf.report.study.batches import batches, counted
from perf.report.study.evidence import Evidence
from perf.report.study.points import OTHER, SHOWN
from perf.report.study.section import Drawn, Grid, Section
from perf.report.study.units import count, ms, number, whole_percent

TITLE = "Batches, and what they cost"
# The smallest batch with this share of the highest rows per second: beyond it, batches cost latency and bring little.
KNEE = 0.9
# A size that was executed less often says little about a throughput.
LEAST = 3


@dataclass(frozen=True, kw_only=True)
class Curve:
    """s(b) of one source: `instances` at work at a time, and where it comes from."""

    source: str
    instances: int
    sizes: tuple[Size, ...]

    @property
    def line(self) -> FittedLine:
        """The weighted fit."""
        return fit(self.sizes)

    @property
    def executions(self) -> int:
        """How many were counted."""
        return sum(one.executions for one in self.sizes)

    @property
    def knee(self) -> Size:
        """The smallest size with 90 % of the highest throughput."""
        known = [one for one in self.sizes if one.executions >= LEAST] or list(self.sizes)
        best = max(one.rows / one.mean_us for one in known)
        return next(one for one in known if one.rows / one.mean_us >= KNEE * best)


def service(evidence: Evidence) -> Section:
    """Histogram of sizes, service time by size, throughput by size."""
    bars = batches(evidence)
    found = curves(evidence)
    missing = [f"The service-time record {name} is not beside the study, or not readable." for name in evidence.lost]
    if bars is None:
        missing.append("The server counted no execution at the operating point.")
    if not found:
        missing.append("No service time of any batch size is known.")
    drawn = [bars] if bars else []
    if found:
        drawn += [_times(found), _rates(found)]
    return Section(
        name="batches",
        title=TITLE,
        sentences=tuple(map(_sentence, found)),
        missing=tuple(missing),
        drawn=tuple(drawn),
        grids=tuple(_grid(curve) for curve in found),
        data={
            "service_time": [_data(curve) for curve in found],
            "executed": {str(one): counted(evidence.of(one)).batches for one in _shown(evidence)},
        },
    )


def curves(evidence: Evidence) -> tuple[Curve, ...]:
    """The ramp of the shown candidate's instances and threads, and the same counted in the measurements themselves."""
    shown = evidence.shown
    found = [
        Curve(source="profiled before the search", instances=ramp.instances, sizes=ramp.sizes)
        for ramp in evidence.ramps
        if (ramp.instances, ramp.threads) == (shown.instances, shown.threads) and ramp.sizes
    ]
    alike = [
        one
        for one in evidence.trials
        if (one.candidate.instances, one.candidate.threads) == (shown.instances, shown.threads)
    ]
    if alike:
        sizes = _sizes(counted(alike))
        if sizes:
            found.append(Curve(source="counted in the measurements", instances=shown.instances, sizes=sizes))
    return tuple(found)


def _shown(evidence: Evidence) -> list[Candidate]:
    return [one for one in dict.fromkeys((evidence.shown, evidence.study.default)) if evidence.of(one)]


def _sizes(counters: Counters) -> tuple[Size, ...]:
    return tuple(
        Size(rows=rows, executions=n, mean_us=counters.execution_ns(rows) / n / 1e3, error_us=0.0)
        for rows, n in sorted(counters.batches.items())
        if n and counters.execution_ns(rows)
    )


def _sentence(curve: Curve) -> str:
    line, knee = curve.line, curve.knee
    rate = knee.rows / knee.mean_us * 1e6 * curve.instances
    return (
        f"{curve.source.capitalize()}: s(b) = {ms(line.fixed_us / 1e3)} + {ms(line.row_us / 1e3)} per row "
        f"(R² {line.r2:.2f}, n = {count(curve.executions, 'execution')} of {count(len(curve.sizes), 'size')}); from "
        f"{count(knee.rows, 'row')} on ({ms(knee.mean_us / 1e3)}, {number(rate)} rows/s) a larger batch brings at most "
        f"{whole_percent(1 / KNEE - 1)} more."
    )


def _times(found: Sequence[Curve]) -> Drawn:
    figure, axes = _axes("ms per execution, s(b)")
    for curve, shade in zip(found, _shades(found), strict=True):
        rows = [one.rows for one in curve.sizes]
        most = max(one.executions for one in curve.sizes)
        areas = [12 + 60 * one.executions / most for one in curve.sizes]
        axes.scatter(rows, [one.mean_us / 1e3 for one in curve.sizes], s=areas, color=shade, alpha=0.75, linewidths=0)
        line = curve.line
        ends = [min(rows), max(rows)]
        label = f"{curve.source}, n = {curve.executions:,}"
        axes.plot(ends, [line.at(end) / 1e3 for end in ends], color=shade, linewidth=1.2, label=label)
    axes.set_ylim(bottom=0)
    figure.legend(loc="outside upper left")
    line = found[0].line
    caption = (
        f"An execution costs {ms(line.fixed_us / 1e3)} and {ms(line.row_us / 1e3)} per row "
        f"(n = {count(found[0].executions, 'execution')}; area: executions)"
    )
    return Drawn(name="service-time", caption=caption, figure=figure)


def _rates(found: Sequence[Curve]) -> Drawn:
    figure, axes = _axes("rows per second, all instances")
    for curve, shade in zip(found, _shades(found), strict=True):
        points = [(one.rows, one.rows / one.mean_us * 1e6 * curve.instances) for one in curve.sizes]
        axes.plot([x for x, _ in points], [y for _, y in points], "o-", color=shade, markersize=4, label=curve.source)
    first = found[0]
    knee = first.knee
    _knee(axes, knee.rows)
    axes.set_ylim(bottom=0)
    figure.legend(loc="outside upper left")
    rate = knee.rows / knee.mean_us * 1e6 * first.instances
    n = count(first.executions, "execution")
    share = whole_percent(KNEE)
    caption = (
        f"The knee is at {count(knee.rows, 'row')}: {number(rate)} rows/s, {share} of the highest b / s(b) (n = {n})"
    )
    return Drawn(name="service-rate", caption=caption, figure=figure)


def _knee(axes: Axes, rows: int) -> None:
    axes.axvline(rows, color=GREY, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    axes.text(rows, 0.02, f" knee, {rows}", transform=axes.get_xaxis_transform(), fontsize=10, ha="left", va="bottom")


def _axes(label: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=NARROW, layout="constrained")
    axes = figure.subplots()
    plain(axes)
    axes.set(xlabel="rows in one execution, b", ylabel=label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    return figure, axes


def _shades(found: Sequence[Curve]) -> list[str]:
    more = (shade for shade in COLOURS if shade not in (SHOWN, OTHER))
    return list(itertools.islice(itertools.cycle((SHOWN, OTHER, *more)), len(found)))


def _grid(curve: Curve) -> Grid:
    rows = tuple(
        (
            str(one.rows),
            f"{one.executions:,}",
            number(one.mean_us / 1e3),
            number(one.error_us / 1e3) if one.error_us else "",
            number(curve.line.at(one.rows) / 1e3),
            number(one.rows / one.mean_us * 1e6 * curve.instances),
        )
        for one in curve.sizes
    )
    titles = ("rows, b", "n\nexecutions", "s(b)\nms", "standard error\nms", "fit\nms", "all instances\nrows/s")
    return Grid(titles=titles, rows=rows, left=0, summary=f"s(b) {curve.source}, {count(len(rows), 'size')}")


def _data(curve: Curve) -> Mapping[str, object]:
    line = {name: getattr(curve.line, name) for name in ("fixed_us", "row_us", "fixed_error_us", "row_error_us", "r2")}
    return {"source": curve.source, "line": line, "knee_rows": curve.knee.rows, "executions": curve.executions}
