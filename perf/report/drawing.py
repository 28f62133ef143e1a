"""Drawing with matplotlib: one palette, common kinds of bars, and figures as SVG text for a page or as PNG files.

The SVG has no background and takes its colours from the page (`currentColor`, `--paper`), so it is legible in a light
and in a dark theme. Equal figures give equal text, and figures of different names share no id.
"""

import html
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, MultipleLocator

from triton_batching.terminal import Mistake

# The SVG replaces them by the page's own colours; a PNG keeps them.
INK, PAPER = "#1f2328", "#fefefe"
# The colours of Okabe and Ito's palette with a contrast of 3 on white and on near-black.
GREY, COLOURS = "#808894", ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
SHAPES = "osD^v"
# Inches. The page shows a figure at about 450 px, a wide one at 900 px, where 11 points become 11 to 12 px.
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


def plain(axes: Axes, lines: str = "y") -> None:
    """Grid lines on one axis, no ticks."""
    axes.grid(axis="x" if lines == "x" else "y", color=INK, alpha=0.14, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)


def svg(figure: Figure, name: str, alt: str = "") -> str:
    """The figure as one `<svg>` element, with ids that start with `name`; `alt` is its text for screen readers."""
    FigureCanvasSVG(figure)
    buffer = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = re.sub(r"<metadata>.*?</metadata>", "", buffer.getvalue(), flags=re.DOTALL)
    text = text[text.index("<svg") :].strip()
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'(href="|url\()#', rf"\1#{name}-", text)
    text = text.replace(INK, "currentColor").replace(PAPER, "var(--paper, white)")
    # A style sheet would apply to the whole page; the page also sets the fonts and the size.
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text, flags=re.DOTALL)
    text = re.sub(r" font-family: [^;\"]+;", "", text)
    text = re.sub(r' (?:width|height)="[\d.]+pt"', "", text, count=2)
    label = f' aria-label="{html.escape(alt)}"' if alt else ""
    return text.replace("<svg", f'<svg stroke-linejoin="round" role="img"{label}', 1)


def png(figure: Figure, path: Path, title: str) -> Path:
    """Write the figure on white at 200 dots per inch, with a title; raises `Mistake` if the folder is closed."""
    figure.set_facecolor("white")
    _title(figure, title)
    FigureCanvasAgg(figure)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=200)
    except OSError as error:
        raise Mistake(f"{path}: cannot be written ({error.strerror}). Name another folder.") from error
    return path


def _title(figure: Figure, text: str) -> None:
    """Set the title: of the legend if there is one, which would cover a title of the figure."""
    for legend in figure.legends:
        legend.set_title(text)
        legend.set_alignment("left")
    if not figure.legends:
        figure.suptitle(text, fontsize=11, x=0.01, ha="left")


def batch_bars(
    panels: Sequence[tuple[str, Mapping[int, int], str]],
    label: str,
    predicted: Sequence[Mapping[int, int] | None] = (),
) -> Figure:
    """The share of rows by batch size: a panel per (title, executions by batch size, colour), with predictions."""
    figure = Figure(figsize=NARROW, layout="constrained")
    rows = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    expected = [*predicted, *[None] * (len(panels) - len(predicted))]
    largest = max(size for sizes in (*(batches for _, batches, _ in panels), *filter(None, expected)) for size in sizes)
    for axes, (title, batches, colour), prediction in zip(rows, panels, expected, strict=True):
        shares = row_shares(batches)
        axes.bar(list(shares), list(shares.values()), width=max(0.8, largest / 90), color=colour)
        axes.set_title(title, loc="left", fontsize=11, pad=3)
        plain(axes)
        top = max(shares.values())
        if prediction:
            line = row_shares(prediction)
            axes.plot(
                list(line), list(line.values()), "_", color=INK, markersize=max(4, 260 / largest), label="predicted"
            )
            top = max(top, *line.values())
        axes.set(xlim=(0.25, largest + 0.75), ylim=(0, min(105, 1.2 * top)))
        axes.yaxis.set_major_locator(MultipleLocator(50) if top > 50 else MaxNLocator(3, integer=True))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    rows[-1].set_xlabel(label)
    figure.supylabel("% of rows", fontsize=11)
    return figure


def row_shares(batches: Mapping[int, int]) -> dict[int, float]:
    """The percentage of all rows by the batch size of their execution."""
    total = sum(size * count for size, count in batches.items())
    return {size: 100 * size * count / total for size, count in sorted(batches.items())}


def stacked(axes: Axes, names: Sequence[str], parts: Mapping[str, Sequence[float]], colours: Mapping[str, str]) -> None:
    """Draw a stacked bar per name, the first on top; `parts` has a value per name, in order from the left."""
    left = [0.0] * len(names)
    for label, values in parts.items():
        axes.barh(names, values, left=left, height=0.62, color=colours[label], label=label)
        left = [start + value for start, value in zip(left, values, strict=True)]
    plain(axes, "x")
    axes.set_xlim(0, max(left) * 1.04 or 1)
    axes.invert_yaxis()
