"""What serving costs: our onnxruntime backend against its lower bounds, in one interleaved run.

The bounds are onnxruntime in this process on the same batch, and an identity model.py that returns a slice of its
input, which is the cost of Triton's Python hop; one memory copy of the batch is added. The backend's own code runs once
more with a clock around each of its stages (`perf.studies.backend_overhead.stages`).
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from rich.table import Table

from perf.records import file
from perf.studies.backend_overhead.full_batches import full_batches
from perf.studies.backend_overhead.stages import BackendStages, read, write_model
from perf.studies.backend_overhead.stages import table as stages_table
from perf.studies.experiment import (
    Origin,
    command_line,
    counted_since,
    now,
    onnxruntime_alone,
    origin,
    progress_line,
)
from serve.launcher import LaunchError, Server, Settings, launch
from serve.management.statistics import Counters
from triton_batching.terminal import guarded, program_parser, terminal

SIZES = {"1 KB": 1 << 10, "600 KB": 600 << 10, "4 MB": 4 << 20}
REQUESTS = (1, 8, 32)
# Values of every model's output per row.
ANSWER = 16
# The highest allowed time of an execution over its lower bounds.
LIMIT = 1.05
NAME = "backend_overhead.json"
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


@dataclass(frozen=True, kw_only=True)
class OverheadRecord(Origin):
    """All cells of a run."""

    KIND: ClassVar[str] = "backend_overhead"
    FORMAT: ClassVar[int] = 1
    cells: tuple[OverheadCell, ...]


def build(repository: Path, input_bytes: int, requests: int) -> tuple[str, str, str]:
    """Write the models of one cell: identity, ONNX, and ONNX with a clock around each stage; returns their names."""
    values, delay_us = input_bytes // 4, 0 if requests == 1 else 10_000_000
    kinds = {"identity": "python", "served": "onnxruntime", "clocked": "python"}
    names = {kind: f"{kind}_{input_bytes}_{requests}" for kind in kinds}
    for kind, name in names.items():
        version = repository / name / "1"
        version.mkdir(parents=True)
        config = CONFIG.format(
            name=name, backend=kinds[kind], requests=requests, values=values, answer=ANSWER, delay_us=delay_us
        )
        (repository / name / "config.pbtxt").write_text(config)
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
    """Measure all cells on one server; the four contenders run in turn in every round."""
    with tempfile.TemporaryDirectory() as folder:
        planned = [(size, count, build(Path(folder), size, count)) for size in sizes for count in counts]
        models = tuple(model for _, _, names in planned for model in names)
        measured = []
        with launch(Settings(models=models, repository=Path(folder)), progress=progress) as server:
            for size, count, names in planned:
                progress(f"{size:,} bytes x {count} requests")
                measured.append(_measure(server, names, size, count, rounds))
        # A clocked model writes its times when it is unloaded.
        return [
            _cell(size, count, times_us, Path(folder) / names[2])
            for (size, count, names), times_us in zip(planned, measured, strict=True)
        ]


def _measure(
    server: Server, models: tuple[str, str, str], input_bytes: int, requests: int, rounds: int
) -> dict[str, list[float]]:
    """Microseconds per execution of each round, by contender."""
    batch = np.random.default_rng(1).normal(size=(requests, input_bytes // 4)).astype(np.float32)
    executions = _executions(batch.nbytes)
    session = onnxruntime_alone(server.settings.repository / models[1] / "1" / "model.onnx", 1)
    target = np.empty_like(batch)
    times_us: dict[str, list[float]] = {"identity": [], "served": [], "clocked": [], "alone": [], "copy": []}
    with full_batches(server.grpc_url, batch) as sender:
        for number in range(rounds + 1):
            before = [Counters.read(server.grpc_url, model) for model in models]
            alone_us = copy_us = 0.0
            for _ in range(executions):
                # One execution each, in turn: each finds the caches as the others left them.
                for model in models:
                    sender.send(model)
                alone_us += _took_us(lambda: session.run(["y"], {"x": batch}))
                copy_us += _took_us(lambda: np.copyto(target, batch))
            served_us = [
                _execution_us(server, model, counters, {requests: executions})
                for model, counters in zip(models, before, strict=True)
            ]
            if number:  # the first round fills memory pools
                round_us = [*served_us, alone_us / executions, copy_us / executions]
                for name, mean_us in zip(times_us, round_us, strict=True):
                    times_us[name].append(mean_us)
    return times_us


def _executions(batch_bytes: int) -> int:
    """Executions of each contender in one round."""
    return max(5, min(60, (48 << 20) // batch_bytes))


def _cell(input_bytes: int, requests: int, times_us: Mapping[str, Sequence[float]], clocked: Path) -> OverheadCell:
    fields = {f"{name}_us": tuple(times_us[name]) for name in ("served", "identity", "alone", "copy")}
    stages = read(clocked, times_us["clocked"], skip=_executions(input_bytes * requests))
    return OverheadCell(input_bytes=input_bytes, requests=requests, stages=stages, **fields)


def _execution_us(server: Server, model: str, before: Counters, batches: dict[int, int]) -> float:
    """Mean time of the executions since `before`; raises `LaunchError` unless they ran exactly these `batches`."""
    requests = sum(rows * executions for rows, executions in batches.items())
    counted = counted_since(before, server.grpc_url, model, requests=requests)
    if counted.batches != batches:
        raise LaunchError(f"'{model}' ran batches {dict(counted.batches)} (rows: executions), not {batches}.")
    return counted.per_request_us(counted.compute_ns)


def _took_us(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return (time.perf_counter() - started) * 1e6


def table(cells: Sequence[OverheadCell]) -> Table:
    """One row per cell, medians over the rounds."""
    rows = Table(
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
        rows.add_row(
            f"{cell.input_bytes / 1024:,.0f} KB",
            str(cell.requests),
            *(f"{statistics.median(values):,.0f}" for values in medians),
            f"{cell.ratio:.3f}",
            "yes" if cell.ratio <= LIMIT else "no",
        )
    return rows


def main(argv: list[str] | None = None) -> int:
    """Measure and print; exit code 1 if a cell is over the limit or a server failed, 2 for a mistake."""
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
    return guarded(lambda: _run(arguments, command_line("backend_overhead", argv)))


def _run(arguments: argparse.Namespace, command: Sequence[str]) -> int:
    console, started_at = terminal(), now()
    with progress_line("overhead") as progress:
        sizes = [SIZES[size] for size in arguments.size or SIZES]
        cells = measure(sizes, arguments.requests or REQUESTS, rounds=arguments.rounds, progress=progress)
    console.print(table(cells))
    console.print(stages_table({(cell.input_bytes, cell.requests): cell.stages for cell in cells}))
    if arguments.results:
        record = OverheadRecord(cells=tuple(cells), **origin(command, started_at))
        console.print(f"record: {file.write(record, arguments.results / NAME)}", markup=False)
    return 0 if all(cell.ratio <= LIMIT for cell in cells) else 1


if __name__ == "__main__":
    sys.exit(main())
