"""A picture of a placement: the duty cycle and the memory of each device."""

from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from perf.pack.placement import Node, Placement
from perf.pack.workload import Workload
from perf.report.drawing import COLOURS, GREY, PAPER, STYLE, plain, png

NAME = "placement.png"
# With more models than colours, the colours repeat with another hatch.
HATCHES = ("", "//", "..", "xx", "\\\\")
MIB = 2**20
ROW_IN = 0.5


def write(workload: Workload, placement: Placement, folder: Path) -> Path:
    """Write placement.png to the folder."""
    title = f"{len(placement.nodes)} devices by {placement.algorithm} (at least {placement.bound} are needed)"
    return png(draw(workload, placement), folder / NAME, title)


def draw(workload: Workload, placement: Placement) -> Figure:
    """The figure: on the left each model's share of its device's cycle, on the right its memory."""
    with rc_context(STYLE):
        figure = Figure(figsize=(12.4, 1.6 + ROW_IN * len(placement.nodes)), layout="constrained")
        cycle, memory = figure.subplots(1, 2, width_ratios=(2, 1), sharey=True)
        styles = {model.name: _style(at) for at, model in enumerate(workload.models)}
        for number, node in enumerate(placement.nodes):
            _cycle(cycle, number, node, styles)
            _memory(memory, number, node, styles)
        _finish(cycle, memory, workload, placement)
        handles = [
            Patch(facecolor=colour, hatch=hatch, edgecolor=PAPER, label=name)
            for name, (colour, hatch) in styles.items()
        ]
        figure.legend(handles=handles, loc="outside upper left", ncols=6)
    return figure


def _style(at: int) -> tuple[str, str]:
    return COLOURS[at % len(COLOURS)], HATCHES[at // len(COLOURS) % len(HATCHES)]


def _cycle(axes: Axes, number: int, node: Node, styles: dict[str, tuple[str, str]]) -> None:
    """Draw the executions of a cycle one after the other, or above each other if they run at the same time."""
    start = 0.0
    height = 0.7 / (len(node.shares) if node.together else 1)
    for at, share in enumerate(node.shares):
        colour, hatch = styles[share.model]
        low = number - 0.35 + (at * height if node.together else 0)
        width = share.exec_ms / node.duty_ms * 100
        axes.barh(low, width, height, left=start, align="edge", color=colour, hatch=hatch, edgecolor=PAPER)
        axes.text(start + width / 2, low + height / 2, str(share.batch), color="white", ha="center", va="center")
        start += 0 if node.together else width
    axes.text(101, number, f"{node.duty_ms:.4g} ms", va="center", color=GREY)


def _memory(axes: Axes, number: int, node: Node, styles: dict[str, tuple[str, str]]) -> None:
    start = 0.0
    for share in node.shares:
        colour, hatch = styles[share.model]
        axes.barh(number, share.memory_bytes / MIB, 0.7, left=start, color=colour, hatch=hatch, edgecolor=PAPER)
        start += share.memory_bytes / MIB


def _finish(cycle: Axes, memory: Axes, workload: Workload, placement: Placement) -> None:
    capacity = workload.devices.memory_bytes / MIB
    memory.axvline(capacity, color=GREY, linewidth=1)
    memory.set_xlim(0, 1.05 * capacity)
    memory.set_xlabel(f"memory held, MiB of {capacity:,.0f}")
    cycle.set_xlim(0, 112)
    cycle.set_xticks(range(0, 101, 20))
    cycle.set_xlabel("% of the duty cycle (right: its longest duration); on the bars: batch size")
    cycle.set_yticks(range(len(placement.nodes)), [f"device {number}" for number in range(len(placement.nodes))])
    cycle.invert_yaxis()
    for axes in (cycle, memory):
        plain(axes, "x")
