"""A replay as a page: maps of memory (time across, address up), the memory held, and the fragmentation."""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import altair as alt

from perf.memory.figures import MIB, mib
from perf.memory.memory_map import Box, memory_map
from perf.report.figure import COLOURS, GREY, HEIGHT, Chart, Figure, Palette, hover, lit, numbers, source
from perf.report.page import Legend, render_sections
from perf.report.section import Section
from perf.studies.memory_lab.replay import MemorySample, Replay
from perf.studies.memory_lab.trial import PLANNED
from triton_batching import whole_file

EVENTS = "events of the inference"
# Lines beyond the colours are dashed.
DASHES = ([1, 0], [6, 3], [2, 3])


def write(title: str, replays: Mapping[str, Replay], mapped: Collection[str], load_bytes: int, path: Path) -> Path:
    """Write the page; equal replays give equal files."""
    palette = Palette.of(replays, grey=[name for name in replays if name == PLANNED])
    maps = [
        Figure(
            name=f"map-{number}",
            caption=f"{name}: the address of every buffer; grey is held and not in use",
            chart=_map(replays[name], load_bytes),
        )
        for number, name in enumerate(mapped, 1)
    ]
    curves = [
        Figure(name=name, caption=caption, chart=_over_time(replays, palette, unit, value))
        for name, caption, unit, value in (
            ("held", "Memory held by each allocator", "MiB held", _held),
            ("scattered", "Free memory that is not in one piece", "% of the free bytes", _scattered),
        )
    ]
    live = Figure(name="live", caption="Live bytes, the same for every allocator", chart=_live(replays))
    section = Section(
        name="replay",
        title=f"{title}: at least {mib(load_bytes)} are needed",
        sentences=("One pass over a recorded trace, replayed on each allocator. No time is measured here.",),
        figures=(*maps, *curves, live),
    )
    text = render_sections(
        [section],
        title="Memory allocators on a trace",
        keys=Legend(palette=palette, what="allocators"),
        command="Made by python -m perf.studies.memory_lab.",
    )
    return whole_file.write(path, text)


def _map(result: Replay, load_bytes: int) -> Chart:
    boxes = [
        Box(
            name=f"buffer {buffer.number}",
            kind="buffer",
            first=buffer.start,
            last=buffer.end - 1,
            address=buffer.address,
            bytes=buffer.size,
        )
        for buffer in result.placed
    ]
    steps = max((buffer.end for buffer in result.placed), default=1)
    return memory_map(boxes, result.regions, steps, title=EVENTS, bound_bytes=load_bytes, slides=False)


def _held(sample: MemorySample) -> float:
    return sample.held_bytes / MIB


def _scattered(sample: MemorySample) -> float:
    return 100 * sample.scattered_share


def _over_time(
    replays: Mapping[str, Replay], palette: Palette, unit: str, value: Callable[[MemorySample], float]
) -> Chart:
    """A stepped line per allocator."""
    dash = {name: DASHES[at // len(COLOURS) % len(DASHES)] for at, name in enumerate(replays)}
    rows = [
        {"configuration": name, "moment": sample.moment, "value": value(sample), "seen": f"{value(sample):,.2f} {unit}"}
        for name, result in replays.items()
        for sample in result.samples
    ]
    base = alt.Chart(source(rows)).encode(
        x=alt.X("moment:Q", title=EVENTS, axis=numbers(grid=False)),
        y=alt.Y("value:Q", title=unit, axis=numbers()),
        color=palette.colour,
        opacity=lit(),
    )
    lines = base.mark_line(interpolate="step-after", strokeWidth=1.6).encode(
        strokeDash=alt.StrokeDash("configuration:N", scale=alt.Scale(domain=list(dash), range=list(dash.values())))
    )
    points = base.mark_point(size=16, filled=True).encode(tooltip=hover("configuration", "moment", "seen"))
    chart: Chart = (lines + points).properties(height=HEIGHT)
    return chart


def _live(replays: Mapping[str, Replay]) -> Chart:
    rows = [
        {"moment": sample.moment, "value": sample.live_bytes / MIB, "live": mib(sample.live_bytes)}
        for sample in next(iter(replays.values())).samples
    ]
    chart: Chart = (
        alt.Chart(source(rows))
        .mark_area(interpolate="step-after", color=GREY, opacity=0.6)
        .encode(
            x=alt.X("moment:Q", title=EVENTS, axis=numbers(grid=False)),
            y=alt.Y("value:Q", title="MiB live", axis=numbers()),
            tooltip=hover("moment", "live"),
        )
        .properties(height=HEIGHT)
    )
    return chart
