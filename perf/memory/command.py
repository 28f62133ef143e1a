"""Estimates the memory of a model and prints it: what `python -m perf.memory` does."""

import argparse
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.progress import track
from rich.table import Table

from export.repository import remedy, served_file
from perf.memory import figures, limits
from perf.memory.allocators.bfc import NEXT_POWER_OF_TWO, SAME_AS_REQUESTED
from perf.memory.estimate.batch_memory import BatchMemory, Model
from triton_batching.options import MOST_ROWS, refuse_unused
from triton_batching.terminal import Mistake, terminal

STRATEGIES = {"power": NEXT_POWER_OF_TWO, "same": SAME_AS_REQUESTED}
MAX_TENSORS = 5


def run(arguments: argparse.Namespace) -> None:
    """Print the tables; raises `Failure` if shapes depend on values of the input."""
    model = Model.of(
        _file(arguments.model, arguments.repository),
        level=arguments.level,
        threads=arguments.threads,
        pattern=arguments.pattern,
        rules=STRATEGIES[arguments.strategy],
    )
    sizes, dims = _batches(arguments.batch), dims_of(arguments.dims)
    if arguments.format == "json":
        refuse_unused((arguments.html is not None, "--html", "with --format json"))
        print(json.dumps(_document(model, sizes, dims), indent=2))
    else:
        estimates = _print(model, sizes, dims)
        if arguments.html is not None:
            from perf.memory import page  # Altair, which takes half a second to import

            note = limits.note(model, sizes[-1], dims)
            written = page.write(model, estimates, dims, arguments.html, name=arguments.model, note=note)
            terminal().print(f"written: {written}", markup=False)


def _file(model: str, repository: Path) -> Path:
    path = Path(model) if model.endswith(".onnx") else served_file(model, repository)
    if path.suffix != ".onnx":
        raise Mistake(f"'{model}' serves {path.name}, which is not an ONNX model. Name an ONNX model or an .onnx file.")
    if not path.is_file():
        how = "Name another." if model.endswith(".onnx") else remedy(model, path)
        raise Mistake(f"{path}: no such file. {how}")
    return path


def _batches(text: str) -> Sequence[int]:
    try:
        sizes = batches(text)
    except ValueError:
        sizes = [0]
    if not all(1 <= size <= MOST_ROWS for size in sizes):
        raise Mistake(f"--batch {text}: not batch sizes from 1 to {MOST_ROWS:,}. Give 1..32 or 1,3,24.")
    return sizes


def batches(text: str) -> Sequence[int]:
    """The batch sizes in a text: `1..32` (both ends and the powers of two between) or `1,3,24`, the smallest first.

    Raises `ValueError`.
    """
    first, dots, last = text.partition("..")
    if not dots:
        sizes = sorted({int(size) for size in text.split(",")})
    else:
        low, high = int(first), int(last)
        sizes = sorted({size for size in (2**power for power in range(high.bit_length())) if size >= low} | {low, high})
    if min(sizes) < 1 or (dots and int(first) > int(last)):
        raise ValueError(text)
    return sizes


def dims_of(text: str) -> dict[str, int]:
    """The sizes in a text such as `length=128,width=100`; raises `Mistake`."""
    pairs = [pair.partition("=") for pair in text.split(",") if pair]
    if not all(name and size.isdecimal() and len(size) < 10 and int(size) for name, _, size in pairs):
        raise Mistake(
            f"--dims {text}: not names with sizes above 0 and below a billion. Give for example --dims "
            "length=128,width=100."
        )
    return {name: int(size) for name, _, size in pairs}


def _print(model: Model, sizes: Sequence[int], dims: Mapping[str, int]) -> list[BatchMemory]:
    estimates = [model.at(size, dims) for size in track(sizes, description="planning", transient=True)]
    console = terminal()
    console.print(_table(estimates))
    held = figures.span(model.held_after(sizes, dims), model.most_after(sizes, dims))
    console.print(f"One session that runs all of these sizes holds {held} MiB.")
    console.print(_peak(estimates[-1]))
    if note := limits.note(model, sizes[-1], dims):
        console.print(note)
    return estimates


def _document(model: Model, sizes: Sequence[int], dims: Mapping[str, int]) -> dict[str, object]:
    """All figures in bytes."""
    unbounded = Counter(model.unbounded(model.shapes(model.inputs(sizes[-1], dims))))
    return {
        "batches": [
            {
                "batch": memory.batch,
                "weights": memory.weights,
                "activations": memory.activations_peak,
                "arena_held": memory.arena_held,
                "held": memory.held,
                "lower_bound": memory.lower_bound,
                "offset_plan": memory.packed,
                "peak_node": memory.peak_node,
                "live": [{"tensor": one.tensor, "bytes": one.bytes, "scratch": one.scratch} for one in memory.live],
                "most": _most(memory),
            }
            for memory in (model.at(size, dims) for size in sizes)
        ],
        "session_held": model.held_after(sizes, dims),
        "session_held_most": model.most_after(sizes, dims),
        "bounded": dict(sorted((Counter(model.bounded) - unbounded).items())),
        "unchecked": dict(sorted((Counter(model.unchecked) + unbounded).items())),
        "exact": model.is_exact,
        "note": limits.note(model, sizes[-1], dims),
    }


def _most(memory: BatchMemory) -> dict[str, int | None] | None:
    """The upper bounds of a batch size; None if unknown."""
    if memory.most is None:
        return None
    most = memory.most
    return {
        "weights": most.weights,
        "activations": most.activations_peak,
        "arena_held": most.arena_held,
        "held": memory.held_most,
    }


def _table(estimates: Sequence[BatchMemory]) -> Table:
    table = Table(title="MiB", title_justify="left")
    for column in ("batch", "weights", "activations", "arena holds", "all", "lower bound", "offset plan", "would save"):
        table.add_column(column, justify="right")
    for memory in estimates:
        plans = map(figures.number, (memory.lower_bound, memory.packed))
        table.add_row(str(memory.batch), *figures.spans(memory), *plans, figures.saved(memory))
    return table


def _peak(memory: BatchMemory) -> Table:
    title = f"At the peak of the first run at batch {memory.batch}, in {memory.peak_node}"
    table = Table("tensor", "MiB", "share", title=title, title_justify="left")
    for row in figures.peak(memory)[:MAX_TENSORS]:
        table.add_row(*row)
    return table
