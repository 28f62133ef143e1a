"""Measures onnxruntime on the files of two models in turn, and compares them by batch size."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from rich.progress import Progress
from rich.table import Table

from perf.measure.ceiling_run import measure, merge, plan
from perf.measure.interleaved import in_order
from perf.records.measurement import Ceiling
from perf.stats.rounds import paired
from perf.stats.verdict import level_of_each, verdict
from triton_batching.terminal import Mistake, terminal


def report(a: str, b: str, rounds: int, threads: int | None, repository: Path) -> None:
    """Measure both and print a line for each batch size."""
    if a == b:
        raise Mistake(f"{a}: named twice. Name two models.")
    with Progress(transient=True) as bar:
        task = bar.add_task("starting", total=None)
        measured = ceilings((a, b), rounds, threads, repository, lambda text: bar.update(task, description=text))
    terminal().print(table(measured[a], measured[b]))


def ceilings(
    names: tuple[str, str], rounds: int, threads: int | None, repository: Path, progress: Callable[[str], None]
) -> Mapping[str, Ceiling]:
    """The ceiling of each model, measured in turn; raises `CeilingError`."""
    plans = {name: plan(name, threads=threads, repository=repository) for name in names}
    found: dict[str, list[Ceiling]] = {name: [] for name in names}
    for number in range(1, rounds + 1):
        for name in in_order(names, number, seed=0):
            found[name].append(
                measure(
                    plans[name],
                    repository=repository,
                    progress=lambda text, number=number: progress(f"round {number} of {rounds}: {text}"),  # type: ignore[misc]
                )
            )
    return {name: merge(measurements) for name, measurements in found.items()}


def table(a: Ceiling, b: Ceiling) -> Table:
    """Rows per second of both by batch size, their ratio with its interval, and the verdict."""
    sizes = sorted(a.rows_per_s.keys() & b.rows_per_s.keys())
    if not sizes:
        raise Mistake(f"{a.model} and {b.model} have no batch size in common.")
    level = level_of_each(len(sizes))
    title = f"rows/s of onnxruntime {a.versions.get('onnxruntime', '')} alone, {a.threads} threads"
    made = Table("rows per run", a.model, b.model, "B / A", "B is", title=title, title_justify="left")
    for size in sizes:
        old, new = a.rows_per_s[size], b.rows_per_s[size]
        ratio = paired(new, old, level=level)
        medians = [f"{np.median(rates):,.1f}" for rates in (old, new)]
        made.add_row(str(size), *medians, str(ratio), str(verdict(ratio, more_is_better=True)))
    made.caption = f"medians of {len(old)} rounds in turn; the intervals hold together with 95 %"
    made.caption_justify = "left"
    return made
