"""A map of memory: time across, addresses up, a box per buffer. Regions are stacked without gaps between them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import altair as alt

from perf.memory.figures import MIB, mib
from perf.report.figure import COLOURS, GREY, HEIGHT, INK, PAPER, Chart, horizontal, hover, numbers, source

# The part of a node's buffers that are live while the slider of the page is at another node.
PALE = 0.35
HOVER = ("buffer", "kind", "size", "live", "address")


@dataclass(frozen=True, kw_only=True)
class Box:
    """A buffer of a kind, live over the steps from `first` to `last`, both included; `name` says what it holds."""

    name: str
    kind: str
    first: int
    last: int
    address: int
    bytes: int


def memory_map(
    boxes: Sequence[Box],
    regions: Mapping[int, int],
    steps: int,
    *,
    title: str,
    bound_bytes: int,
    bound: str = "lower bound",
) -> Chart:
    """The boxes over the held regions, which are grey, and a line named `bound`; kinds have a colour each.

    Buffers that are live at the step `at` of the page's slider are dark.
    """
    drawn = stacked(regions)
    rows = [_row(box, drawn, regions) for box in boxes]
    kinds = list(dict.fromkeys(box.kind for box in boxes))
    colours = alt.Scale(domain=kinds, range=[COLOURS[at % len(COLOURS)] for at in range(len(kinds))])
    x = alt.X("x:Q", title=title, scale=alt.Scale(domain=[0, steps], nice=False), axis=numbers(grid=False))
    top = max(sum(regions.values()), bound_bytes) / MIB
    y = alt.Y("y:Q", title="address, MiB", scale=alt.Scale(domain=[0, top], nice=False), axis=numbers(grid=False))
    held = [
        {"x": 0, "x2": steps, "y": base / MIB, "y2": (base + regions[address]) / MIB, "region": mib(regions[address])}
        for address, base in drawn.items()
    ]
    live = alt.condition("datum.x <= at && at < datum.x2", alt.value(1), alt.value(PALE))
    ends = {"x": x, "x2": "x2:Q", "y": y, "y2": "y2:Q"}
    ground = alt.Chart(source(held)).mark_rect(color=GREY, opacity=0.22, stroke=PAPER)
    buffers = alt.Chart(source(rows)).mark_rect(stroke=PAPER, strokeWidth=0.5)
    chart: Chart = (
        ground.encode(**ends, tooltip=hover("region"))
        + buffers.encode(**ends, color=alt.Color("kind:N", scale=colours), opacity=live, tooltip=hover(*HOVER))
        + horizontal(bound_bytes / MIB, bound)
        + slider_line()
    )
    return chart.properties(height=HEIGHT)


def slider_line() -> Chart:
    """A line in the middle of the step of the page's slider."""
    line = alt.Chart(source([{"x": 0}])).transform_calculate(x="at + 0.5")
    rule: Chart = line.mark_rule(color=INK).encode(x="x:Q", y=alt.value(0), y2=alt.value("height"))
    return rule


def stacked(regions: Mapping[int, int]) -> dict[int, int]:
    """Where each region is drawn: on top of the one below."""
    drawn, top = {}, 0
    for address in sorted(regions):
        drawn[address] = top
        top += regions[address]
    return drawn


def _row(box: Box, drawn: Mapping[int, int], regions: Mapping[int, int]) -> dict[str, object]:
    region = next(address for address in sorted(regions, reverse=True) if address <= box.address)
    low = drawn[region] + box.address - region
    return {
        **{"x": box.first, "x2": box.last + 1, "y": low / MIB, "y2": (low + box.bytes) / MIB, "at": box.first},
        "buffer": box.name,
        "kind": box.kind,
        "size": mib(box.bytes),
        "live": f"steps {box.first + 1} to {box.last + 1}",
        "address": f"{low:,} bytes from the bottom",
    }
