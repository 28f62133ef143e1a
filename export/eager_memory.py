"""Record what a torch model allocates on the CPU in one inference: a chrome trace by torch.profiler.

`python -m perf.studies.memory_lab FILE` reads the trace.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch.profiler import ProfilerActivity, profile

from export.graph import torch_onnx
from export.graph.ragged_feed import is_ragged
from export.graph.samples import sample
from export.models.catalogue import CATALOGUE, Reference
from export.repository import REPOSITORY, config_file, model_folder, read_config
from triton_batching.terminal import Mistake, guarded, program_parser, terminal


def record(reference: Reference, inputs: Mapping[str, NDArray[np.generic]], path: Path) -> Path:
    """Profile one inference of `inputs`, after a warm-up, and write its trace."""
    reference(inputs)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        outputs = reference(inputs)
        # Released within the profile, so that the trace has the release too.
        del outputs
    path.parent.mkdir(parents=True, exist_ok=True)
    profiler.export_chrome_trace(str(path))
    return path


def main(argv: Sequence[str] | None = None) -> int:
    """Record one model of the catalogue; exit code 2 for a user's mistake."""
    parser = program_parser("python -m export.eager_memory", __doc__, example="resnet50 --rows 8 --to build/eager.json")
    parser.add_argument("model", help="a torch model of the repository")
    parser.add_argument("--rows", type=int, default=1, help="rows of the batch (default: 1)")
    parser.add_argument("--to", type=Path, required=True, metavar="FILE", help="the chrome trace to write")
    arguments = parser.parse_args(argv)
    return guarded(lambda: _record(arguments.model, arguments.rows, arguments.to))


def _record(model: str, rows: int, path: Path) -> None:
    if model not in CATALOGUE:
        raise Mistake(f"'{model}' is not a model of the catalogue. Known: {', '.join(sorted(CATALOGUE))}.")
    if rows < 1:
        raise Mistake(f"--rows {rows}: a batch has at least one row.")
    exporter = CATALOGUE[model]
    config = read_config(config_file(model_folder(model, REPOSITORY), None))
    reference = exporter.reference(exporter.recipe, exporter.weights_of(exporter.recipe))
    if is_ragged(config) or not isinstance(reference, torch_onnx.Reference):
        raise Mistake(f"'{model}' is ragged or not a torch model, so it has no batch of rows to run in torch.")
    terminal().print(f"written: {record(reference, sample(config, rows=rows), path)}", markup=False)


if __name__ == "__main__":
    sys.exit(main())
