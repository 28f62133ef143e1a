"""The memory of a model as a page: maps over the nodes of a run, with a slider, and the tensors of each node."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import altair as alt

from perf.memory import figures, greedy
from perf.memory.estimate.batch_memory import BatchMemory, Model
from perf.memory.estimate.timeline import Lifetime, Timeline
from perf.memory.figures import MIB, mib
from perf.memory.memory_map import Box, memory_map, slider_line
from perf.report.figure import COLOURS, HEIGHT, Chart, Figure, hover, numbers, source
from perf.report.page import render_sections
from perf.report.section import Grid, Section, Slider
from triton_batching import whole_file

# Tensors of a node with a bar.
BARS = 12
BAR_HEIGHT = 24
ACTIVATION, OUTPUT, SCRATCH, WEIGHTS = "activation", "output of the model", "scratch of a kernel", "weights"
NODES = "nodes, in the order of execution"


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A model at one batch size: the estimate, the first run of a session, and the boxes of the offset plan.

    `live` are the tensors of the first run; several may take turns in a buffer.
    """

    memory: BatchMemory
    run: Timeline
    live: tuple[Box, ...]
    planned: tuple[Box, ...]
    outputs: frozenset[str]

    @classmethod
    def of(cls, model: Model, batch: int, dims: Mapping[str, int]) -> "Drawn":
        """Simulate the run and plan the offsets."""
        shapes = model.shapes(model.inputs(batch, dims))
        outputs = frozenset(model.graph.outputs)
        lives = model.lifetimes(shapes)
        offsets = greedy.plan(model.buffers(shapes)).offsets
        boxes = (_box(life, offset, outputs) for life, offset in zip(lives, offsets, strict=True))
        run = model.first_run(shapes)
        live = (_box(one, 0, outputs) for life in run.lifetimes for one in model.tensors(life))
        return cls(memory=model.at(batch, dims), run=run, live=tuple(live), planned=tuple(boxes), outputs=outputs)

    @property
    def in_arena(self) -> int:
        """Bytes of the weights in the arena."""
        return sum(life.bytes for life in self.run.weights)

    @property
    def arena(self) -> tuple[Box, ...]:
        """The buffers of the run, and the weights in the arena; those without bytes have no place."""
        lives = [(life, "") for life in self.run.lifetimes] + [(life, WEIGHTS) for life in self.run.weights]
        return tuple(_box(life, life.address, self.outputs, kind) for life, kind in lives if life.address is not None)


def write(
    model: Model, estimates: Sequence[BatchMemory], dims: Mapping[str, int], path: Path, *, name: str, note: str
) -> Path:
    """Write the page of the largest batch size, with a table of all; raises `NotWrittenError`."""
    drawn = Drawn.of(model, estimates[-1].batch, dims)
    text = render_sections(
        (_verdict(drawn, name, note, pattern=model.pattern), _peak(drawn.memory), _sizes(estimates)),
        title=f"The memory of {name}, estimated without running it",
        command="Made by triton-batching memory.",
    )
    return whole_file.write(path, text)


def _verdict(drawn: Drawn, name: str, note: str, *, pattern: bool) -> Section:
    memory, peak, first = drawn.memory, drawn.run.peak_node, sum(drawn.run.regions.values())
    weights, activations, arena, held = figures.spans(memory, mib)
    saved = figures.saved(memory)
    less = f", {saved} less than the arena" if saved else ""
    least = "" if saved else " They show the least that it takes."
    later = ", in the second run and later ones, which follow the memory pattern" if pattern else ""
    in_use = drawn.run.boundaries[peak].in_use
    kept = f", {mib(drawn.in_arena)} of weights in the arena included" if drawn.in_arena else ""
    sentences = (
        f"Weights take {weights}, the arena for activations {arena}. At most {activations} of it are in use at one time"
        f"{later}. An offset plan would need {mib(memory.packed)}{less}, "
        f"and no allocator less than {mib(memory.lower_bound)}.",
        "The slider, the first map, the bars, the curve and the table of the peak are of the first run, after which "
        f"the arena holds {mib(first)}.{least} Its peak is in {memory.peak_node}: {mib(in_use)} in use after it{kept}. "
        "The second map is no run: it is the offset plan, in which a kernel writes over an input wherever it may, so "
        "fewer tensors may be live at a node. Move the slider, or click a buffer, to see which tensors are live at a "
        "node; the page begins at the peak.",
        note,
    )
    return Section(
        name="memory",
        title=f"{name} at batch {memory.batch} holds {held}",
        sentences=tuple(filter(None, sentences)),
        slider=Slider(label="Node of the first run", steps=tuple(_steps(drawn.run)), start=peak),
        figures=tuple(_figures(drawn)),
    )


def _steps(run: Timeline) -> Iterator[str]:
    for number, each in enumerate(run.boundaries, 1):
        peak = ", the peak" if number == run.peak_node + 1 else ""
        name = f"{each.operator} {each.node}".strip()
        yield f"{number} of {len(run.boundaries)}: {name}, {mib(each.in_use)} in use{peak}"


