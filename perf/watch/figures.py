"""The figures of the live page: empty ones, into which the page streams the rows of `points`."""

import math
from typing import Any

import altair as alt

from perf.report.figure import COLOURS, INK, Chart, Figure, hover
from perf.watch.facts import PERCENTILES, name

DEATH = "#D55E00"
# Rows that the page sends into each figure, and events into each one over time.
ROWS, MARKS = "rows", "marks"
SHADES = [*COLOURS, "#56B4E9", "#E69F00", "#808894"]
# What the page sets in each figure: the ends of axes, and the lines of a figure that names none.
SIGNALS: dict[str, Any] = {"begin": 0, "end": 1, "top": 1, "right": 3.1, "names": ["tritonserver"]}
TIME = "[begin, end]"
NINES = (0.1, 0.5, 0.9, 0.99, 0.999, 0.9999)


def figures() -> tuple[Figure, ...]:
    """All figures in the order of the page."""
    return (
        _figure("rates", "Requests and rows by the second", "/s", ["requests", "rows", "refused", "failed"]),
        _batches(),
        _figure(
            "percentiles", "Latency in the server, percentiles of its last minute", "ms", [*map(name, PERCENTILES)]
        ),
        _figure("times", "Mean time of a request in the queue and in the model", "ms", ["queue", "compute"]),
        _distribution(),
        _figure("waiting", "Requests that wait in the queue, the most at a time", "requests", ["waiting"]),
        _figure("padding", "Share of padding in what the model computed", "%", ["padding"]),
        _figure("busy", "CPU by process, per cent of a core; GPUs, per cent of their time", "%"),
        _figure("memory", "Memory by process, without what processes share", "GiB"),
    )


def _figure(figure: str, caption: str, unit: str, lines: list[str] | None = None) -> Figure:
    layers = (_tips(), _lines(unit, lines), _marks())
    return Figure(name=figure, caption=caption, chart=_sized(alt.layer(*layers), TIME, has_names=lines is None))


def _sized(chart: Chart, across: str, *, has_names: bool = False) -> Chart:
    """The chart with the ends of its axes as signals, which the page sets.

    Vega-Lite would take them from the rows of each layer, and warns while there are none; the scales of the compiled
    chart, x, y and colour, are changed in their place.
    """
    domains = (across, "[0, top]", *(["names"] if has_names else []))
    patch = [
        {"op": "replace", "path": f"/scales/{at}/domain", "value": {"signal": signal}}
        for at, signal in enumerate(domains)
    ]
    signals = (alt.param(name=name, value=value) for name, value in SIGNALS.items())
    sized: Chart = chart.add_params(*signals).properties(height=170, usermeta={"embedOptions": {"patch": patch}})
    return sized


def _rows(kind: str) -> Chart:
    return alt.Chart(alt.NamedData(ROWS)).transform_filter(f"datum.kind == '{kind}'")


def _time() -> alt.X:
    axis = alt.Axis(title=None, grid=False, tickCount=4, labelOverlap="greedy", labelFlush=True, format="%H:%M")
    return alt.X("at:T", axis=axis)


def _lines(unit: str, names: list[str] | None) -> Chart:
    """A line for each name; without names for those that the page sets."""
    scale = alt.Scale(domain=names, range=SHADES[: len(names)]) if names else alt.Scale(range=SHADES)
    # Four short names, or two long ones, are as wide as a phone.
    columns = alt.Legend(symbolType="stroke", columns=4 if names else 2, labelLimit=150, columnPadding=8)
    legend = columns if names is None or len(names) > 1 else None
    line = _rows("line").mark_line(strokeWidth=1.6, clip=True, aria=False)
    drawn: Chart = line.encode(x=_time(), y=_height(unit), color=alt.Color("line:N", scale=scale, legend=legend))
    return drawn


def _height(unit: str) -> alt.Y:
    return alt.Y("value:Q", title=unit, axis=alt.Axis(tickCount=4, format=",.4~g"), scale=alt.Scale(nice=True))


def _tips() -> Chart:
    """An invisible bar for each time, so that a reader need not hit a line."""
    bar = _rows("tip").mark_rect(opacity=0, clip=True, aria=False)
    ends = {"y": alt.value(0), "y2": alt.value("height")}
    drawn: Chart = bar.encode(x=_time(), x2="until:T", tooltip=hover("time", "values"), **ends)
    return drawn


def _marks() -> Chart:
    rule = alt.Chart(alt.NamedData(MARKS)).mark_rule(strokeWidth=2, clip=True, aria=False)
    of_death = "datum.kind == 'death'"
    drawn: Chart = rule.encode(
        x=_time(),
        color=alt.condition(of_death, alt.value(DEATH), alt.value(INK)),
        strokeDash=alt.condition(of_death, alt.value([1, 0]), alt.value([4, 3])),
        tooltip=hover("time", "values"),
    )
    return drawn


def _batches() -> Figure:
    """The executed sizes, darker if more executions had them, and the mean rows of an execution."""
    cell = _rows("cell").mark_rect(color=COLOURS[0], clip=True, aria=False)
    cells = cell.encode(
        x=_time(),
        x2="until:T",
        y=alt.Y("least:Q"),
        y2="most:Q",
        opacity=alt.Opacity("share:Q", scale=alt.Scale(domain=[0, 1], range=[0.12, 0.85]), legend=None),
        tooltip=hover("time", "values"),
    )
    mean = (
        _rows("line")
        .mark_line(color=DEATH, strokeWidth=1.6, clip=True, aria=False)
        .encode(x=_time(), y=_height("rows"))
    )
    caption = "Rows in one execution: darker where more executions had them, and their mean (orange)"
    return Figure(name="batches", caption=caption, chart=_sized(alt.layer(cells, mean, _marks()), TIME))


def _distribution() -> Figure:
    """Milliseconds by share of requests, on an axis that has room for the slowest."""
    ticks = "format(100 * (1 - pow(10, -datum.value)), '.6~g') + ' %'"
    values = [-math.log10(1 - share) for share in NINES]
    title = "requests answered within that time"
    axis = alt.Axis(values=values, labelExpr=ticks, title=title, grid=True, labelOverlap="greedy")
    points = _rows("line").encode(
        x=alt.X("nines:Q", axis=axis, scale=alt.Scale(nice=False)),
        y=_height("ms"),
        tooltip=hover("time", "values"),
    )
    chart = alt.layer(
        points.mark_line(color=COLOURS[0], aria=False),
        points.mark_point(color=COLOURS[0], filled=True, size=50, aria=False),
    )
    caption = "Latency in the server: the time within which a share of the requests was answered"
    return Figure(name="distribution", caption=caption, chart=_sized(chart, "[0, right]"))
