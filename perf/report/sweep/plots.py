"""The figures of a comparison, as SVG text for a page or as PNG files; equal rows give equal text."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from perf.report.drawing import (
    COLOURS,
    GREY,
    INK,
    NARROW,
    PAPER,
    SHAPES,
    STYLE,
    WIDE,
    batch_bars,
    plain,
    png,
    stacked,
    svg,
)
from perf.report.sweep.summary import BASELINE, Comparison, Row, Stages, by_repeat

STAGES = {
    "client send": ("client_send_us", "#56B4E9"),
    "network": ("network_us", GREY),
    "queue": ("queue_us", "#E69F00"),
    "compute input": ("compute_input_us", "#CC79A7"),
    "compute infer": ("compute_infer_us", "#0072B2"),
    "compute output": ("compute_output_us", "#009E73"),
    "client receive": ("client_receive_us", "#D55E00"),
}


@dataclass(frozen=True, kw_only=True)
class Plot:
    """One figure for a page; `name` is part of its ids."""

    name: str
    caption: str
    wide: bool
    svg: str


def plots(comparison: Comparison, prefix: str = "") -> tuple[Plot, ...]:
    """All figures that the rows allow; `prefix` makes the ids of several comparisons on one page different."""
    figures = []
    with mpl.rc_context(STYLE):
        for name, (caption, draw, wide) in FIGURES.items():
            figure = draw(comparison)
            if figure is not None:
                text = svg(figure, f"{prefix}{name}", f"{comparison.model}: {caption}")
                figures.append(Plot(name=name, caption=caption, wide=wide, svg=text))
    return tuple(figures)


def save_png(comparison: Comparison, folder: Path, prefix: str = "") -> tuple[Path, ...]:
    """Write the same figures as PNG files."""
    paths = []
    with mpl.rc_context(STYLE):
        for name, (caption, draw, _) in FIGURES.items():
            figure = draw(comparison)
            if figure is not None:
                paths.append(png(figure, folder / f"{prefix}{name}.png", f"{comparison.model}: {caption}"))
    return tuple(paths)


def throughput(comparison: Comparison) -> Figure:
    """Rows per second against requests in flight, and the ceiling."""
    figure, axes = _axes("rows per second")
    _lines(axes, comparison, lambda row: row.throughput_rows_per_s, lambda row: row.throughput_by_repeat.values())
    top = comparison.ceiling
    if top is not None:
        label = f"onnxruntime alone, {top.rows} rows together"
        axes.axhline(top.throughput_rows_per_s, color=INK, linestyle=(0, (4, 3)), linewidth=1.2, label=label)
    return _finished(figure, axes)


def latency(comparison: Comparison) -> Figure:
    """The 95th percentile of the latency against requests in flight."""
    figure, axes = _axes("p95 latency, ms")
    _lines(axes, comparison, lambda row: _ms(row.p95_us), lambda row: map(_ms, row.p95_us_by_repeat.values()))
    return _finished(figure, axes)


def gain(comparison: Comparison) -> Figure | None:
    """Rows per second, divided by the baseline's at the same concurrency."""

    def over_baseline(row: Row) -> list[float]:
        baseline = comparison.at(BASELINE, row.load.concurrency)
        return [] if baseline is None or row is baseline else _quotients(row, baseline.throughput_by_repeat)

    return _ratios(comparison, "rows/s, times the baseline", over_baseline)


def efficiency(comparison: Comparison) -> Figure | None:
    """Rows per second, divided by those of onnxruntime without a server."""

    def over_ceiling(row: Row) -> list[float]:
        return _quotients(row, comparison.ceiling.by_repeat) if row.to_ceiling and comparison.ceiling else []

    return _ratios(comparison, "rows/s, times the ceiling", over_ceiling)


def _quotients(row: Row, reference: Mapping[int, float]) -> list[float]:
    return [value / other for value, other in by_repeat(row.throughput_by_repeat, reference)]


def batches(comparison: Comparison) -> Figure | None:
    """The share of rows by batch size, a panel per configuration."""
    highest = max(comparison.common_concurrencies, default=0)
    rows = [row for name in comparison.config_names if (row := comparison.at(name, highest)) and row.batches]
    if not rows:
        return None
    panels = [(row.config_name, row.batches, _colour(comparison, row.config_name)) for row in rows]
    return batch_bars(panels, f"rows in one execution, at concurrency {rows[0].load.concurrency}")