def _figures(drawn: Drawn) -> Iterator[Figure]:
    run, memory = drawn.run, drawn.memory
    nodes, peak = len(run.boundaries), run.peak_node
    with_weights = "lower bound with the weights in the arena" if drawn.in_arena else "lower bound"
    bound_bytes = memory.lower_bound + drawn.in_arena
    drawings: tuple[tuple[str, str, Chart, bool], ...] = (
        (
            "arena",
            "Where onnxruntime's arena puts each buffer in the first run; grey is held and not in use",
            memory_map(drawn.arena, run.regions, nodes, title=NODES, bound_bytes=bound_bytes, bound=with_weights),
            False,
        ),
        (
            "plan",
            "The offset plan: tensors at planned offsets, without the weights",
            memory_map(drawn.planned, {0: max(memory.packed, 1)}, nodes, title=NODES, bound_bytes=memory.lower_bound),
            False,
        ),
        ("live", f"The tensors that are live at the node in the first run, the {BARS} largest", _live(drawn), False),
        ("use", "Memory of the arena after each node of the first run, weights in it included", _use(run), False),
    )
    for name, caption, chart, wide in drawings:
        yield Figure(name=name, caption=caption, chart=chart, wide=wide, at=peak)


def _live(drawn: Drawn) -> Chart:
    """A bar per tensor of the first run that is live at the slider's node."""
    rows = [
        {"first": box.first, "last": box.last, "mib": box.bytes / MIB, "buffer": box.name, "kind": box.kind}
        | {"size": mib(box.bytes), "text": f"{box.name}, {mib(box.bytes)}"}
        for box in drawn.live
    ]
    ranked = (
        alt.Chart(source(rows))
        .transform_filter("datum.first <= at && at <= datum.last")
        .transform_window(rank="row_number()", sort=[alt.SortField("mib", order="descending")])
        .transform_filter(f"datum.rank <= {BARS}")
    )
    y = alt.Y("rank:O", axis=None, scale=alt.Scale(domain=list(range(1, BARS + 1))))
    bars = ranked.mark_bar(color=COLOURS[0], opacity=0.4).encode(
        x=alt.X("mib:Q", title="MiB", axis=alt.Axis(tickCount=5)), y=y, tooltip=hover("buffer", "kind", "size")
    )
    texts = ranked.mark_text(align="left", dx=4, limit=300).encode(x=alt.value(0), y=y, text="text:N")
    chart: Chart = (bars + texts).properties(height=BARS * BAR_HEIGHT)
    return chart


def _use(run: Timeline) -> Chart:
    """Stepped lines of what is held and what is in use."""
    series = {"held": COLOURS[1], "in use": COLOURS[0]}
    rows = [
        {"at": at, "what": name, "mib": size / MIB, "node": f"{each.operator} {each.node}", "size": mib(size)}
        for at, each in enumerate(run.boundaries)
        for name, size in (("held", each.held), ("in use", each.in_use))
    ]
    base = alt.Chart(source(rows)).encode(
        x=alt.X("at:Q", title=NODES, axis=numbers(grid=False), scale=alt.Scale(nice=False)),
        y=alt.Y("mib:Q", title="MiB", axis=numbers()),
        color=alt.Color(
            "what:N",
            scale=alt.Scale(domain=list(series), range=list(series.values())),
            legend=alt.Legend(symbolOpacity=1),
        ),
    )
    lines = base.mark_line(interpolate="step-after", strokeWidth=1.8)
    marks = base.mark_point(size=30, filled=True, opacity=0.01).encode(tooltip=hover("node", "what", "size"))
    chart: Chart = (lines + marks + slider_line()).properties(height=HEIGHT)
    return chart


def _peak(memory: BatchMemory) -> Section:
    return Section(
        name="peak",
        title=f"Tensors at the peak of the first run at batch {memory.batch}, in {memory.peak_node}",
        grids=(Grid(titles=("tensor", "MiB", "share"), rows=tuple(figures.peak(memory))),),
    )


def _sizes(estimates: Sequence[BatchMemory]) -> Section:
    titles = ("batch", "weights", "activations", "arena\nholds", "all", "lower\nbound", "offset\nplan")
    rows = (
        (str(each.batch), *figures.spans(each), *map(figures.number, (each.lower_bound, each.packed)))
        for each in estimates
    )
    exact = all(map(figures.is_exact, estimates))
    return Section(
        name="sizes",
        title="All batch sizes, in MiB",
        sentences=("An estimate, without an interval: the planner's rules are followed to the byte.",) if exact else (),
        grids=(Grid(titles=titles, rows=tuple(rows)),),
    )


def _box(life: Lifetime, address: int | None, outputs: frozenset[str], kind: str = "") -> Box:
    kind = kind or (SCRATCH if life.scratch else OUTPUT if life.tensor in outputs else ACTIVATION)
    return Box(
        name=figures.label(life), kind=kind, first=life.first, last=life.last, address=address or 0, bytes=life.bytes
    )
