"""A page with a placement: the duty cycle and the memory of each device."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import altair as alt

from perf.pack.placement import Node, Placement, Share
from perf.pack.replayed import Replayed
from perf.pack.workload import Workload
from perf.report.figure import INK, PAPER, Chart, Figure, Palette, hover, lit, source, vertical
from perf.report.figure import Row as Values
from perf.report.page import Legend, render_sections
from perf.report.section import Grid, Section
from perf.report.units import count
from perf.stats.interval import Interval
from triton_batching import whole_file

NAME = "placement.html"
MIB = 2**20
# A bar of at most so many % of the cycle has its number above it, so many pixels from its middle.
NARROW, NUMBERED = 6, 12
HOVER = ("configuration", "device", "its cycle", "rate", "batch size", "execution", "of the cycle", "memory")


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One model on one device: its part of the cycle in %, and of the memory in MiB; `words` are what a reader sees."""

    device: str
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


def write(workload: Workload, placement: Placement, replayed: Sequence[Replayed], folder: Path) -> Path:
    """Write placement.html to the folder."""
    palette = Palette.of(model.name for model in workload.models)
    figures = draw(workload, placement, palette)
    devices = count(len(placement.nodes), "device")
    verdict = Section(
        name="placement",
        title=f"{count(len(palette.colours), 'model')} on {devices}, at least {placement.bound} needed",
        sentences=(
            f"Placed by {placement.algorithm}, for {1 + placement.headroom:g} x the rates of the plan. The models of a "
            "device take turns: each gathers its requests for a cycle, and then waits for at most one cycle of the "
            "others, whichever of them Triton's rate limiter prefers. A model alone on a device does not wait.",
        ),
        figures=figures,
    )
    text = render_sections(
        (verdict, _executions(workload, placement, replayed)),
        title="A placement of models on devices",
        keys=Legend(palette=palette, what="models"),
        command="Made by triton-batching pack.",
    )
    return whole_file.write(folder / NAME, text)


def draw(workload: Workload, placement: Placement, palette: Palette) -> tuple[Figure, Figure]:
    """Each model's share of its device's cycle, and the memory of all models of a device."""
    bars = [bar for number, node in enumerate(placement.nodes) for bar in _bars(number, node)]
    capacity = workload.devices.memory_bytes / MIB
    cycle = Figure(
        name="cycle",
        caption="The duty cycle of each device; what is left of 100 % is idle; the numbers are rows of an execution",
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


TITLES = (
    *("model", "device", "rate\nper s", "batch\nrows", "execution\nms", "cycle\nms", "cycle\nfull %"),
    *("replayed\np99 ms", "replayed\nlate %", "longest wait\nms", "target\nms", "memory\nMiB"),
)


def rows(workload: Workload, placement: Placement, replayed: Sequence[Replayed]) -> list[tuple[str, ...]]:
    """Every model on every device, with the replayed p99 and the longest wait beside the latency target."""
    models = {model.name: model for model in workload.models}
    results = {(each.device, each.model): each for each in replayed}
    return [
        (
            share.model,
            f"device {number}",
            f"{share.rate_per_s:g}",
            str(share.batch),
            f"{share.exec_ms:.4g}",
            f"{node.duty_ms:.4g}",
            f"{100 * node.occupancy:.0f}",
            f"{results[number, share.model].p99_ms:.4g}",
            _percent(results[number, share.model].share),
            f"{models[share.model].overhead_ms + node.longest_ms(share):.4g}",
            f"{models[share.model].target_ms:.4g}",
            f"{share.memory_bytes / MIB:,.0f}",
        )
        for number, node in enumerate(placement.nodes)
        for share in node.shares
    ]


def _percent(share: Interval) -> str:
    return f"{100 * share.value:.2f} ({100 * share.low:.2f} to {100 * share.high:.2f})"


def _executions(workload: Workload, placement: Placement, replayed: Sequence[Replayed]) -> Section:
    sentence = (
        "The longest wait is that of even arrivals: two cycles (on a device of its own one cycle and the execution), "
        "with the model's overhead. The p99 is replayed with the plan's arrivals: 99 of 100 requests take no longer."
    )
    return Section(
        name="executions",
        title="Executions",
        sentences=(sentence,),
        grids=(Grid(titles=TITLES, rows=tuple(rows(workload, placement, replayed)), left=2),),
    )


def _chart(bars: Sequence[Bar], start: str, end: str, title: str, palette: Palette, *, numbered: bool = False) -> Chart:
    devices = list(dict.fromkeys(bar.device for bar in bars))
    scale = alt.Scale(domain=[0, 100]) if numbered else alt.Scale()
    base = alt.Chart(source(bar.row for bar in bars)).encode(
        y=alt.Y("device:O", title=None, scale=alt.Scale(domain=devices), axis=alt.Axis(grid=False)),
        x=alt.X(f"{start}:Q", title=title, axis=alt.Axis(tickCount=6), scale=scale),
        opacity=lit(),
    )
    chart: Chart = base.mark_bar(stroke=PAPER).encode(x2=f"{end}:Q", color=palette.colour, tooltip=hover(*HOVER))
    if numbered:
        width = f"datum.{end} - datum.{start}"
        inside = base.mark_text(color="#ffffff", align="left", dx=4).transform_filter(f"{width} > {NARROW}")
        # Above a narrow bar, where the next one is no ground to read it on.
        above = base.mark_text(color=INK, baseline="bottom", dy=-NUMBERED).transform_filter(f"{width} <= {NARROW}")
        chart = chart + inside.encode(text="batch:N") + above.encode(text="batch:N")
    return chart.properties(height=40 + 30 * len(devices))


def _bars(number: int, node: Node) -> list[Bar]:
    """Executions one after the other."""
    bars: list[Bar] = []
    start = memory = 0.0
    for share in node.shares:
        width, held = share.exec_ms / node.duty_ms * 100, share.memory_bytes / MIB
        bar = Bar(
            device=f"device {number}, {node.duty_ms:.4g} ms",
            start=start,
            end=start + width,
            memory_start=memory,
            memory_end=memory + held,
            words=_words(node, share, width, held),
        )
        bars.append(bar)
        start += width
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
