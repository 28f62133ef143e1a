"""Record the memory allocations of an inference: one trace file per model and batch size.

onnxruntime runs the model twice, and the second run is recorded. Its memory pattern is off, so that the arena allocates
each tensor by itself.
"""

import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnx import helper
from rich.progress import track

from export.repository import REPOSITORY, served_file
from perf.memory.command import dims_of
from perf.memory.estimate.graph import Graph, Shape
from perf.memory.estimate.shapes import inputs_at
from perf.studies.memory_lab import onnxruntime_profile, trace
from perf.studies.memory_lab.trace import Trace
from perf.studies.tables import plain_table
from triton_batching.terminal import Mistake, guarded, program_parser, terminal

FOLDER = Path("perf/results/local/memory/traces")
Array = NDArray[np.generic]
Draws = Callable[[int], Mapping[str, Array]]


def record(model: str, rows: int, *, repository: Path = REPOSITORY, dims: Mapping[str, int] | None = None) -> Trace:
    """The trace of one inference of `rows` rows; raises `Mistake` for a model that onnxruntime cannot run.

    `model` is a model of the repository or an .onnx file, with the sizes `dims` of its dynamic dimensions besides the
    batch.
    """
    path = Path(model) if model.endswith(".onnx") else served_file(model, repository)
    options = onnxruntime.SessionOptions()
    options.enable_mem_pattern = False
    options.enable_profiling = True
    with tempfile.TemporaryDirectory() as folder:
        options.profile_file_prefix = str(Path(folder) / "profile")
        try:
            inputs = dict(draws(path, dims)(rows))
            session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
            for _ in range(2):
                session.run(None, inputs)
        except RuntimeError as error:
            raise Mistake(
                f"{path}: onnxruntime cannot run it on random inputs: {error}. Name another model."
            ) from error
        traces = onnxruntime_profile.parse(Path(session.end_profiling()).read_bytes(), f"the profile of {path}")
    return msgspec.structs.replace(traces[-1], model=Path(model).stem, rows=rows)


def draws(path: Path, dims: Mapping[str, int] | None = None) -> Draws:
    """Maps a batch size to seeded inputs of the file; integers are 0 or 1, so that they may be indices.

    `dims` has the sizes of dynamic dimensions besides the batch. Raises `Mistake` if the file cannot be loaded, and
    when called like `inputs_at`.
    """
    graph = Graph.of(path, "disabled")
    kinds = {name: graph.values[name].type for name in graph.inputs}

    def at(batch: int) -> Mapping[str, Array]:
        shapes = inputs_at(graph, batch, dims or {})
        return {name: _values(name, kinds[name], shape, batch) for name, shape in shapes.items()}

    return at


def _values(name: str, kind: int | None, shape: Shape, seed: int) -> Array:
    dtype = None if kind is None else helper.tensor_dtype_to_np_dtype(kind)
    if dtype is None or dtype.kind not in "fiub":
        raise Mistake(
            f'input "{name}" is neither of numbers nor of bools, so no values can be drawn. Name another file.'
        )
    rng = np.random.default_rng(seed)
    values: Array = (rng.random(shape) if dtype.kind == "f" else rng.integers(0, 2, shape)).astype(dtype)
    return values


def main(argv: Sequence[str] | None = None) -> int:
    """Record and write the traces; exit code 2 for a user's mistake."""
    parser = program_parser("python -m perf.studies.memory_lab.record", __doc__, example="resnet50 --rows 1 8 32")
    parser.add_argument("models", nargs="+", metavar="MODEL", help="of the repository, or an .onnx file")
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 8], metavar="N", help="batch sizes (default: 1 8)")
    parser.add_argument("--dims", default="", metavar="NAME=SIZE,...", help="a file's other dynamic dimensions")
    parser.add_argument("--to", type=Path, default=FOLDER, metavar="FOLDER", help=f"of the files (default: {FOLDER})")
    arguments = parser.parse_args(argv)
    pairs = [(model, rows) for model in arguments.models for rows in arguments.rows]
    return guarded(lambda: _write_all(pairs, dims_of(arguments.dims), arguments.to))


def _write_all(pairs: list[tuple[str, int]], dims: Mapping[str, int], folder: Path) -> None:
    table = plain_table(("trace", "allocations", "live peak, bytes", "not freed", "remarks"))
    for model, rows in track(pairs, description="recording", transient=True):
        found = record(model, rows, dims=dims)
        path = trace.write(found, folder / f"{found.model}-onnxruntime-{rows}.json")
        counts = (len(found.allocations), found.live_peak_bytes, len(found.unmatched), len(found.remarks))
        table.add_row(str(path), *(f"{count:,}" for count in counts))
    terminal().print(table)


if __name__ == "__main__":
    sys.exit(main())
