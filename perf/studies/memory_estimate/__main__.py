"""Compare the memory estimate with onnxruntime's profile after every node, to the byte.

It checks the networks of the zoo and the exported models of the repository, and writes a record of each. A model with a
record of the same file, versions and machine is not checked again, so remove the records after a change of the
estimate. There are two settings. `basic` runs each batch size once in a fresh session, without memory pattern. `served`
has the defaults of onnxruntime and Triton, all optimisations and the memory pattern: each batch size runs twice, and
all sizes run twice in one session.
"""

import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import onnx
from rich.progress import track
from rich.table import Table

from export.graph.recipe import digest
from export.repository import models, served_file
from perf.memory.estimate.batch_memory import Model
from perf.records import file
from perf.studies.experiment import Origin, origin
from perf.studies.memory_estimate.check import SETTINGS, CheckedSession, check
from perf.studies.memory_estimate.measured import feeds_of
from perf.studies.memory_estimate.zoo import ZOO
from triton_batching.terminal import Failure, Mistake, guarded, program_parser, terminal

FOLDER = Path("perf/results/local/memory/estimate")


@dataclass(frozen=True, kw_only=True)
class EstimateRecord(Origin):
    """The sessions of one model.

    `unchecked` counts the nodes of operators that were never compared, by setting and operator. `not_estimated` says
    why there is no estimate; then there are no sessions.
    """

    KIND: ClassVar[str] = "estimate"
    FORMAT: ClassVar[int] = 1
    model: str
    model_sha256: str
    unchecked: Mapping[str, Mapping[str, int]]
    sessions: tuple[CheckedSession, ...]
    not_estimated: str = ""


def main(argv: Sequence[str] | None = None) -> int:
    """Check, write a record per model and print a table; exit code 1 if there is a mismatch."""
    parser = program_parser("python -m perf.studies.memory_estimate", __doc__, example="text_recognition unet")
    models_help = "of the zoo or the repository, or NAME=FILE.onnx (default: all)"
    parser.add_argument("models", nargs="*", metavar="MODEL", help=models_help)
    parser.add_argument("--results", type=Path, default=FOLDER, help=f"folder of the records (default: {FOLDER})")
    arguments = parser.parse_args(argv)
    # A record names a user's own file without its folder.
    names = [f"{label}={Path(path).name}" if path else label for label, _, path in map(_parts, arguments.models)]
    command = ("python", "-m", "perf.studies.memory_estimate", *names)
    return guarded(lambda: _check_all(arguments.models or _default(), command, arguments.results))


def _parts(name: str) -> tuple[str, str, str]:
    return name.partition("=")


def _default() -> list[str]:
    files = {name: served_file(name) for name in models()}
    return [*ZOO, *(name for name, path in files.items() if path.suffix == ".onnx" and path.is_file())]


def _check_all(names: Sequence[str], command: Sequence[str], results: Path) -> int:
    table = Table("model", "setting", "batch sizes", "nodes", "peak, bytes", "held, bytes", "mismatches")
    total = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in track(names, description="checking", transient=True):
            record = _record(results / f"{_parts(name)[0]}.json", _file(name, Path(folder)), command)
            if record.not_estimated:
                table.add_row(record.model, "", "", "", "", "", record.not_estimated.partition(": ")[2])
            for session in record.sessions:
                total += len(session.mismatches)
                _add_row(table, record.model, session)
    terminal().print(table)
    return 1 if total else 0


def _add_row(table: Table, model: str, session: CheckedSession) -> None:
    by_operator = Counter(mismatch.operator for mismatch in session.mismatches)
    text = ", ".join(f"{count} {operator}" for operator, count in by_operator.items()) or "none"
    counts = (session.boundaries, session.measured.peak, session.measured.held)
    sizes = ", ".join(map(str, session.sizes))
    table.add_row(model, session.setting, sizes, *(f"{count:,}" for count in counts), text)


def _file(name: str, folder: Path) -> Path:
    """The file of a model; a network of the zoo is written to `folder`."""
    label, _, own_file = _parts(name)
    if name in ZOO:
        path = folder / f"{name}.onnx"
        onnx.save(ZOO[name](), path)
        return path
    path = Path(own_file) if own_file else served_file(label)
    if path.suffix != ".onnx" or not path.is_file():
        raise Mistake(f"{path}: no such ONNX file. Export the model, or name one of {', '.join(ZOO)}.")
    return path


def _record(path: Path, model: Path, command: Sequence[str]) -> EstimateRecord:
    """The record of a model file: from disk if it has the same file, versions and machine, else a new one."""
    name, sha256, made_on = path.stem, digest(model), origin(command)
    if path.is_file():
        old = file.read(path, EstimateRecord)
        known = (old.model, old.model_sha256, old.machine, old.versions)
        if known == (name, sha256, made_on["machine"], made_on["versions"]):
            return old
    feeds = feeds_of(name, model)
    sessions: list[CheckedSession] = []
    not_estimated = ""
    try:
        sessions = [session for setting in SETTINGS for session in check(model, setting, feeds)]
    except Failure as failure:
        # The message begins with the path of the file on this machine.
        not_estimated = f"{name}: {str(failure).partition(': ')[2]}"
    record = EstimateRecord(
        model=name,
        model_sha256=sha256,
        unchecked={name: Model.of(model, level=setting.level).unchecked for name, setting in SETTINGS.items()},
        sessions=tuple(sessions),
        not_estimated=not_estimated,
        **made_on,
    )
    file.write(record, path)
    return record


if __name__ == "__main__":
    sys.exit(main())
