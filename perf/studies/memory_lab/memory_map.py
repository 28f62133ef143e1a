"""Pictures of a replay: a map of memory (time across, address up), the memory held, and the fragmentation."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from perf.studies.memory_lab.replay import MemorySample, Replay
from perf.studies.memory_lab.trial import PLANNED

MIB = 2**20
INK, GREY = "#1f2328", "#808894"
STYLE: dict[Any, Any] = {"axes.spines.right": False, "axes.spines.top": False, "font.size": 11, "legend.frameon": False}
PANEL = (4.4, 3.6)
# Okabe and Ito's palette.
LINES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")


def maps(title: str, replays: Mapping[str, Replay], load_bytes: int, path: Path) -> Path:
    """One panel per allocator on one scale; grey is held and idle memory, the dashed line the lower bound."""
    with mpl.rc_context(STYLE | {"figure.facecolor": "white", "svg.hashsalt": title}):
        figure = Figure(figsize=(PANEL[0] * len(replays), PANEL[1]), layout="constrained")
        panels = figure.subplots(1, len(replays), sharey=True, squeeze=False)[0]
        for axes, (name, result) in zip(panels, replays.items(), strict=True):
            _map(axes, result)
            axes.axhline(load_bytes / MIB, color=INK, linestyle=(0, (4, 3)), linewidth=1)
            axes.set_title(name, loc="left", fontsize=11)
            axes.set_xlabel("events of the inference")
        top = max(sum(result.regions.values()) for result in replays.values())
        panels[0].set(ylabel="address, MiB", ylim=(0, top / MIB))
        figure.suptitle(f"{title}: the address of every buffer", fontsize=12, x=0.01, ha="left")
        return _saved(figure, path)


def held(title: str, replays: Mapping[str, Replay], path: Path) -> Path:
    """The bytes that each allocator holds over the first pass, with the live bytes as an area."""
    samples = next(iter(replays.values())).samples
    live = ([sample.moment for sample in samples], [sample.live_bytes / MIB for sample in samples])
    heading = f"{title}: memory held by each allocator"
    return _over_time(heading, "MiB held", replays, lambda sample: sample.held_bytes / MIB, path, live)


def scattered(title: str, replays: Mapping[str, Replay], path: Path) -> Path:
    """Fragmentation over the first pass: the percentage of the free bytes that a single request cannot use."""
    heading = f"{title}: free memory that is not in one piece"
    return _over_time(heading, "% of the free bytes", replays, lambda sample: 100 * sample.scattered_share, path)


def _over_time(
    heading: str,
    label: str,
    replays: Mapping[str, Replay],
    value: Callable[[MemorySample], float],
    path: Path,
    area: tuple[list[int], list[float]] | None = None,
) -> Path:
    """A stepped line per allocator, and the live bytes as a grey area."""
    with mpl.rc_context(STYLE | {"figure.facecolor": "white", "svg.hashsalt": heading}):
        figure = Figure(figsize=(9.0, 4.2), layout="constrained")
        axes = figure.subplots()
        for number, (name, result) in enumerate(replays.items()):
            moments = [sample.moment for sample in result.samples]
            values = [value(sample) for sample in result.samples]
            style = "-" if number < len(LINES) or name == PLANNED else ":"
            colour, width = (INK, 2.6) if name == PLANNED else (LINES[number % len(LINES)], 1.6)
            axes.step(moments, values, style, where="post", color=colour, linewidth=width, label=name)
        if area is not None:
            axes.fill_between(*area, step="post", color=GREY, alpha=0.35, label="live")
        axes.set(xlabel="events of the inference", ylabel=label, ylim=(0, None))
        figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper")
        figure.suptitle(heading, fontsize=12, x=0.01, ha="left")
        return _saved(figure, path)


def _map(axes: Axes, result: Replay) -> None:
    bases = _compact(result.regions)
    end = max((buffer.end for buffer in result.placed), default=1)
    axes.add_collection(
        PolyCollection(
            [_box(0, end, bases[base], size) for base, size in result.regions.items()],
            facecolors=GREY,
            edgecolors="white",
            alpha=0.3,
            linewidths=0.4,
        )
    )
    boxes, colours = [], []
    ordered = sorted(result.regions, reverse=True)
    for buffer in result.placed:
        base = next(base for base in ordered if base <= buffer.address)
        boxes.append(_box(buffer.start, buffer.end, bases[base] + buffer.address - base, buffer.size))
        colours.append(LINES[buffer.number % len(LINES)])
    axes.add_collection(PolyCollection(boxes, facecolors=colours, edgecolors="white", linewidths=0.3))
    axes.set_xlim(0, end)


def _compact(regions: dict[int, int]) -> dict[int, int]:
    """The drawn base of each region: regions are stacked without the unused addresses between them."""
    drawn, top = {}, 0
    for base in sorted(regions):
        drawn[base] = top
        top += regions[base]
    return drawn


def _box(start: int, end: int, address: int, size: int) -> list[tuple[float, float]]:
    low, high = address / MIB, (address + size) / MIB
    return [(start, low), (end, low), (end, high), (start, high)]


def _saved(figure: Figure, path: Path) -> Path:
    """Save as .svg or .png, by the suffix; equal replays give equal files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".svg":
        FigureCanvasSVG(figure)
        figure.savefig(path, metadata={"Date": None, "Creator": None})
    else:
        FigureCanvasAgg(figure)
        figure.savefig(path, dpi=120, metadata={"Software": None})
    return path
