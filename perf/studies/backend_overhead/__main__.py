"""What serving costs: the drop-in onnxruntime backend against its two floors, in one interleaved run.

The floors are onnxruntime in this process on the same batch, and an identity model.py that returns a slice of its
input, which is what Triton's Python hop costs anyone; one memory copy of the batch is added to them. The backend's
own code runs a third time with a clock around each of its stages (`perf.studies.backend_overhead.stages`).
"""

import argparse
import datetime
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from rich.progress import Progress
from rich.table import Table

from perf.studies.backend_overhead.full_batches import full_batches
from perf.studies.backend_overhead.stages import BackendStages, read, write_model
from perf.studies.backend_overhead.stages import table as stages_table
from serve.launcher import LaunchError, Server, Settings, launch
from serve.management.statistics import Counters
from triton_batching import whole_file
from triton_batching.machine import Machine, versions
from triton_batching.terminal import guarded, program_parser, terminal

SIZES = {"1 KB": 1 << 10, "600 KB": 600 << 10, "4 MB": 4 << 20}
REQUESTS = (1, 8, 32)
ANSWER = 16
"""Values that every model gives back per row."""

LIMIT = 1.10
CONFIG = """\
name: "{name}"
backend: "{backend}"
max_batch_size: {requests}
input [ {{ name: "x" data_type: TYPE_FP32 dims: [ {values} ] }} ]
output [ {{ name: "y" data_type: TYPE_FP32 dims: [ {answer} ] }} ]
dynamic_batching {{ max_queue_delay_microseconds: {delay_us} }}
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
parameters {{ key: "intra_op_thread_count" value {{ string_value: "1" }} }}
"""
IDENTITY = f"""\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", x[:, :{ANSWER}])]))
        return responses
"""


@dataclass(frozen=True, kw_only=True)
class OverheadCell:
    """One size of input and one number of requests per execution; all times in microseconds per execution.

    Each list holds one value per round. `served_us` and `identity_us` are the server's compute input + infer +
    output, `alone_us` is onnxruntime in this process, `copy_us` one copy of the batch into memory that is in use.
    """

    input_bytes: int
    requests: int
    served_us: tuple[float, ...]
    identity_us: tuple[float, ...]
    alone_us: tuple[float, ...]
    copy_us: tuple[float, ...]
    stages: BackendStages

    @property
    def ratio(self) -> float:
        """Median over the rounds of served / (identity + alone + copy), each within its own round."""
        floors = [sum(parts) for parts in zip(self.identity_us, self.alone_us, self.copy_us, strict=True)]
        return statistics.median(served / floor for served, floor in zip(self.served_us, floors, strict=True))


def build(repository: Path, input_bytes: int, requests: int) -> tuple[str, str, str]:
    """Write the models of one cell: identity, ONNX, and ONNX with a clock around each stage; their names."""
    values, delay_us = input_bytes // 4, 0 if requests == 1 else 10_000_000
    kinds = {"identity": "python", "served": "onnxruntime", "clocked": "python"}
    names = {kind: f"{kind}_{input_bytes}_{requests}" for kind in kinds}
    for kind, name in names.items():
        version = repository / name / "1"
        version.mkdir(parents=True)
        filled = CONFIG.format(
            name=name, backend=kinds[kind], requests=requests, values=values, answer=ANSWER, delay_us=delay_us
        )
        (repository / name / "config.pbtxt").write_text(filled)
        if kind == "identity":
            (version / "model.py").write_text(IDENTITY)
            continue
        (version / "model.onnx").write_bytes(_graph(values).SerializeToString())
        if kind == "clocked":
            write_model(version)
    return names["identity"], names["served"], names["clocked"]


