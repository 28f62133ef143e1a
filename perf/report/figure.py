"""A figure of a page: an Altair chart with a caption, as a specification for the page or as a PNG file.

A chart has the width of its place on the page and takes its colours from it (`currentColor`, `--paper`), so it is
legible in a light and in a dark theme and on paper. Marks whose rows have a `configuration` are dimmed while the page
shows others (`picked`, which `explore.js` sets in all figures together).
"""

import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert
from markupsafe import Markup

from triton_batching.terminal import Mistake

Chart = alt.Chart | alt.LayerChart | alt.FacetChart
Row = Mapping[str, object]

# The page's own colours, and what a PNG file has in their place.
INK, PAPER = "currentColor", "var(--paper)"
ON_WHITE = {INK: "#1f2328", PAPER: "#ffffff"}
# The colours of Okabe and Ito's palette with a contrast of 3 on white and on near-black.
GREY, COLOURS = "#808894", ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
# The names of shapes in Vega, with their outlines for the legend of the page.
SHAPES = {
    "square": "M-4-4H4V4H-4Z",
    "circle": "M-4.5 0A4.5 4.5 0 1 0 4.5 0A4.5 4.5 0 1 0-4.5 0Z",
    "diamond": "M0-5L4.5 0L0 5L-4.5 0Z",
    "triangle-up": "M0-4.5L5 4.5H-5Z",
    "triangle-down": "M0 4.5L5-4.5H-5Z",
}
DIM = 0.12
# What has a legend for the whole page: a configuration, or the group of configurations with its colour.
FIELDS = ("configuration", "series")
# Pixels. In a PNG file a figure has the width that it has on a wide page.
HEIGHT, NARROW, WIDE = 280, 450, 920
CONFIG = {
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {
        **{"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal", "labelLimit": 0, "labelPadding": 6},
        **{
            "labelColor": INK,
            "titleColor": INK,
            "gridColor": INK,
            "gridOpacity": 0.14,
            "domain": False,
            "ticks": False,
        },
    },
    "legend": {
        "labelFontSize": 12,
        "labelLimit": 0,
        "labelColor": INK,
        "orient": "top",
        "title": None,
        "columns": 3,
        "symbolBaseStrokeColor": INK,
        "symbolBaseFillColor": "transparent",
        "symbolStrokeWidth": 2,
    },
    "text": {"fontSize": 12, "color": INK},
    "rule": {"color": INK},
}


@dataclass(frozen=True, kw_only=True)
class Zoom:
    """A part of a figure that a button of the page shows: the ends of both axes, which the chart calls x and y."""

    label: str
    x: tuple[float, float]
    y: tuple[float, float]

    @property
    def ends(self) -> str:
        """Both ends of both axes for the script of the page."""
        return json.dumps([self.x, self.y])


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A chart, and a caption that states its finding. `name` is part of a file name; a `wide` one fills the page.

    `zooms` need a chart that is `zoomable`.
    """

    name: str
    caption: str
    chart: Chart
    wide: bool = False
    zooms: tuple[Zoom, ...] = ()

    @property
    def specification(self) -> dict[str, Any]:
        """The chart in Vega-Lite, which fills the width of its place."""
        chart = self.chart.add_params(alt.param(name="picked", value=[]))
        content: dict[str, Any] = chart.properties(width="container", background="transparent").to_dict()
        content.pop("$schema")
        fit = {"type": "fit-x", "contains": "padding"}
        content["datasets"] = {name: json.loads(text) for name, text in content.pop("datasets", {}).items()}
        return content | {"config": CONFIG, "autosize": fit, "description": self.caption}

    @property
    def json(self) -> Markup:
        """The specification inside of HTML. Configurations have no legend in the chart, but one for the whole page."""
        text = json.dumps(without_legends(self.specification), separators=(",", ":"), allow_nan=False)
        return Markup(text.replace("<", "\\u003c"))

    def png(self, path: Path, title: str) -> Path:
        """Write the figure on white, with a title; raises `Mistake` if the folder is closed."""
        width = WIDE if self.wide else NARROW
        content = self.specification | {"width": width, "background": "white"}
        content["title"] = {"text": title.splitlines(), "anchor": "start", "fontSize": 12, "fontWeight": "normal"}
        text = json.dumps(content)
        for of_page, on_white in ON_WHITE.items():
            text = text.replace(of_page, on_white)
        picture = vl_convert.vegalite_to_png(text, scale=2)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(picture)
        except OSError as error:
            raise Mistake(f"{path}: cannot be written ({error.strerror}). Name another folder.") from error
        return path


def without_legends(content: Any) -> Any:
    """A specification in which the channels of a configuration have no legend."""
    if isinstance(content, list):
        return [without_legends(each) for each in content]
    if not isinstance(content, dict):
        return content
    legend = {"legend": None} if content.get("field") in FIELDS and "scale" in content else {}
    return {name: without_legends(each) if name != "datasets" else each for name, each in content.items()} | legend


@dataclass(frozen=True, kw_only=True)
class Palette:
    """The colour and the shape of each configuration, or of each value of another `field`, in all figures of a page."""

    colours: Mapping[str, str]
    field: str = "configuration"

    @classmethod
    def of(cls, names: Iterable[str], grey: Sequence[str] = ()) -> "Palette":
        """Grey for some, a colour for each other name."""
        order = list(dict.fromkeys(names))
        others = [name for name in order if name not in grey]
        shades = {name: COLOURS[at % len(COLOURS)] for at, name in enumerate(others)}
        return cls(colours={name: shades.get(name, GREY) for name in order})

    @property
    def colour(self) -> alt.Color:
        """The channel of the colour."""
        return alt.Color(f"{self.field}:N", scale=_scale(self.colours, list(self.colours.values())))

    @property
    def shape(self) -> alt.Shape:
        """The channel of the shape, so that a configuration is known without its colour."""
        return alt.Shape(f"{self.field}:N", scale=_scale(self.colours, list(self.shapes.values())))

    @property
    def shapes(self) -> Mapping[str, str]:
        """The shape of each configuration."""
        return dict(zip(self.colours, itertools.cycle(SHAPES), strict=False))

    @property
    def outlines(self) -> Mapping[str, str]:
        """The outline of each configuration's shape as the path of an SVG."""
        return {name: SHAPES[shape] for name, shape in self.shapes.items()}