def stages(comparison: Comparison) -> Figure | None:
    """The mean time of a request by stage, at the lowest and the highest concurrency of all configurations."""
    ends = sorted({*comparison.common_concurrencies[:1], *comparison.common_concurrencies[-1:]})
    if not ends:
        return None
    figure = Figure(figsize=WIDE, layout="constrained")
    for axes, concurrency in zip(figure.subplots(1, len(ends), squeeze=False)[0], ends, strict=True):
        _stack(axes, [row for row in comparison.rows if row.load.concurrency == concurrency])
        axes.set_title(f"concurrency {concurrency}", loc="left", fontsize=11)
    for axes in figure.axes[1:]:
        axes.set_yticklabels([])
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=len(labels), handlelength=1, columnspacing=1.4)
    return figure


FIGURES: dict[str, tuple[str, Callable[[Comparison], Figure | None], bool]] = {
    "throughput": ("throughput against requests in flight", throughput, False),
    "latency": ("latency against requests in flight", latency, False),
    "gain": ("throughput over the baseline, repeat by repeat", gain, False),
    "efficiency": ("throughput over the ceiling, repeat by repeat", efficiency, False),
    "batches": ("executed batch sizes", batches, False),
    "stages": ("where the time of a request goes", stages, True),
}


def _axes(label: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=NARROW, layout="constrained")
    axes = figure.subplots()
    plain(axes)
    axes.set(xlabel="requests in flight (concurrency)", ylabel=label)
    return figure, axes


def _lines(
    axes: Axes,
    comparison: Comparison,
    value: Callable[[Row], float | None],
    repeats: Callable[[Row], Iterable[float | None]],
) -> None:
    """Draw a line per configuration through its middles, with whiskers over the repeats; marked points are hollow."""
    for number, name in enumerate(comparison.config_names):
        points = [(row, middle) for row in comparison.of(name) if (middle := value(row)) is not None]
        if not points:
            continue
        colour = _colour(comparison, name)
        numbers = [row.load.concurrency for row, _ in points]
        axes.plot(numbers, [middle for _, middle in points], color=colour)
        axes.plot([], [], color=colour, marker=SHAPES[number % len(SHAPES)], label=name)
        for row, middle in points:
            ends = [end for end in repeats(row) if end is not None]
            axes.plot([row.load.concurrency] * 2, [min(ends), max(ends)], color=colour, linewidth=1)
            face = PAPER if row.marks else colour
            axes.plot(row.load.concurrency, middle, SHAPES[number % len(SHAPES)], color=colour, markerfacecolor=face)


def _ratios(comparison: Comparison, label: str, quotients: Callable[[Row], list[float]]) -> Figure | None:
    """Lines through the geometric means of the quotients, one for each repeat."""
    if not any(map(quotients, comparison.rows)):
        return None
    figure, axes = _axes(label)

    def middle(row: Row) -> float | None:
        values = quotients(row)
        return math.prod(values) ** (1 / len(values)) if values else None

    _lines(axes, comparison, middle, quotients)
    axes.axhline(1, color=INK, linewidth=1)
    return _finished(figure, axes)


def _stack(axes: Axes, rows: list[Row]) -> None:
    parts = {label: [_stage_ms(row.stages, field) for row in rows] for label, (field, _) in STAGES.items()}
    stacked(axes, [row.config_name for row in rows], parts, {label: colour for label, (_, colour) in STAGES.items()})
    axes.set_xlabel("ms per request (mean)")


def _stage_ms(stages: Stages, field: str) -> float:
    return (getattr(stages, field) or 0.0) / 1e3


def _finished(figure: Figure, axes: Axes) -> Figure:
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    handles, labels = axes.get_legend_handles_labels()
    columns = len(labels) if sum(len(label) + 5 for label in labels) < 66 else 2
    figure.legend(handles, labels, loc="outside upper left", ncols=columns, columnspacing=1.4)
    return figure


def _colour(comparison: Comparison, name: str) -> str:
    others = [other for other in comparison.config_names if other != BASELINE]
    return GREY if name == BASELINE else COLOURS[others.index(name) % len(COLOURS)]


def _ms(microseconds: float | None) -> float | None:
    return None if microseconds is None else microseconds / 1e3
