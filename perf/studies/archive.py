"""Pack a folder of records into one file of JSON lines, as they are kept in git, or unpack it.

`python -m perf.studies.archive unpack perf/studies/results/goodput.jsonl perf/results/local/goodput` makes the folder
again, so that the experiment can go on with it. `pack FOLDER FILE` does the opposite.
"""

import contextlib
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from triton_batching import whole_file
from triton_batching.terminal import Mistake, guarded, program_parser, terminal

ROOT = Path(__file__).parents[2]
# The records in git.
RESULTS = ROOT / "perf" / "studies" / "results"


def pack(folder: Path, file: Path) -> int:
    """Write every JSON file below `folder` as one line of `file`; return their number."""
    paths = sorted(folder.rglob("*.json"))
    if not paths:
        raise Mistake(f"{folder}: holds no records (*.json). Name a folder that an experiment wrote with --results.")
    records = ({"path": str(path.relative_to(folder)), "record": json.loads(path.read_text())} for path in paths)
    whole_file.write(file, "".join(json.dumps(record, allow_nan=False) + "\n" for record in records))
    return len(paths)


def unpack(file: Path, folder: Path) -> int:
    """Write every record of `file` to its path below `folder`; return their number."""
    count = 0
    for path, record in _records(file):
        target = folder / path
        if not target.resolve().is_relative_to(folder.resolve()):
            raise Mistake(f"{file}: names {path}, which is outside of the folder. Use another file.")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(record, indent=1) + "\n")
        count += 1
    return count


@contextlib.contextmanager
def unpacked(file: Path) -> Iterator[Path]:
    """A temporary folder with the records of `file`."""
    with tempfile.TemporaryDirectory(prefix="triton-batching-") as folder:
        unpack(file, Path(folder))
        yield Path(folder)


def _records(file: Path) -> Iterator[tuple[str, object]]:
    try:
        for line in file.read_text().splitlines():
            content = json.loads(line)
            yield content["path"], content["record"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Mistake(f"{file}: not an archive of records ({error}). Make one: pack FOLDER FILE.") from error


def main(argv: list[str] | None = None) -> int:
    """Pack or unpack; exit code 2 for a user's mistake."""
    example = "unpack perf/studies/results/goodput.jsonl perf/results/local/goodput"
    parser = program_parser("python -m perf.studies.archive", __doc__, example=example)
    parser.add_argument("action", choices=("pack", "unpack"))
    parser.add_argument("source", type=Path, help="the folder to pack, or the file to unpack")
    parser.add_argument("target", type=Path, help="the file or the folder to write")
    arguments = parser.parse_args(argv)

    def run() -> None:
        count = (pack if arguments.action == "pack" else unpack)(arguments.source, arguments.target)
        terminal().print(f"{arguments.target}: {count} records", markup=False)

    return guarded(run)


if __name__ == "__main__":
    sys.exit(main())
