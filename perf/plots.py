"""Figures of a comparison, drawn by matplotlib from rows alone, as SVG text for a page or as PNG files.

The SVG has no background and takes ink and paper from the page (`currentColor`, `--paper`), so it reads in a light and
in a dark theme; equal rows give equal text, and no id occurs in two figures of different name.
"""

import io
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, MultipleLocator

from perf.summary import BASELINE, Comparison, Ratio, Row, Stages

# Stand-ins for the page's own colours, replaced in the SVG; as they are, they are right for a white PNG.
INK, PAPER = "#1f2328", "#fefefe"
# Okabe and Ito's palette for every kind of colour vision, those with a contrast of 3 on white and on near-black.
GREY, COLOURS = "#808894", ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
SHAPES = "osD^v"
STAGES = {
    "client send": ("client_send_us", "#56B4E9"),
    "network": ("network_us", GREY),
    "queue": ("queue_us", "#E69F00"),
    "compute input": ("compute_input_us", "#CC79A7"),
    "compute infer": ("compute_infer_us", "#0072B2"),
    "compute output": ("compute_output_us", "#009E73"),
    "client receive": ("client_receive_us", "#D55E00"),
}
# Inches; a figure is shown at about 450 px (a wide one at 900), where 11 points become 11 to 12 px.
NARROW, WIDE = (6.2, 3.7), (12.4, 3.9)
STYLE: dict[Any, Any] = {
    "axes.edgecolor": INK,
    "axes.facecolor": "none",
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.facecolor": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 11,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "svg.fonttype": "none",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


@dataclass(frozen=True, kw_only=True)
class Plot:
    """One figure: `name` is fit for a file, `caption` says what is seen, `svg` goes into a page."""

    name: str
    caption: str
    wide: bool
    svg: str


def plots(comparison: Comparison, prefix: str = "") -> tuple[Plot, ...]:
    """Every figure that the rows allow; `prefix` keeps the ids of several comparisons in one page apart."""
    found = []
    for name, (caption, draw, wide) in FIGURES.items():
        with mpl.rc_context(STYLE | {"svg.hashsalt": f"{prefix}{name}"}):
            figure = draw(comparison)
            if figure is not None:
                svg = _svg(figure, f"{prefix}{name}")
                found.append(Plot(name=name, caption=caption, wide=wide, svg=svg))
    return tuple(found)


def save_png(comparison: Comparison, folder: Path, prefix: str = "") -> tuple[Path, ...]:
    """Write the same figures as PNG on white, 200 dots per inch."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, (caption, draw, _) in FIGURES.items():
        with mpl.rc_context(STYLE | {"figure.facecolor": "white"}):
            figure = draw(comparison)
            if figure is not None:
                _title(figure, f"{comparison.model}: {caption}")
                written.append(folder / f"{prefix}{name}.png")
                FigureCanvasAgg(figure)
                figure.savefig(written[-1], dpi=200)
    return tuple(written)


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
    """95th percentile of the request latency against requests in flight."""
    figure, axes = _axes("p95 latency, ms")
    _lines(axes, comparison, lambda row: _ms(row.p95_us), lambda row: map(_ms, row.p95_us_by_repeat.values()))
    return _finished(figure, axes)


def gain(comparison: Comparison) -> Figure | None:
    """Rows per second over those of the baseline at the same concurrency."""
    return _ratios(comparison, "rows/s, times the baseline", _over_baseline)


def efficiency(comparison: Comparison) -> Figure | None:
    """Rows per second over those of onnxruntime alone."""
    return _ratios(comparison, "rows/s, times the ceiling", lambda row: row.to_ceiling)


def batches(comparison: Comparison) -> Figure | None:
    """What share of the rows ran in executions of which size, one panel per configuration."""
    found = [comparison.at(name, max(comparison.common_concurrencies, default=0)) for name in comparison.config_names]
    rows = [row for row in found if row is not None and row.batches]
    if not rows:
        return None
    figure = Figure(figsize=NARROW, layout="constrained")
    panels = figure.subplots(len(rows), 1, sharex=True, squeeze=False)[:, 0]
    largest = max(size for row in rows for size in row.batches)
    for axes, row in zip(panels, rows, strict=True):
        total = sum(size * count for size, count in row.batches.items())
        shares = [100 * size * count / total for size, count in row.batches.items()]
        axes.bar(list(row.batches), shares, width=max(0.8, largest / 90), color=_colour(comparison, row.config_name))
        axes.set_title(row.config_name, loc="left", fontsize=11, pad=3)
        _plain(axes)
        axes.set(xlim=(0.25, largest + 0.75), ylim=(0, min(105, 1.2 * max(shares))))
        axes.yaxis.set_major_locator(MultipleLocator(50) if max(shares) > 50 else MaxNLocator(3, integer=True))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    panels[-1].set_xlabel(f"rows in one execution, at concurrency {rows[0].load.concurrency}")
    figure.supylabel("% of rows", fontsize=11)
    return figure


def stages(comparison: Comparison) -> Figure | None:
    """Mean time of a request by stage, at the lowest and at the highest concurrency that all configurations share."""
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
    "batches": ("batches that the server really formed", batches, False),
    "stages": ("where the time of a request goes", stages, True),
}


def _axes(label: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=NARROW, layout="constrained")
    axes = figure.subplots()
    _plain(axes)
    axes.set(xlabel="requests in flight (concurrency)", ylabel=label)
    return figure, axes


def _plain(axes: Axes, lines: str = "y") -> None:
    axes.grid(axis="x" if lines == "x" else "y", color=INK, alpha=0.14, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)


def _lines(
    axes: Axes,
    comparison: Comparison,
    value: Callable[[Row], float | None],
    repeats: Callable[[Row], Iterable[float | None]],
) -> None:
    """A line per configuration over its medians, a whisker over the repeats; a marked point is hollow."""
    for number, name in enumerate(comparison.config_names):
        points = [(row, middle) for row in comparison.of(name) if (middle := value(row)) is not None]
        if not points:
            continue
        colour = _colour(comparison, name)
        numbers = [row.load.concurrency for row, _ in points]
        axes.plot(numbers, [middle for _, middle in points], color=colour)
        axes.plot([], [], color=colour, marker=SHAPES[number % len(SHAPES)], label=name)
        for row, middle in points:
            ends = [one for one in repeats(row) if one is not None]
            axes.plot([row.load.concurrency] * 2, [min(ends), max(ends)], color=colour, linewidth=1)
            face = PAPER if row.marks else colour
            axes.plot(row.load.concurrency, middle, SHAPES[number % len(SHAPES)], color=colour, markerfacecolor=face)


def _ratios(comparison: Comparison, label: str, ratio: Callable[[Row], Ratio | None]) -> Figure | None:
    if not any(ratio(row) for row in comparison.rows):
        return None
    figure, axes = _axes(label)

    def ends(row: Row) -> tuple[float, ...]:
        quotient = ratio(row)
        return (quotient.low, quotient.high) if quotient else ()

    def middle(row: Row) -> float | None:
        quotient = ratio(row)
        return quotient.median if quotient else None

    _lines(axes, comparison, middle, ends)
    axes.axhline(1, color=INK, linewidth=1)
    return _finished(figure, axes)


def _over_baseline(row: Row) -> Ratio | None:
    """The baseline over itself is the line at 1."""
    return None if row.config_name == BASELINE else row.to_baseline


def _stack(axes: Axes, rows: list[Row]) -> None:
    names = [row.config_name for row in rows]
    left = [0.0] * len(rows)
    for label, (field, colour) in STAGES.items():
        values = [_stage_ms(row.stages, field) for row in rows]
        axes.barh(names, values, left=left, height=0.62, color=colour, label=label)
        left = [start + value for start, value in zip(left, values, strict=True)]
    _plain(axes, "x")
    axes.set(xlabel="ms per request (mean)", xlim=(0, max(left) * 1.04 or 1))
    axes.invert_yaxis()


def _stage_ms(of: Stages, field: str) -> float:
    return (getattr(of, field) or 0.0) / 1e3


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


def _title(figure: Figure, text: str) -> None:
    """Above everything: as the title of the legend where there is one, which would else cover it."""
    for legend in figure.legends:
        legend.set_title(text)
        legend.set_alignment("left")
    if not figure.legends:
        figure.suptitle(text, fontsize=11, x=0.01, ha="left")


def _svg(figure: Figure, name: str) -> str:
    """The figure as one `<svg>` element, with ids that start with `name` and the colours of the page."""
    FigureCanvasSVG(figure)
    written = io.StringIO()
    figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = re.sub(r"<metadata>.*?</metadata>", "", written.getvalue(), flags=re.DOTALL)
    text = text[text.index("<svg") :].strip()
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'(href="|url\()#', rf"\1#{name}-", text)
    text = text.replace(INK, "currentColor").replace(PAPER, "var(--paper, white)")
    # A style sheet inside would apply to the whole page; faces and the size are the page's business too.
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text, flags=re.DOTALL)
    text = re.sub(r" font-family: [^;\"]+;", "", text)
    text = re.sub(r' (?:width|height)="[\d.]+pt"', "", text, count=2)
    return text.replace("<svg", '<svg stroke-linejoin="round" role="img"', 1)
