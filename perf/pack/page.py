"""A page with a placement: the duty cycle and the memory of each device."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import altair as alt

from perf.pack.placement import Node, Placement, Share
from perf.pack.workload import Workload
from perf.report.figure import PAPER, Chart, Figure, Palette, hover, lit, source, vertical
from perf.report.figure import Row as Values
from perf.report.page import Legend, render_sections
from perf.report.section import Grid, Section
from perf.report.units import count
from triton_batching import whole_file

NAME = "placement.html"
MIB = 2**20
HOVER = ("configuration", "device", "its cycle", "rate", "batch size", "execution", "of the cycle", "memory")


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One model on one device: its part of the cycle in %, in a lane of its own if models run at the same time.

    Its part of the memory is in MiB; `words` are what a reader sees of it.
    """

    device: str
    lane: int
    start: float
    end: float
    memory_start: float
    memory_end: float
    words: Mapping[str, str]

    @property
    def row(self) -> Values:
        """The row of a chart."""
        places = {name: value for name, value in vars(self).items() if name != "words"}
        return {**self.words, **places}


def write(workload: Workload, placement: Placement, folder: Path) -> Path:
    """Write placement.html to the folder."""
    palette = Palette.of(model.name for model in workload.models)
    figures = draw(workload, placement, palette)
    devices = count(len(placement.nodes), "device")
    verdict = Section(
        name="placement",
        title=f"{count(len(palette.colours), 'model')} on {devices}, at least {placement.bound} needed",
        sentences=(
            f"Placed by {placement.algorithm}, for {1 + placement.headroom:g} x the rates of the plan. The models of a "
            "device take turns: in each cycle every model executes once, with the requests that came since its last "
            "turn. A request waits for at most one cycle and its own execution.",
        ),
        figures=figures,
    )
    text = render_sections(
        (verdict, _executions(workload, placement)),
        title="A placement of models on devices",
        keys=Legend(palette=palette, what="models"),
        command="Made by python -m perf.pack.",
    )
    return whole_file.write(folder / NAME, text)


def draw(workload: Workload, placement: Placement, palette: Palette) -> tuple[Figure, Figure]:
    """Each model's share of its device's cycle, and the memory of all models of a device."""
    bars = [bar for number, node in enumerate(placement.nodes) for bar in _bars(number, node)]
    capacity = workload.devices.memory_bytes / MIB
    cycle = Figure(
        name="cycle",
        caption="The duty cycle of each device; what is left of 100 % is idle; on the bars: rows in one execution",
        chart=_chart(bars, "start", "end", "% of the duty cycle", palette, numbered=True),
        wide=True,
    )
    held = _chart(bars, "memory_start", "memory_end", "memory held, MiB", palette)
    memory = Figure(
        name="memory",
        caption=f"The memory that the models of each device hold, of {capacity:,.0f} MiB",
        chart=held + vertical(capacity, "all of it", before=True),
        wide=True,
    )
    return cycle, memory


def _executions(workload: Workload, placement: Placement) -> Section:
    """A table of every execution, with the longest wait beside the latency target."""
    targets = {model.name: model.device_target_ms for model in workload.models}
    rows = (
        (
            share.model,
            f"device {number}" + (" (together)" if node.together else ""),
            f"{share.rate_per_s:g}",
            str(share.batch),
            *(f"{ms:.4g}" for ms in (share.exec_ms, node.duty_ms, node.duty_ms + share.exec_ms, targets[share.model])),
            f"{share.memory_bytes / MIB:,.0f}",
        )
        for number, node in enumerate(placement.nodes)
        for share in node.shares
    )
    titles = (
        *("model", "device", "rate\nper s", "batch\nrows", "execution\nms", "cycle\nms"),
        *("longest wait\nms", "target on the\ndevice, ms", "memory\nMiB"),
    )
    sentence = "The longest wait follows from the plan and is no measurement, so it has no interval."
    return Section(
        name="executions",
        title="Executions",
        sentences=(sentence,),
        grids=(Grid(titles=titles, rows=tuple(rows), left=2),),
    )


def _chart(bars: Sequence[Bar], start: str, end: str, title: str, palette: Palette, *, numbered: bool = False) -> Chart:
    lanes = len({(bar.device, bar.lane) for bar in bars})
    numbers = sorted({bar.lane for bar in bars})
    devices = list(dict.fromkeys(bar.device for bar in bars))
    scale = alt.Scale(domain=[0, 100]) if numbered else alt.Scale()
    base = alt.Chart(source(bar.row for bar in bars)).encode(
        y=alt.Y("device:O", title=None, scale=alt.Scale(domain=devices), axis=alt.Axis(grid=False)),
        yOffset=alt.YOffset("lane:O", scale=alt.Scale(domain=numbers)),
        x=alt.X(f"{start}:Q", title=title, axis=alt.Axis(tickCount=6), scale=scale),
        opacity=lit(),
    )
    chart: Chart = base.mark_bar(stroke=PAPER).encode(x2=f"{end}:Q", color=palette.colour, tooltip=hover(*HOVER))
    if numbered:
        texts = base.mark_text(color="#ffffff", align="left", dx=4).transform_filter(f"datum.{end} - datum.{start} > 6")
        chart = chart + texts.encode(text="batch:N")
    return chart.properties(height=40 + 30 * lanes)


def _bars(number: int, node: Node) -> list[Bar]:
    """Executions one after the other, or in lanes if they run at the same time."""
    bars: list[Bar] = []
    start = memory = 0.0
    for lane, share in enumerate(node.shares):
        width, held = share.exec_ms / node.duty_ms * 100, share.memory_bytes / MIB
        bar = Bar(
            device=f"device {number}, {node.duty_ms:.4g} ms",
            lane=lane if node.together else 0,
            start=start,
            end=start + width,
            memory_start=memory,
            memory_end=memory + held,
            words=_words(node, share, width, held),
        )
        bars.append(bar)
        start += 0 if node.together else width
        memory += held
    return bars


def _words(node: Node, share: Share, width: float, held: float) -> dict[str, str]:
    return {
        "configuration": share.model,
        "batch": str(share.batch),
        "its cycle": f"{node.duty_ms:.4g} ms",
        "rate": f"{share.rate_per_s:g} requests/s",
        "batch size": f"{share.batch} rows",
        "execution": f"{share.exec_ms:.4g} ms",
        "of the cycle": f"{width:.1f} %",
        "memory": f"{held:,.0f} MiB",
    }
