"""A figure of requests that wait and run together: a band per configuration, or per change of it."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import altair as alt

from perf.report.figure import INK, PAPER, Figure, Palette, Row, Zoom, hover, lit, source, zoomable

# Pixels of a request. A line of text above a band has the height of two, on a phone this many characters fit in it.
PIXELS, LINE = 7, 50


@dataclass(frozen=True, kw_only=True)
class Wait:
    """One request: milliseconds since the start of its band, and what else a reader sees of it."""

    arrived_ms: float
    started_ms: float
    ended_ms: float
    more: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One execution with its requests. `key` is its entry in the palette; `more` is what else a reader sees of it."""

    key: str
    requests: tuple[Wait, ...]
    more: Mapping[str, str] = field(default_factory=dict)

    @property
    def started_ms(self) -> float:
        """The start; of traced requests the first, as the server notes each at its own time."""
        return min(each.started_ms for each in self.requests)

    @property
    def ended_ms(self) -> float:
        """The end."""
        return max(each.ended_ms for each in self.requests)


@dataclass(frozen=True, kw_only=True)
class Band:
    """The executions of one configuration in order of their start; `text` is above them, in lines."""

    text: tuple[str, ...]
    batches: tuple[Batch, ...]

    @property
    def requests(self) -> int:
        """The number of requests."""
        return sum(len(batch.requests) for batch in self.batches)


def queue_timeline(bands: Sequence[Band], palette: Palette, *, caption: str, near_ms: float) -> Figure:
    """The bands below each other: a thin line per request while it waits, and a box per execution over its requests.

    A button of the figure shows the first `near_ms` milliseconds.
    """
    waits: list[Row] = []
    boxes: list[Row] = []
    texts: list[Row] = []
    top = 0
    for band in bands:
        key = band.batches[0].key if len({batch.key for batch in band.batches}) == 1 else ""
        lines = [line for text in band.text for line in textwrap.wrap(text, LINE)]
        texts.append({"configuration": key, "x": 0, "y": top + 2, "text": lines})
        top += 2 * len(lines) + 4
        for row in _rows(band, top):
            (boxes if "y2" in row else waits).append(row)
        top += band.requests
    last = max(batch.ended_ms for band in bands for batch in band.batches)
    y = alt.Y("y:Q", axis=None, scale=alt.Scale(domain=[0, top], reverse=True, nice=False))
    scale = alt.Scale(domain=[0, last], nice=False)
    x = alt.X("x:Q", title="ms since the first request", axis=alt.Axis(tickCount=8), scale=scale)
    threads = alt.Chart(source(waits)).mark_bar(height=3, color=INK, opacity=0.45)
    rectangles = alt.Chart(source(boxes)).mark_rect(stroke=PAPER, strokeWidth=1.5, cornerRadius=2)
    captions = alt.Chart(source(texts)).mark_text(align="left", baseline="top", lineHeight=14)
    ends = {"x": x, "x2": "x2:Q", "y": y}
    chart = (
        rectangles.encode(**ends, y2="y2:Q", color=palette.colour, opacity=lit(0.85), tooltip=_seen(boxes))
        + threads.encode(**ends, tooltip=_seen(waits), opacity=lit(0.5))
        + captions.encode(x=x, y=y, text="text:N")
    )
    near = [("all", last), (f"the first {near_ms:g} ms", near_ms)] if near_ms < last else []
    return Figure(
        name="timeline",
        caption=caption,
        chart=zoomable(chart.properties(height=PIXELS * top)),
        wide=True,
        zooms=tuple(Zoom(label=label, x=(0, end), y=(0, top)) for label, end in near),
    )


def _seen(rows: Sequence[Row]) -> list[alt.Tooltip]:
    """All texts of the rows but their place."""
    return hover(*(name for name in rows[0] if name not in ("x", "x2", "y", "y2")))


def _rows(band: Band, top: int) -> Iterator[Row]:
    """The rows of a band from the top: requests in order of arrival within those that run together."""
    number = 0
    for order, batch in enumerate(band.batches, 1):
        yield {
            "configuration": batch.key,
            **{
                "x": batch.started_ms,
                "x2": batch.ended_ms,
                "y": top + number,
                "y2": top + number + len(batch.requests),
            },
            "execution": f"{order} of {len(band.batches)}",
            "requests together": str(len(batch.requests)),
            "started": f"{batch.started_ms:.1f} ms after the first request",
            "took": f"{batch.ended_ms - batch.started_ms:.1f} ms",
            **batch.more,
        }
        for wait in sorted(batch.requests, key=lambda each: each.arrived_ms):
            yield _wait(batch, wait, band, top, number)
            number += 1


def _wait(batch: Batch, wait: Wait, band: Band, top: int, number: int) -> Row:
    return {
        "configuration": batch.key,
        **{"x": wait.arrived_ms, "x2": wait.started_ms, "y": top + number + 0.5},
        "request": f"{number + 1} of {band.requests}",
        "arrived": f"{wait.arrived_ms:.1f} ms after the first",
        "waited": f"{wait.started_ms - wait.arrived_ms:.1f} ms",
        "its batch": f"{len(batch.requests)} requests",
        "executed": f"{wait.ended_ms - wait.started_ms:.1f} ms",
        "answered after": f"{wait.ended_ms - wait.arrived_ms:.1f} ms",
        **wait.more,
    }
