"""Part 5: the executed batch sizes, the service time s(b) of each, the throughput b / s(b), and its knee."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import altair as alt

from perf.measure.service_line import FittedLine, Size, fit
from perf.records.candidate import Candidate
from perf.records.study import Trial
from perf.report.batch_sizes import batch_sizes
from perf.report.figure import HEIGHT, Chart, Figure, Palette, hover, numbers, source, vertical
from perf.report.figure import Row as Values
from perf.report.section import Grid, Section
from perf.report.study.evidence import Evidence
from perf.report.study.points import palette
from perf.report.units import count, ms, number, whole_percent
from serve.management.statistics import Counters

TITLE = "Batch sizes and service time"
# The knee is the smallest batch size with this share of the highest rows per second.
KNEE = 0.9
# Sizes with fewer executions are ignored for the knee.
MIN_EXECUTIONS = 3
HOVER = ("curve", "rows, b", "executions", "s(b)", "all instances")


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
    figures = [bars] if bars else []
    if all_curves:
        figures += [_times(all_curves), _rates(all_curves)]
    return Section(
        name="batches",
        title=TITLE,
        sentences=tuple(map(_sentence, all_curves)),
        missing=tuple(missing),
        figures=tuple(figures),
        grids=tuple(_grid(curve) for curve in all_curves),
        data={
            "service_time": [_data(curve) for curve in all_curves],
            "executed": {str(candidate): counted(evidence.of(candidate)).batches for candidate in _compared(evidence)},
        },
    )


def counted(trials: Sequence[Trial]) -> Counters:
    """The server's counters, added over all trials."""
    return sum((trial.counted for trial in trials[1:]), trials[0].counted)


def _batch_sizes(evidence: Evidence) -> Figure | None:
    """The executed batch sizes of the shown and the current configuration; None without any execution."""
    by_candidate = {candidate: counted(evidence.of(candidate)) for candidate in _compared(evidence)}
    by_candidate = {candidate: counters for candidate, counters in by_candidate.items() if counters.batches}
    if not by_candidate:
        return None
    executed = {evidence.label(candidate): counters.batches for candidate, counters in by_candidate.items()}
    expected = {
        evidence.label(candidate): prediction.sizes
        for candidate in by_candidate
        if (prediction := evidence.predicted.get(candidate))
    }
    colours = palette(evidence).colours
    title = "rows in one execution" + (" (dash: predicted)" if expected else "")
    chart = batch_sizes(executed, Palette(colours={name: colours[name] for name in executed}), title, expected)
    return Figure(name="batches", caption=_batch_caption(evidence, by_candidate), chart=chart)


def _batch_caption(evidence: Evidence, by_candidate: dict[Candidate, Counters]) -> str:
    texts = []
    for candidate, counters in by_candidate.items():
        executions = count(sum(counters.batches.values()), "execution")
        predicted = evidence.predicted.get(candidate)
        against = f", predicted {number(predicted.rows_per_execution)}" if predicted else ""
        mean = number(counters.rows_per_execution)
        texts.append(f"{evidence.label(candidate)}: {mean} rows per execution on average{against} (n = {executions})")
    return f"Under {evidence.study.load}, {'; '.join(texts)}"


def curves(evidence: Evidence) -> tuple[Curve, ...]:
    """s(b) for the shown candidate's instances and threads: from its profile, and counted in the trials."""
    shown = evidence.shown
    sources = [
        Curve(source="before the search", instances=ramp.instances, sizes=ramp.sizes)
        for ramp in evidence.ramps
        if (ramp.instances, ramp.threads) == (shown.instances, shown.threads) and ramp.sizes
    ]
    trials = [
        trial
        for trial in evidence.trials
        if (trial.candidate.instances, trial.candidate.threads) == (shown.instances, shown.threads)
    ]
    if trials and (sizes := _sizes(counted(trials))):
        sources.append(Curve(source="in the measurements", instances=shown.instances, sizes=sizes))
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


def _times(all_curves: Sequence[Curve]) -> Figure:
    rows = [row for curve in all_curves for row in _points(curve, lambda size: size.mean_us / 1e3)]
    ends = [
        {"curve": curve.source, "x": end, "y": curve.line.at(end) / 1e3}
        for curve in all_curves
        for end in (curve.sizes[0].rows, curve.sizes[-1].rows)
    ]
    chart = _chart(rows, "ms per execution, s(b)", all_curves)
    fits = alt.Chart(source(ends)).mark_line(strokeWidth=1.5)
    line = all_curves[0].line
    caption = (
        f"An execution takes {ms(line.fixed_us / 1e3)} and {ms(line.row_us / 1e3)} per row "
        f"(n = {count(all_curves[0].executions, 'execution')}; bars: standard errors)"
    )
    return Figure(
        name="service-time",
        caption=caption,
        chart=chart + fits.encode(x="x:Q", y="y:Q", color=_palette(all_curves).colour),
    )


def _rates(all_curves: Sequence[Curve]) -> Figure:
    rows = [row for curve in all_curves for row in _points(curve, _rate_of(curve))]
    lines = alt.Chart(source(rows)).mark_line(strokeWidth=1.5)
    first = all_curves[0]
    knee = first.knee
    rate = _rate_of(first)(knee)
    n = count(first.executions, "execution")
    share = whole_percent(KNEE)
    caption = (
        f"The knee is at {count(knee.rows, 'row')}: {number(rate)} rows/s, {share} of the highest b / s(b) (n = {n})"
    )
    chart = _chart(rows, "rows per second, all instances", all_curves)
    chart += lines.encode(x="x:Q", y="y:Q", color=_palette(all_curves).colour)
    # The label has its place in the wider half.
    mark = vertical(knee.rows, f"knee, {knee.rows}", before=knee.rows > first.sizes[-1].rows / 2)
    return Figure(name="service-rate", caption=caption, chart=chart + mark)


def _rate_of(curve: Curve) -> Callable[[Size], float]:
    return lambda size: size.rows / size.mean_us * 1e6 * curve.instances


def _chart(rows: Sequence[Values], title: str, all_curves: Sequence[Curve]) -> Chart:
    """A point per batch size, with its standard error."""
    base = alt.Chart(source(rows)).encode(
        x=alt.X("x:Q", title="rows in one execution, b", axis=numbers(grid=False), scale=alt.Scale(padding=10)),
        y=alt.Y("y:Q", title=title, axis=numbers(), scale=alt.Scale(zero=True)),
        color=_palette(all_curves).colour,
    )
    marks = base.mark_point(size=45, filled=True).encode(shape=_palette(all_curves).shape, tooltip=hover(*HOVER))
    chart: Chart = (base.mark_rule().encode(y="low:Q", y2="high:Q") + marks).properties(height=HEIGHT)
    return chart


def _points(curve: Curve, value: Callable[[Size], float]) -> Sequence[Values]:
    rows = []
    for size in curve.sizes:
        y = value(size)
        error = y * size.error_us / size.mean_us
        s_b = f"{number(size.mean_us / 1e3)} ms" + (f" +- {number(size.error_us / 1e3)} ms" if size.error_us else "")
        rows.append(
            {
                **{"curve": curve.source, "x": size.rows, "y": y, "low": y - error, "high": y + error},
                **{"rows, b": str(size.rows), "executions": f"{size.executions:,}", "s(b)": s_b},
                "all instances": f"{number(_rate_of(curve)(size))} rows/s",
            }
        )
    return rows


def _palette(all_curves: Sequence[Curve]) -> Palette:
    return Palette(colours=Palette.of([curve.source for curve in all_curves]).colours, field="curve")


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