def _graph(values: int) -> onnx.ModelProto:
    """y = the first values of each row, doubled."""
    bounds = {"start": [0], "end": [ANSWER], "axis": [1]}
    graph = helper.make_graph(
        [
            helper.make_node("Slice", ["x", "start", "end", "axis"], ["part"]),
            helper.make_node("Add", ["part", "part"], ["y"]),
        ],
        "slice",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", values])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", ANSWER])],
        [numpy_helper.from_array(np.array(value, dtype=np.int64), name) for name, value in bounds.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def measure(
    sizes: Sequence[int], counts: Sequence[int], *, rounds: int, progress: Callable[[str], None] = lambda _: None
) -> list[OverheadCell]:
    """Measure all cells on one server, with the four contenders in turn in every round."""
    with tempfile.TemporaryDirectory() as folder:
        planned = [(size, count, build(Path(folder), size, count)) for size in sizes for count in counts]
        models = tuple(model for _, _, trio in planned for model in trio)
        measured = []
        with launch(Settings(models=models, repository=Path(folder)), progress=progress) as server:
            for size, count, trio in planned:
                progress(f"{size:,} bytes x {count} requests")
                measured.append(_measure(server, trio, size, count, rounds))
        # The clocks are read when their models are unloaded.
        return [
            _cell(size, count, found, Path(folder) / trio[2])
            for (size, count, trio), found in zip(planned, measured, strict=True)
        ]


def _measure(
    server: Server, models: tuple[str, str, str], input_bytes: int, requests: int, rounds: int
) -> dict[str, list[float]]:
    """Microseconds per execution of each round, by contender."""
    batch = np.random.default_rng(1).normal(size=(requests, input_bytes // 4)).astype(np.float32)
    times = _times(batch.nbytes)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    path = server.settings.repository / models[1] / "1" / "model.onnx"
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    target = np.empty_like(batch)
    found: dict[str, list[float]] = {"identity": [], "served": [], "clocked": [], "alone": [], "copy": []}
    with full_batches(server.grpc_url, batch) as sender:
        for number in range(rounds + 1):
            before = [Counters.read(server.grpc_url, model) for model in models]
            alone_us = copy_us = 0.0
            for _ in range(times):
                # In turn, one execution each: all of them find caches that the others have used.
                for model in models:
                    sender.send(model)
                alone_us += _took_us(lambda: session.run(["y"], {"x": batch}))
                copy_us += _took_us(lambda: np.copyto(target, batch))
            spent = [
                _execution_us(server, model, counted, {requests: times})
                for model, counted in zip(models, before, strict=True)
            ]
            if number:  # the first round fills memory pools
                for name, taken in zip(found, [*spent, alone_us / times, copy_us / times], strict=True):
                    found[name].append(taken)
    return found


def _times(batch_bytes: int) -> int:
    """Executions of each contender in one round."""
    return max(5, min(60, (48 << 20) // batch_bytes))


def _cell(input_bytes: int, requests: int, found: Mapping[str, Sequence[float]], clocked: Path) -> OverheadCell:
    times = {f"{name}_us": tuple(found[name]) for name in ("served", "identity", "alone", "copy")}
    stages = read(clocked, found["clocked"], skip=_times(input_bytes * requests))
    return OverheadCell(input_bytes=input_bytes, requests=requests, stages=stages, **times)


def _execution_us(server: Server, model: str, before: Counters, wanted: dict[int, int]) -> float:
    """Mean time of the executions since `before`; raises `LaunchError` unless they are the `wanted` batches."""
    deadline = time.monotonic() + 5
    while (counted := Counters.read(server.grpc_url, model) - before).executions < sum(wanted.values()):
        if time.monotonic() > deadline:
            break
        time.sleep(0.002)  # the server answers first and counts then
    if counted.batches != wanted:
        raise LaunchError(f"'{model}' ran batches {dict(counted.batches)} (rows: executions), not {wanted}.")
    return counted.per_request_us(counted.compute_ns)


def _took_us(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return (time.perf_counter() - started) * 1e6


def table(cells: Sequence[OverheadCell]) -> Table:
    """One row per cell, medians over the rounds."""
    made = Table(
        "input",
        "requests",
        "served us",
        "identity us",
        "onnxruntime us",
        "copy us",
        "ratio",
        f"<= {LIMIT:.2f}",
        title="time per execution; ratio = served / (identity + onnxruntime + copy)",
    )
    for cell in cells:
        medians = (cell.served_us, cell.identity_us, cell.alone_us, cell.copy_us)
        made.add_row(
            f"{cell.input_bytes / 1024:,.0f} KB",
            str(cell.requests),
            *(f"{statistics.median(values):,.0f}" for values in medians),
            f"{cell.ratio:.3f}",
            "yes" if cell.ratio <= LIMIT else "no",
        )
    return made


def write(cells: Sequence[OverheadCell], folder: Path, started_at: str, command: Sequence[str]) -> Path:
    """One record of the whole table."""
    content: dict[str, Any] = {
        "format": 1,
        "kind": "backend_overhead",
        "machine": asdict(Machine.this()),
        "versions": versions(),
        "started_at": started_at,
        "command": list(command),
        "cells": [asdict(cell) | {"ratio": cell.ratio} for cell in cells],
    }
    return whole_file.write(folder / "backend_overhead.json", json.dumps(content, indent=1) + "\n")


def main(argv: list[str] | None = None) -> int:
    """Measure and print; exit code 1 when a cell is over the limit or a server failed, 2 for a mistake."""
    parser = program_parser(
        "python -m perf.studies.backend_overhead",
        __doc__,
        example="--size '600 KB' --requests 8 --rounds 15",
    )
    parser.add_argument("--size", choices=SIZES, action="append", help="of one input (default: all of these)")
    parser.add_argument("--requests", type=int, action="append", help=f"per execution (default: {REQUESTS})")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--results", type=Path, help="also write a record into this folder")
    arguments = parser.parse_args(argv)
    command = ["python", "-m", "perf.studies.backend_overhead", *(sys.argv[1:] if argv is None else argv)]
    return guarded(lambda: _report(arguments, command))


def _report(arguments: argparse.Namespace, command: list[str]) -> int:
    console = terminal()
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("overhead", total=None)
        cells = measure(
            [SIZES[size] for size in arguments.size or SIZES],
            arguments.requests or REQUESTS,
            rounds=arguments.rounds,
            progress=lambda text: bar.update(task, description=text),
        )
    console.print(table(cells))
    console.print(stages_table({(cell.input_bytes, cell.requests): cell.stages for cell in cells}))
    if arguments.results:
        console.print(f"written: {write(cells, arguments.results, started, command)}", markup=False)
    return 0 if all(cell.ratio <= LIMIT for cell in cells) else 1


if __name__ == "__main__":
    sys.exit(main())
