"""How the figures of every page are drawn: matplotlib, one palette, SVG text for a page or PNG files.

The SVG has no background and takes ink and paper from the page (`currentColor`, `--paper`), so it reads in a light and
in a dark theme; equal figures give equal text, and no id occurs in two figures of different name.
"""

import html
import io
import re
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

# Stand-ins for the page's own colours, replaced in the SVG; as they are, they are right for a white PNG.
INK, PAPER = "#1f2328", "#fefefe"
# Okabe and Ito's palette for every kind of colour vision, those with a contrast of 3 on white and on near-black.
GREY, COLOURS = "#808894", ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
SHAPES = "osD^v"
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


def plain(axes: Axes, lines: str = "y") -> None:
    """Grid lines on one axis, no ticks."""
    axes.grid(axis="x" if lines == "x" else "y", color=INK, alpha=0.14, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)


def svg(figure: Figure, name: str, alt: str = "") -> str:
    """The figure as one `<svg>` element, with ids that start with `name` and the colours of the page.

    `alt` is what is said in place of the figure to those who do not see it.
    """
    FigureCanvasSVG(figure)
    written = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
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
    label = f' aria-label="{html.escape(alt)}"' if alt else ""
    return text.replace("<svg", f'<svg stroke-linejoin="round" role="img"{label}', 1)


def png(figure: Figure, path: Path, title: str) -> Path:
    """The figure on white, 200 dots per inch, with its title above it."""
    figure.set_facecolor("white")
    _title(figure, title)
    FigureCanvasAgg(figure)
    figure.savefig(path, dpi=200)
    return path


def _title(figure: Figure, text: str) -> None:
    """Above everything: as the title of the legend where there is one, which would else cover it."""
    for legend in figure.legends:
        legend.set_title(text)
        legend.set_alignment("left")
    if not figure.legends:
        figure.suptitle(text, fontsize=11, x=0.01, ha="left")
