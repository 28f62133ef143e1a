"""Compare the estimate with onnxruntime's own profile, at the boundary of every node, to the byte.

`python -m perf.memory.estimate.check` checks the models of the zoo and those of the repository that it finds, at six
batch sizes, and writes every mismatch by operator to perf/results/memory; a model without a change is not run again.
"""

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper
from rich.progress import track
from rich.table import Table

from clients.machine import Machine, versions
from export.recipe import digest
from export.repository import models, served_file
from export.terminal import Failure, Mistake, guarded, program_parser, terminal
from perf.memory.estimate.batch_memory import Model
from perf.memory.estimate.measured import FIELDS, measure
from perf.memory.estimate.timeline import Boundary
from perf.memory.estimate.zoo import ZOO

FOLDER = Path("perf/results/memory/estimate")
BATCHES = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """At node `at` of the order of execution, a field of `Boundary` that differs, or the operator itself."""

    at: int
    node: str
    operator: str
    field: str
    estimated: int | str
    measured: int | str


@dataclass(frozen=True, kw_only=True)
class Checked:
    """One model at one batch size: the last boundary as estimated and as measured, and every mismatch on the way."""

    batch: int
    nodes: int
    estimated: Boundary
    measured: Boundary
    mismatches: tuple[Mismatch, ...]


def mismatches(estimated: Sequence[Boundary], measured: Sequence[Boundary]) -> Iterator[Mismatch]:
    """Every field of every node that differs; where the runs differ in length, that is one more."""
    if len(estimated) != len(measured):
        yield Mismatch(
            at=0, node="", operator="", field="nodes", estimated=len(estimated), measured=len(measured)
        )
    for at, (ours, theirs) in enumerate(zip(estimated, measured, strict=False)):
        for field in ("operator", *FIELDS):
            if getattr(ours, field) != getattr(theirs, field):
                yield Mismatch(
                    at=at,
                    node=theirs.node,
                    operator=theirs.operator,
                    field=field,
                    estimated=getattr(ours, field),
                    measured=getattr(theirs, field),
                )


def feeds(model: Model, batch: int, dims: Mapping[str, int], seed: int = 0) -> dict[str, NDArray[np.generic]]:
    """Random inputs of the right shapes and types; whole numbers are 0 or 1."""
    rng = np.random.default_rng(seed)
    shapes = model.shapes(batch, dims).known
    made: dict[str, NDArray[np.generic]] = {}
    for value in model.graph.model.graph.input:
        if value.name in model.graph.inputs:
            kind = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            drawn = rng.random(shapes[value.name]) if kind.kind == "f" else rng.integers(0, 2, shapes[value.name])
            made[value.name] = drawn.astype(kind)
    return made


def check(path: Path, batch: int, *, level: str = "basic", threads: int = 1, model: Model | None = None) -> Checked:
    """Estimate and run one model at one batch size."""
    model = model or Model.of(path, level=level, threads=threads)
    estimated = model.timeline(batch, {}).boundaries
    measured = measure(path, feeds(model, batch, {}), level=level, threads=threads)
    return Checked(
        batch=batch,
        nodes=len(measured),
        estimated=estimated[-1],
        measured=measured[-1],
        mismatches=tuple(mismatches(estimated, measured)),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Check, write a record per model, print; exit code 1 where anything differs."""
    program = "python -m perf.memory.estimate.check"
    parser = program_parser(program, __doc__, example="resnet50 unet wide=exports/wide.onnx")
    parser.add_argument(
        "models", nargs="*", metavar="MODEL", help="of the zoo or the repository, or NAME=FILE.onnx (default: all)"
    )
    arguments = parser.parse_args(argv)
    command = ("python", "-m", "perf.memory.estimate.check", *(sys.argv[1:] if argv is None else argv))
    return guarded(lambda: _check_all(arguments.models or _default(), command))


def _default() -> list[str]:
    return [*ZOO, *(name for name in models() if (path := served_file(name)).suffix == ".onnx" and path.is_file())]


def _check_all(names: Sequence[str], command: Sequence[str]) -> int:
    table = Table("model", "batch", "nodes", "peak, bytes", "held, bytes", "mismatches")
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in track(names, description="checking", transient=True):
            path = _file(name, Path(folder))
            record = _recorded(name.partition("=")[0], path, command)
            for one in record["batches"]:
                wrong += len(one["mismatches"])
                by_operator = Counter(found["operator"] for found in one["mismatches"])
                said = ", ".join(f"{count} {operator}" for operator, count in by_operator.items()) or "none"
                counts = (one["batch"], one["nodes"], one["measured"]["peak"], one["measured"]["held"])
                table.add_row(record["model"], *(f"{count:,}" for count in counts), said)
    terminal().print(table)
    return 1 if wrong else 0


def _file(name: str, folder: Path) -> Path:
    """The model's file; one of the zoo is written to `folder`."""
    label, _, given = name.partition("=")
    if name in ZOO:
        path = folder / f"{name}.onnx"
        onnx.save(ZOO[name](), path)
        return path
    path = Path(given) if given else served_file(label)
    if path.suffix != ".onnx" or not path.is_file():
        raise Mistake(f"{path}: not an ONNX file that is there. Export the model first, or name one of {', '.join(ZOO)}.")
    return path


def _recorded(name: str, path: Path, command: Sequence[str]) -> dict[str, Any]:
    """The model's record, from disk where it is of this file and these versions."""
    record, made_by = FOLDER / f"{name}.json", {"model_sha256": digest(path), "versions": versions()}
    if record.is_file():
        content: dict[str, Any] = json.loads(record.read_text())
        if all(content.get(key) == value for key, value in made_by.items()):
            return content
    model = Model.of(path)
    content = {
        "format": 1,
        "kind": "estimate",
        "model": name,
        **made_by,
        "machine": asdict(Machine.this()),
        "command": list(command),
        "weights_bytes": model.weights.bytes,
        "unchecked": model.unchecked,
        "batches": [asdict(check(path, batch, model=model)) for batch in BATCHES],
    }
    FOLDER.mkdir(parents=True, exist_ok=True)
    record.write_text(json.dumps(content, indent=1) + "\n")
    return content


if __name__ == "__main__":
    sys.exit(main())
