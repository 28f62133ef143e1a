"""Part 5: the executed batch sizes, the service time s(b) of each, the throughput b / s(b), and its knee."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from perf.measure.service_line import FittedLine, Size, fit
from perf.records.candidate import Candidate
from perf.records.study import Trial
from perf.report.drawing import COLOURS, GREY, NARROW, batch_bars, plain
from perf.report.study.evidence import Evidence
from perf.report.study.points import OTHER, SHOWN, colour
from perf.report.study.section import Grid, Picture, Section
from perf.report.study.units import count, ms, number, whole_percent
from serve.management.statistics import Counters

TITLE = "Batch sizes and service time"
# The knee is the smallest batch size with this share of the highest rows per second.
KNEE = 0.9
# Sizes with fewer executions are ignored for the knee.
MIN_EXECUTIONS = 3


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The service time s(b) from one `source`, with `instances` at work at a time."""

    source: str
    instances: int
    sizes: tuple[Size, ...]

    @property
    def line(self) -> FittedLine:
        """The weighted linear fit of s(b)."""
        return fit(self.sizes)

    @property
    def executions(self) -> int:
        """The number of executions."""
        return sum(size.executions for size in self.sizes)

    @property
    def knee(self) -> Size:
        """The smallest size with 90 % of the highest throughput."""
        sizes = [size for size in self.sizes if size.executions >= MIN_EXECUTIONS] or list(self.sizes)
        best = max(size.rows / size.mean_us for size in sizes)
        return next(size for size in sizes if size.rows / size.mean_us >= KNEE * best)


def service(evidence: Evidence) -> Section:
    """A histogram of batch sizes, and service time and throughput by batch size."""
    bars = _batch_sizes(evidence)
    all_curves = curves(evidence)
    missing = [f"The service-time record {name} is absent or not readable." for name in evidence.lost]
    if bars is None:
        missing.append("The server counted no execution at the operating point.")
    if not all_curves:
        missing.append("The service time of all batch sizes is unknown.")
    pictures = [bars] if bars else []
    if all_curves:
        pictures += [_times(all_curves), _rates(all_curves)]
    return Section(
        name="batches",
        title=TITLE,
        sentences=tuple(map(_sentence, all_curves)),
        missing=tuple(missing),
        pictures=tuple(pictures),
        grids=tuple(_grid(curve) for curve in all_curves),
        data={
            "service_time": [_data(curve) for curve in all_curves],
            "executed": {str(candidate): counted(evidence.of(candidate)).batches for candidate in _compared(evidence)},
        },
    )


def counted(trials: Sequence[Trial]) -> Counters:
    """The server's counters, added over all trials."""
    return sum((trial.counted for trial in trials[1:]), trials[0].counted)


def _batch_sizes(evidence: Evidence) -> Picture | None:
    """The executed batch sizes of the shown and the current configuration; None without any execution."""
    by_candidate = {candidate: counted(evidence.of(candidate)) for candidate in _compared(evidence)}
    by_candidate = {candidate: counters for candidate, counters in by_candidate.items() if counters.batches}
    if not by_candidate:
        return None
    predictions = [evidence.predicted.get(candidate) for candidate in by_candidate]
    expected = [prediction.sizes if prediction else None for prediction in predictions]
    panels = [
        (evidence.label(candidate), counters.batches, colour(evidence, candidate))
        for candidate, counters in by_candidate.items()
    ]
    label = f"rows in one execution, under {evidence.study.load}" + (" (black: predicted)" if any(expected) else "")
    figure = batch_bars(panels, label, expected)
    return Picture(name="batches", caption=_batch_caption(evidence, by_candidate), figure=figure)


def _batch_caption(evidence: Evidence, by_candidate: dict[Candidate, Counters]) -> str:
    texts = []
    for candidate, counters in by_candidate.items():
        executions = count(sum(counters.batches.values()), "execution")
        predicted = evidence.predicted.get(candidate)
        against = f", predicted {number(predicted.rows_per_execution)}" if predicted else ""
        mean = number(counters.rows_per_execution)
        texts.append(f"{evidence.label(candidate)}: {mean} rows per execution on average{against} (n = {executions})")
    return "; ".join(texts)


