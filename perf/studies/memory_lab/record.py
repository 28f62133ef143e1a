"""Record the memory allocations of an inference: one trace file per model and batch size.

onnxruntime runs the model twice, and the second run is recorded. Its memory pattern is off, so that the arena allocates
each tensor by itself.
"""

import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import onnxruntime
from rich.progress import track
from rich.table import Table

from export.graph.ragged_feed import is_ragged
from export.graph.samples import sample
from export.repository import REPOSITORY, config_file, model_file, model_folder, read_config
from perf.memory.command import dims_of
from perf.studies.memory_lab.drawn import Array, draws
from perf.studies.memory_lab.traces import onnxruntime_profile, trace_file
from perf.studies.memory_lab.traces.trace import Trace
from triton_batching.terminal import Mistake, guarded, program_parser, terminal

FOLDER = Path("perf/results/local/memory/traces")
OPTIMISATIONS = {
    "basic": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "all": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
}


def record(
    model: str,
    rows: int,
    *,
    optimisation: str = "all",
    repository: Path = REPOSITORY,
    dims: Mapping[str, int] | None = None,
) -> Trace:
    """The trace of one inference of `rows` rows.

    `model` is a model of the repository or an .onnx file, with the sizes `dims` of its dynamic dimensions besides the
    batch. Raises `Mistake` unless it is an ONNX model that takes so many rows.
    """
    if model.endswith(".onnx"):
        path = Path(model)
        if not path.is_file():
            raise Mistake(f"{path}: no such file. Name another.")
        return _traced(path, path.stem, rows, draws(path, dims)(rows), optimisation)
    folder = model_folder(model, repository)
    config = read_config(config_file(folder, None))
    path = model_file(folder, config)
    if path.suffix != ".onnx" or is_ragged(config):
        raise Mistake(f"'{model}' is not a batched ONNX model ({path.name}). Name one that is.")
    if not path.is_file():
        raise Mistake(f"{path}: not exported yet. Run: make export ARGS={model}.")
    if not 1 <= rows <= max(1, config.max_batch_size):
        raise Mistake(f"'{model}' takes batches of 1 to {config.max_batch_size} rows, not {rows}.")
    return _traced(path, model, rows, sample(config, rows=rows), optimisation)


def _traced(path: Path, name: str, rows: int, inputs: Mapping[str, Array], optimisation: str) -> Trace:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = OPTIMISATIONS[optimisation]
    options.enable_mem_pattern = False
    options.enable_profiling = True
    with tempfile.TemporaryDirectory() as folder_of_profile:
        options.profile_file_prefix = str(Path(folder_of_profile) / "profile")
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        for _ in range(2):
            session.run(None, dict(inputs))
        traces = onnxruntime_profile.read(Path(session.end_profiling()))
    return replace(traces[-1], model=name, rows=rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Record and write the traces; exit code 2 for a user's mistake."""
    parser = program_parser("python -m perf.studies.memory_lab.record", __doc__, example="resnet50 --rows 1 8 32")
    parser.add_argument("models", nargs="+", metavar="MODEL", help="of the repository, or an .onnx file")
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 8], metavar="N", help="batch sizes (default: 1 8)")
    parser.add_argument("--optimisation", choices=sorted(OPTIMISATIONS), default="all", help="graph optimisation level")
    parser.add_argument("--dims", default="", metavar="NAME=SIZE,...", help="a file's other dynamic dimensions")
    parser.add_argument("--to", type=Path, default=FOLDER, metavar="FOLDER", help=f"of the files (default: {FOLDER})")
    arguments = parser.parse_args(argv)
    pairs = [(model, rows) for model in arguments.models for rows in arguments.rows]
    return guarded(lambda: _write_all(pairs, arguments.optimisation, dims_of(arguments.dims), arguments.to))


def _write_all(pairs: list[tuple[str, int]], optimisation: str, dims: Mapping[str, int], folder: Path) -> None:
    table = Table("trace", "allocations", "live peak, bytes", "not freed", "remarks")
    for model, rows in track(pairs, description="recording", transient=True):
        trace = record(model, rows, optimisation=optimisation, dims=dims)
        path = trace_file.write(trace, folder / f"{trace.model}-onnxruntime-{rows}.json")
        counts = (len(trace.allocations), trace.live_peak_bytes, len(trace.unmatched), len(trace.remarks))
        table.add_row(str(path), *(f"{count:,}" for count in counts))
    terminal().print(table)


if __name__ == "__main__":
    sys.exit(main())
