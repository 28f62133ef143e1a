"""A chart of where the time of a request goes: a stacked bar per configuration or percentile."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import altair as alt

from perf.report.figure import Chart, hover, lit, source

HOVER = ("configuration", "requests", "part", "time", "share")
ROW_HEIGHT = 34


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A bar: its name, the configuration, which requests it is of, and the milliseconds of each part."""

    name: str
    configuration: str
    requests: str
    ms: Mapping[str, float]


def time_parts(bars: Sequence[Bar], colours: Mapping[str, str]) -> Chart:
    """The bars from the top, with the parts from the left in the order of `colours`."""
    order = list(colours)
    rows = [
        {
            "bar": bar.name,
            "configuration": bar.configuration,
            "ms": ms,
            "order": order.index(part),
            "requests": bar.requests,
            "part": part,
            "time": f"{ms:,.3f} ms",
            "share": f"{100 * ms / (sum(bar.ms.values()) or 1):.1f} %",
        }
        for bar in bars
        for part, ms in bar.ms.items()
    ]
    scale = alt.Scale(domain=order, range=list(colours.values()))
    chart: Chart = (
        alt.Chart(source(rows))
        .mark_bar(height=22)
        .encode(
            x=alt.X("ms:Q", title="ms per request", axis=alt.Axis(tickCount=5)),
            y=alt.Y(
                "bar:N",
                title=None,
                sort=[bar.name for bar in bars],
                axis=alt.Axis(grid=False, labelExpr="split(datum.label, ', ')"),
            ),
            color=alt.Color("part:N", scale=scale, legend=alt.Legend(columns=2)),
            order=alt.Order("order:Q"),
            opacity=lit(),
            tooltip=hover(*HOVER),
        )
        .properties(height=ROW_HEIGHT * len(bars) + 10)
    )
    return chart
