"""The figure that explains batching: the same requests with and without it, from traces of a server."""

from collections.abc import Iterator, Sequence

import altair as alt

from perf.records.batch_timeline import BatchTimeline, TimedRequest
from perf.report.figure import INK, Figure, Palette, Row, Zoom, hover, lit, source, zoomable
from perf.stats.percentile import percentile

HOVER = ("configuration", "request", "arrived", "waited", "its batch", "executed", "answered after")
# A request's height in pixels; so many of them are free above a configuration, for its text.
PIXELS, GAP = 7, 8


def timeline(timelines: Sequence[BatchTimeline], palette: Palette) -> Figure:
    """A band per configuration: a line per request while it waits, and a box per execution over its requests."""
    waits: list[Row] = []
    boxes: list[Row] = []
    texts: list[Row] = []
    top = 0
    for each in timelines:
        texts.append({"configuration": each.name, "x": 0, "y": top + GAP - 2, "text": _text(each)})
        waits += _waits(each, top + GAP)
        boxes += _boxes(each, top + GAP)
        top += GAP + len(each.requests)
    last = max(request.ended_ms for each in timelines for request in each.requests)
    y = alt.Y("y:Q", axis=None, scale=alt.Scale(domain=[0, top], reverse=True, nice=False))
    scale = alt.Scale(domain=[0, last], nice=False)
    x = alt.X("x:Q", title="ms since the first request", axis=alt.Axis(tickCount=8), scale=scale)
    lines = alt.Chart(source(waits)).mark_bar(height=3, color=INK, opacity=0.45)
    rectangles = alt.Chart(source(boxes)).mark_rect(stroke="var(--paper)", strokeWidth=1.5, cornerRadius=2)
    captions = alt.Chart(source(texts)).mark_text(align="left", baseline="bottom", lineHeight=14)
    chart = (
        rectangles.encode(
            x=x, x2="x2:Q", y=y, y2="y2:Q", color=palette.colour, opacity=lit(0.85), tooltip=hover(*BOX_HOVER)
        )
        + lines.encode(x=x, x2="x2:Q", y=y, tooltip=hover(*HOVER), opacity=lit(0.5))
        + captions.encode(x=x, y=y, text="text:N", opacity=lit())
    )
    return Figure(
        name="timeline",
        caption=_caption(timelines),
        chart=zoomable(chart.properties(height=PIXELS * top)),
        wide=True,
        zooms=tuple(
            Zoom(label=label, x=(0, end), y=(0, top)) for label, end in (("all", last), ("the first 100 ms", 100))
        ),
    )


BOX_HOVER = ("configuration", "execution", "requests together", "started", "took")


def _waits(each: BatchTimeline, top: int) -> Iterator[Row]:
    size = {id(request): len(batch) for batch in each.batches for request in batch}
    for number, request in enumerate(each.requests):
        yield {
            "configuration": each.name,
            "x": request.arrived_ms,
            "x2": request.started_ms,
            "y": top + number + 0.5,
            "request": f"{number + 1} of {len(each.requests)}",
            "arrived": f"{request.arrived_ms:.1f} ms after the first",
            "waited": f"{request.started_ms - request.arrived_ms:.1f} ms",
            "its batch": f"{size[id(request)]} requests",
            "executed": f"{request.ended_ms - request.started_ms:.1f} ms",
            "answered after": f"{request.ended_ms - request.arrived_ms:.1f} ms",
        }


def _boxes(each: BatchTimeline, top: int) -> Iterator[Row]:
    at = {id(request): number for number, request in enumerate(each.requests)}
    for number, batch in enumerate(each.batches, 1):
        places = [at[id(request)] for request in batch]
        started, ended = min(r.started_ms for r in batch), max(r.ended_ms for r in batch)
        yield {
            "configuration": each.name,
            "x": started,
            "x2": ended,
            "y": top + min(places),
            "y2": top + max(places) + 1,
            "execution": f"{number} of {len(each.batches)}",
            "requests together": str(len(batch)),
            "started": f"{started:.1f} ms after the first request",
            "took": f"{ended - started:.1f} ms",
        }


def _text(each: BatchTimeline) -> list[str]:
    """Two lines, so that they fit on a phone."""
    last = max(request.ended_ms for request in each.requests)
    return [
        f"{each.name}: {len(each.batches)} executions,",
        f"all answered in {last:.0f} ms, half within {_median(each.requests):.0f} ms each",
    ]


def _median(requests: Sequence[TimedRequest]) -> float:
    return float(percentile([request.ended_ms - request.arrived_ms for request in requests], 50))


def _caption(timelines: Sequence[BatchTimeline]) -> str:
    first = timelines[0]
    executions = "; ".join(f"{each.name}: {len(each.batches)}" for each in timelines)
    return (
        f"How batching works, traced on {first.model}: the same {len(first.requests)} requests arrive from left to "
        "right. A thin line is a request that waits, a box is one execution with all requests that run in it together. "
        f"Executions needed: {executions}"
    )
