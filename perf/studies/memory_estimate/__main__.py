"""Compare the memory estimate with onnxruntime's profile after every node, to the byte.

It checks the networks of the zoo and the exported models of the repository, and writes a record of each. A record of
the same file, versions and machine is not made again, so remove it after a change of the estimate. There are two
settings. `basic` runs each batch size once in a fresh session, without memory pattern. `served` has onnxruntime's and
Triton's defaults, all optimisations and the memory pattern: each batch size twice, and all sizes twice in one session.
"""

import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import onnx
from rich.progress import track
from rich.table import Table

from export.graph.recipe import digest
from export.repository import models, served_file
from perf.memory.estimate.batch_memory import Model
from perf.records.measurement import write_json
from perf.studies.memory_estimate.check import SETTINGS, check
from perf.studies.memory_estimate.measured import feeds_of
from perf.studies.memory_estimate.zoo import ZOO
from perf.studies.memory_lab.traces.fields import parsed
from triton_batching.machine import Machine, versions
from triton_batching.terminal import Failure, Mistake, guarded, program_parser, terminal

FOLDER = Path("perf/results/local/memory/estimate")
FORMAT = 1


def main(argv: Sequence[str] | None = None) -> int:
    """Check, write a record per model and print a table; exit code 1 if there is a mismatch."""
    parser = program_parser("python -m perf.studies.memory_estimate", __doc__, example="text_recognition unet")
    models_help = "of the zoo or the repository, or NAME=FILE.onnx (default: all)"
    parser.add_argument("models", nargs="*", metavar="MODEL", help=models_help)
    parser.add_argument("--results", type=Path, default=FOLDER, help=f"folder of the records (default: {FOLDER})")
    arguments = parser.parse_args(argv)
    # A record names a user's own file without its folder.
    names = [f"{label}={Path(file).name}" if file else label for label, _, file in map(_parts, arguments.models)]
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
            if "not_estimated" in record:
                table.add_row(record["model"], "", "", "", "", "", record["not_estimated"].partition(": ")[2])
            for session in record["sessions"]:
                total += len(session["mismatches"])
                _add_row(table, record["model"], session)
    terminal().print(table)
    return 1 if total else 0


def _add_row(table: Table, model: str, session: Mapping[str, Any]) -> None:
    by_operator = Counter(mismatch["operator"] for mismatch in session["mismatches"])
    text = ", ".join(f"{count} {operator}" for operator, count in by_operator.items()) or "none"
    counts = (session["boundaries"], session["measured"]["peak"], session["measured"]["held"])
    sizes = ", ".join(map(str, session["sizes"]))
    table.add_row(model, session["setting"], sizes, *(f"{count:,}" for count in counts), text)


def _file(name: str, folder: Path) -> Path:
    """The file of a model; a network of the zoo is written to `folder`."""
    label, _, file = _parts(name)
    if name in ZOO:
        path = folder / f"{name}.onnx"
        onnx.save(ZOO[name](), path)
        return path
    path = Path(file) if file else served_file(label)
    if path.suffix != ".onnx" or not path.is_file():
        raise Mistake(f"{path}: no such ONNX file. Export the model, or name one of {', '.join(ZOO)}.")
    return path


def _record(record: Path, path: Path, command: Sequence[str]) -> Mapping[str, Any]:
    """The record of a model: from disk if it has the same file, versions and machine, else a new one."""
    name = record.name.removesuffix(".json")
    origin = {
        "format": FORMAT,
        "kind": "estimate",
        "model": name,
        "model_sha256": digest(path),
        "versions": versions(),
        "machine": asdict(Machine.this()),
    }
    if record.is_file():
        content: dict[str, Any] = parsed(record.read_bytes(), str(record))
        if all(content.get(key) == value for key, value in origin.items()):
            return content
    feeds = feeds_of(name, path)
    unchecked = {name: Model.of(path, level=setting.level).unchecked for name, setting in SETTINGS.items()}
    content = {**origin, "command": list(command), "unchecked": unchecked}
    try:
        content["sessions"] = [asdict(session) for setting in SETTINGS for session in check(path, setting, feeds)]
    except Failure as failure:
        # The message begins with the path of the file on this machine.
        content |= {"sessions": [], "not_estimated": f"{name}: {str(failure).partition(': ')[2]}"}
    write_json(record.name, content, record.parent)
    return content


if __name__ == "__main__":
    sys.exit(main())
