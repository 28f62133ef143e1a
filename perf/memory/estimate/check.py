"""Compare the estimate with onnxruntime's own profile, at the boundary of every node, to the byte.

`python -m perf.memory.estimate.check` checks the networks of the zoo and the models of the repository that are there,
and writes each to a record; what was checked of the same file, versions and machine is not run again, so remove its
record after a change of the estimate. Two settings: `basic`, one run in a fresh session per batch
size, without memory pattern; and `served`, as onnxruntime is by default and in Triton, with all optimisations and
memory pattern: two runs per batch size, and all sizes in one session, twice.
"""

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import onnx
from rich.progress import track
from rich.table import Table

from export.graph.recipe import digest
from export.repository import models, served_file
from perf.memory.estimate.batch_memory import Model
from perf.memory.estimate.feeds import Feeds, feeds_of
from perf.memory.estimate.measured import FIELDS, measure
from perf.memory.estimate.timeline import Boundary
from perf.memory.estimate.zoo import ZOO
from perf.memory.trace.json_text import parsed
from perf.records.record import write_json
from triton_batching.machine import Machine, versions
from triton_batching.terminal import Failure, Mistake, guarded, program_parser, terminal

FOLDER = Path("perf/results/local/memory/estimate")
BATCHES = (1, 2, 4, 8, 16, 32)
FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How a session is made, and the batch sizes of the runs in each."""

    level: str
    pattern: bool
    sessions: tuple[tuple[int, ...], ...]


SETTINGS = {
    "basic": Setting(level="basic", pattern=False, sessions=tuple((size,) for size in BATCHES)),
    "served": Setting(level="all", pattern=True, sessions=(*((size, size) for size in BATCHES), BATCHES * 2)),
}


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """At node `at` of the runs' nodes, a field of `Boundary` that differs, or the operator itself."""

    at: int
    node: str
    operator: str
    field: str
    estimated: int | str
    measured: int | str


@dataclass(frozen=True, kw_only=True)
class Checked:
    """One session: the batch sizes of its runs, the last boundary as estimated and as measured, and every mismatch."""

    setting: str
    sizes: tuple[int, ...]
    boundaries: int
    estimated: Boundary
    measured: Boundary
    mismatches: tuple[Mismatch, ...]


def mismatches(estimated: Sequence[Boundary], measured: Sequence[Boundary]) -> Iterator[Mismatch]:
    """Every field of every node that differs; where the runs differ in length, that is one more."""
    if len(estimated) != len(measured):
        counts = {"estimated": len(estimated), "measured": len(measured)}
        yield Mismatch(at=0, node="", operator="all", field="nodes", **counts)
    for at, (ours, theirs) in enumerate(zip(estimated, measured, strict=False)):
        for field in ("operator", *FIELDS):
            values = {"estimated": getattr(ours, field), "measured": getattr(theirs, field)}
            if values["estimated"] != values["measured"]:
                yield Mismatch(at=at, node=theirs.node, operator=theirs.operator, field=field, **values)


def check(path: Path, setting: str, feeds: Feeds, *, sessions: Sequence[Sequence[int]] | None = None) -> list[Checked]:
    """Estimate and run one model's sessions of a setting, or those given."""
    wanted = SETTINGS[setting]
    model = Model.of(path, level=wanted.level, pattern=wanted.pattern)
    return [_session(model, path, setting, feeds, tuple(sizes)) for sizes in sessions or wanted.sessions]


def _session(model: Model, path: Path, setting: str, feeds: Feeds, sizes: tuple[int, ...]) -> Checked:
    wanted = SETTINGS[setting]
    fed = [feeds(size) for size in sizes]
    runs = measure(path, fed, level=wanted.level, pattern=wanted.pattern)
    measured = [boundary for run in runs for boundary in run]
    shapes = [{name: value.shape for name, value in one.items()} for one in fed]
    estimated = [boundary for run in model.runs(shapes) for boundary in run.boundaries]
    return Checked(
        setting=setting,
        sizes=sizes,
        boundaries=len(measured),
        estimated=estimated[-1],
        measured=measured[-1],
        mismatches=tuple(mismatches(estimated, measured)),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Check, write a record per model, print; exit code 1 where anything differs."""
    program = "python -m perf.memory.estimate.check"
    parser = program_parser(program, __doc__, example="text_recognition unet")
    said = "of the zoo or the repository, or NAME=FILE.onnx (default: all that are there)"
    parser.add_argument("models", nargs="*", metavar="MODEL", help=said)
    parser.add_argument("--results", type=Path, default=FOLDER, help=f"folder of the records (default: {FOLDER})")
    arguments = parser.parse_args(argv)
    # A file of the person's own is named, not where it is.
    named = [f"{label}={Path(given).name}" if given else label for label, _, given in map(_parts, arguments.models)]
    command = ("python", "-m", "perf.memory.estimate.check", *named)
    return guarded(lambda: _check_all(arguments.models or _default(), command, arguments.results))


def _parts(name: str) -> tuple[str, str, str]:
    return name.partition("=")


def _default() -> list[str]:
    files = {name: served_file(name) for name in models()}
    return [*ZOO, *(name for name, path in files.items() if path.suffix == ".onnx" and path.is_file())]


def _check_all(names: Sequence[str], command: Sequence[str], results: Path) -> int:
    table = Table("model", "setting", "batch sizes", "nodes", "peak, bytes", "held, bytes", "mismatches")
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in track(names, description="checking", transient=True):
            record = _recorded(results / f"{name.partition('=')[0]}.json", _file(name, Path(folder)), command)
            if "not_estimated" in record:
                table.add_row(record["model"], "", "", "", "", "", record["not_estimated"].partition(": ")[2])
            for one in record["sessions"]:
                wrong += len(one["mismatches"])
                by_operator = Counter(found["operator"] for found in one["mismatches"])
                said = ", ".join(f"{count} {operator}" for operator, count in by_operator.items()) or "none"
                counts = (one["boundaries"], one["measured"]["peak"], one["measured"]["held"])
                sizes = ", ".join(map(str, one["sizes"]))
                table.add_row(record["model"], one["setting"], sizes, *(f"{count:,}" for count in counts), said)
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
        raise Mistake(f"{path}: not an ONNX file that is there. Export the model, or name one of {', '.join(ZOO)}.")
    return path


def _recorded(record: Path, path: Path, command: Sequence[str]) -> Mapping[str, Any]:
    """The model's record, from disk where it is of this file, these versions and this machine."""
    name = record.name.removesuffix(".json")
    made_of = {
        "format": FORMAT,
        "kind": "estimate",
        "model": name,
        "model_sha256": digest(path),
        "versions": versions(),
        "machine": asdict(Machine.this()),
    }
    if record.is_file():
        content: dict[str, Any] = parsed(record.read_bytes(), str(record))
        if all(content.get(key) == value for key, value in made_of.items()):
            return content
    feeds = feeds_of(name, path)
    content = {
        **made_of,
        "command": list(command),
        "unchecked": {setting: Model.of(path, level=one.level).unchecked for setting, one in SETTINGS.items()},
    }
    try:
        content["sessions"] = [asdict(one) for setting in SETTINGS for one in check(path, setting, feeds)]
    except Failure as failure:
        # The text begins with the file, which is somewhere on this machine.
        content |= {"sessions": [], "not_estimated": f"{name}: {str(failure).partition(': ')[2]}"}
    write_json(record.name, content, record.parent)
    return content


if __name__ == "__main__":
    sys.exit(main())