def _scale(names: Iterable[str], values: list[str]) -> alt.Scale:
    return alt.Scale(domain=list(names), range=values)


def source(rows: Iterable[Row]) -> alt.InlineData:
    """The rows of a chart, as text: Altair copies a chart's data at each step, and checks each row."""
    return alt.InlineData(
        values=json.dumps([*map(dict, rows)], allow_nan=False), format=alt.JsonDataFormat(type="json")
    )


def lit(bright: float = 1.0) -> Any:
    """The opacity of a mark: dimmed while the page shows other configurations."""
    shown = "!length(picked) || indexof(picked, datum.configuration) >= 0"
    return alt.condition(shown, alt.value(bright), alt.value(min(bright, DIM)))


def hover(*names: str) -> list[alt.Tooltip]:
    """What a reader sees of a mark: these fields of its row."""
    return [alt.Tooltip(field=name, type="nominal", title=name) for name in names]


def zoomable(chart: Chart) -> Chart:
    """The chart with axes that can be dragged; the wheel zooms with Shift, so that the page still scrolls."""
    zoomed: Chart = chart.add_params(alt.selection_interval(name="zoom", bind="scales", zoom="wheel![event.shiftKey]"))
    return zoomed


def finite(value: float) -> float | None:
    """The value, or None for infinity, which JSON has not."""
    return value if math.isfinite(value) else None


def log_scale() -> alt.Scale:
    """A logarithmic axis with room at its ends."""
    return alt.Scale(type="log", nice=False, padding=14)


def numbers(ticks: int = 6, *, grid: bool = True) -> alt.Axis:
    """An axis with plain numbers."""
    return alt.Axis(tickCount=ticks, format=",.6~g", grid=grid, labelOverlap="greedy")


def horizontal(y: float, text: str, colour: str = INK) -> Chart:
    """A labelled line across the chart."""
    line = alt.Chart(source([{"at": float(y), "text": text}])).encode(y=alt.Y("at:Q"))
    rule = line.mark_rule(strokeDash=[5, 3], color=colour, strokeWidth=1.5)
    words = line.mark_text(align="left", baseline="bottom", dx=3, dy=-2).encode(x=alt.value(0), text="text:N")
    return alt.layer(rule, words)


def vertical(x: float, text: str, colour: str = INK, *, before: bool = False) -> Chart:
    """A labelled line from the bottom to the top of the chart; the label is after or `before` it."""
    line = alt.Chart(source([{"at": float(x), "text": text}])).encode(x=alt.X("at:Q"))
    rule = line.mark_rule(strokeDash=[5, 3], color=colour, strokeWidth=1.5)
    place: Any = {"align": "right", "dx": -4} if before else {"align": "left", "dx": 4}
    words = line.mark_text(baseline="top", **place).encode(y=alt.value(0), text="text:N")
    return alt.layer(rule, words)