def curves(evidence: Evidence) -> tuple[Curve, ...]:
    """s(b) for the shown candidate's instances and threads: from its profile, and counted in the trials."""
    shown = evidence.shown
    sources = [
        Curve(source="profiled before the search", instances=ramp.instances, sizes=ramp.sizes)
        for ramp in evidence.ramps
        if (ramp.instances, ramp.threads) == (shown.instances, shown.threads) and ramp.sizes
    ]
    trials = [
        trial
        for trial in evidence.trials
        if (trial.candidate.instances, trial.candidate.threads) == (shown.instances, shown.threads)
    ]
    if trials and (sizes := _sizes(counted(trials))):
        sources.append(Curve(source="counted in the measurements", instances=shown.instances, sizes=sizes))
    return tuple(sources)


def _compared(evidence: Evidence) -> list[Candidate]:
    """The shown candidate and the default, if they were measured."""
    order = dict.fromkeys((evidence.shown, evidence.study.default))
    return [candidate for candidate in order if evidence.of(candidate)]


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
        f"{count(knee.rows, 'row')} on ({ms(knee.mean_us / 1e3)}, {number(rate)} rows/s) a larger batch gains at most "
        f"{whole_percent(1 / KNEE - 1)}."
    )


def _times(all_curves: Sequence[Curve]) -> Picture:
    figure, axes = _axes("ms per execution, s(b)")
    for curve, shade in zip(all_curves, _shades(all_curves), strict=True):
        rows = [size.rows for size in curve.sizes]
        most = max(size.executions for size in curve.sizes)
        areas = [12 + 60 * size.executions / most for size in curve.sizes]
        times = [size.mean_us / 1e3 for size in curve.sizes]
        axes.scatter(rows, times, s=areas, color=shade, alpha=0.75, linewidths=0)
        line = curve.line
        ends = [min(rows), max(rows)]
        label = f"{curve.source}, n = {curve.executions:,}"
        axes.plot(ends, [line.at(end) / 1e3 for end in ends], color=shade, linewidth=1.2, label=label)
    axes.set_ylim(bottom=0)
    figure.legend(loc="outside upper left")
    line = all_curves[0].line
    caption = (
        f"An execution takes {ms(line.fixed_us / 1e3)} and {ms(line.row_us / 1e3)} per row "
        f"(n = {count(all_curves[0].executions, 'execution')}; area: executions)"
    )
    return Picture(name="service-time", caption=caption, figure=figure)


def _rates(all_curves: Sequence[Curve]) -> Picture:
    figure, axes = _axes("rows per second, all instances")
    for curve, shade in zip(all_curves, _shades(all_curves), strict=True):
        points = [(size.rows, size.rows / size.mean_us * 1e6 * curve.instances) for size in curve.sizes]
        axes.plot([x for x, _ in points], [y for _, y in points], "o-", color=shade, markersize=4, label=curve.source)
    first = all_curves[0]
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
    return Picture(name="service-rate", caption=caption, figure=figure)


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


def _shades(all_curves: Sequence[Curve]) -> list[str]:
    more = (shade for shade in COLOURS if shade not in (SHOWN, OTHER))
    return list(itertools.islice(itertools.cycle((SHOWN, OTHER, *more)), len(all_curves)))


def _grid(curve: Curve) -> Grid:
    rows = tuple(
        (
            str(size.rows),
            f"{size.executions:,}",
            number(size.mean_us / 1e3),
            number(size.error_us / 1e3) if size.error_us else "",
            number(curve.line.at(size.rows) / 1e3),
            number(size.rows / size.mean_us * 1e6 * curve.instances),
        )
        for size in curve.sizes
    )
    titles = ("rows, b", "n\nexecutions", "s(b)\nms", "standard error\nms", "fit\nms", "all instances\nrows/s")
    return Grid(titles=titles, rows=rows, left=0, summary=f"s(b) {curve.source}, {count(len(rows), 'size')}")


def _data(curve: Curve) -> Mapping[str, object]:
    line = {name: getattr(curve.line, name) for name in ("fixed_us", "row_us", "fixed_error_us", "row_error_us", "r2")}
    return {"source": curve.source, "line": line, "knee_rows": curve.knee.rows, "executions": curve.executions}
