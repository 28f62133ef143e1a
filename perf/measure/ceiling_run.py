"""Measures the throughput of onnxruntime in this process by batch size, in rounds."""

import datetime
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from rich.progress import Progress
from rich.table import Table

from export.graph.ragged_feed import is_ragged
from export.graph.recipe import digest
from export.graph.samples import sample
from export.repository import REPOSITORY, config_file, model_file, model_folder, read_config, remedy
from perf.records.file import check_folder
from perf.records.measurement import Ceiling, Store
from triton_batching.machine import Machine, cores, versions
from triton_batching.terminal import Mistake, terminal

ROUNDS = range(3)
ROUND_S = 0.4


class CeilingError(Mistake):
    """The model has no ceiling to measure."""


def plan(model: str, *, threads: int | None = None, repeat: int = 1, repository: Path = REPOSITORY) -> Ceiling:
    """A `Ceiling` without rates: what would be measured. `threads` defaults to all cores. Raises `CeilingError`."""
    folder = model_folder(model, repository)
    config = read_config(config_file(folder, None))
    path = model_file(folder, config)
    if is_ragged(config):
        raise CeilingError(
            f"'{model}' is ragged, so its rate depends on the lengths. Measure it: python -m perf.studies.ragged."
        )
    if config.max_batch_size < 1:
        raise CeilingError(f"'{model}' has max_batch_size 0, so it has no batches to measure.")
    if path.suffix != ".onnx":
        raise CeilingError(f"'{model}' is not an ONNX model ({path.name}), so it has no onnxruntime ceiling.")
    if not path.is_file():
        raise CeilingError(f"{path}: no such file. {remedy(model, path)}")
    return Ceiling(
        model=model,
        model_sha256=digest(path),
        threads=threads or cores(),
        repeat=repeat,
        machine=Machine.this(),
        versions=versions(),
        started_at="",
        rows_per_s={},
    )


def measure(
    planned: Ceiling, *, repository: Path = REPOSITORY, progress: Callable[[str], None] = lambda _: None
) -> Ceiling:
    """One round: every batch size in turn, for `ROUND_S` seconds each."""
    folder = model_folder(planned.model, repository)
    config = read_config(config_file(folder, None))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = planned.threads
    session = onnxruntime.InferenceSession(str(model_file(folder, config)), options, providers=["CPUExecutionProvider"])
    inputs = sample(config, rows=config.max_batch_size)
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    rates = {}
    for rows in batch_sizes(config.max_batch_size):
        progress(f"ceiling of {planned.model}, batch {rows}")
        rates[rows] = (_rows_per_s(session, {name: array[:rows] for name, array in inputs.items()}, rows),)
    return replace(planned, started_at=started, rows_per_s=rates)


def merge(rounds: Sequence[Ceiling]) -> Ceiling:
    """The rounds of one plan as one record."""
    sizes = rounds[0].rows_per_s
    return replace(
        rounds[0],
        rows_per_s={rows: tuple(rate for ceiling in rounds for rate in ceiling.rows_per_s[rows]) for rows in sizes},
    )


def batch_sizes(largest: int) -> list[int]:
    """The powers of 2 up to `largest`, and `largest`."""
    return sorted({*(2**power for power in range(largest.bit_length()) if 2**power <= largest), largest})


def _rows_per_s(session: onnxruntime.InferenceSession, inputs: dict[str, NDArray[np.generic]], rows: int) -> float:
    session.run(None, inputs)  # the first run of a shape allocates
    runs, started = 0, time.perf_counter()
    while (spent := time.perf_counter() - started) < ROUND_S:
        session.run(None, inputs)
        runs += 1
    return runs * rows / spent


def report(model: str, threads: int | None, results: Path | None, repository: Path) -> None:
    """Measure and print; with a folder write a record as well."""
    console = terminal()
    planned = plan(model, threads=threads, repository=repository)
    if results is not None:
        check_folder(results)
    with Progress(transient=True) as bar:
        task = bar.add_task("ceiling", total=None)

        def progress(text: str) -> None:
            bar.update(task, description=text)

        ceiling = merge([measure(planned, repository=repository, progress=progress) for _ in ROUNDS])
    table = Table("rows per run", "rows/s", "smallest to largest", title=f"{ceiling.model}, {ceiling.threads} threads")
    table.caption = f"medians of {len(ROUNDS)} rounds"
    for rows, rates in ceiling.rows_per_s.items():
        table.add_row(str(rows), f"{np.median(rates):,.1f}", f"{min(rates):,.1f} to {max(rates):,.1f}")
    console.print(table)
    if results is not None:
        console.print(f"written: {Store(results).add(ceiling)}", markup=False)
