"""Place the buffers of google/minimalloc's instances with three planners, and check every answer.

An instance is a CSV file with the columns id, lower, upper and size. `A.1048576.csv` has a placement within 1,048,576
bytes; the exit code is 1 if MiniMalloc's search does not find one.
"""

import csv
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.progress import track

from perf.memory import greedy
from perf.memory.greedy import Buffer, Placement, peak_bytes
from perf.studies.memory_lab import offline
from perf.studies.tables import plain_table
from triton_batching.terminal import Failure, Mistake, guarded, program_parser, terminal

TITLES = ("instance", "buffers", "bound", "greedy / bound", "telamalloc / bound", "capacity / bound", "minimalloc, s")


def read(path: Path) -> tuple[Buffer, ...]:
    """The buffers of a file with the columns id, lower, upper (exclusive) and size; raises `Mistake`."""
    try:
        with path.open(newline="") as file:
            rows = [{name.strip(): value for name, value in row.items()} for row in csv.DictReader(file)]
        buffers = [
            Buffer(id=row["id"], lower=int(row["lower"]), upper=int(row["upper"]), size=int(row["size"]))
            for row in rows
        ]
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise Mistake(
            f"{path}: no table of buffers ({error!r}). Give a CSV with columns id,lower,upper,size."
        ) from error
    if not buffers or any(buffer.upper <= buffer.lower or buffer.size <= 0 for buffer in buffers):
        raise Mistake(f"{path}: has no buffers, or one without bytes or time. Give another file.")
    return tuple(buffers)


def capacity_of(path: Path) -> int:
    """The bytes that a file's name says are enough; raises `Mistake`."""
    try:
        return int(path.stem.rpartition(".")[2])
    except ValueError as error:
        raise Mistake(f"{path}: its name has no capacity. Name it as A.1048576.csv is named.") from error


def row(path: Path, timeout_s: float) -> tuple[str, ...]:
    """The line of an instance in the table, with an empty last cell if it is not solved."""
    buffers, capacity = read(path), capacity_of(path)
    bound = peak_bytes(buffers)
    quick = [_checked(plan(buffers)).height / bound for plan in (greedy.plan, offline.telamalloc)]
    started = time.monotonic()
    solved = offline.fit(buffers, capacity, timeout_s)
    seconds = time.monotonic() - started
    if solved is not None:
        _checked(solved, capacity)
    ratios = (f"{ratio:.3f}" for ratio in (*quick, capacity / bound))
    return path.name, str(len(buffers)), f"{bound:,}", *ratios, "" if solved is None else f"{seconds:.2f}"


def _checked(placement: Placement, capacity: int | None = None) -> Placement:
    if wrong := offline.faults(placement.buffers, placement.offsets, capacity):
        raise Failure(f"{placement.planner} gave no valid placement: {wrong[0]}.")
    return placement


def main(argv: Sequence[str] | None = None) -> int:
    """Solve and print; exit code 1 if an instance is not solved, 2 for a user's mistake."""
    parser = program_parser("python -m perf.studies.memory_lab.instances", __doc__, example="A.1048576.csv")
    parser.add_argument("instances", nargs="+", type=Path, metavar="CSV")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="S", help="seconds per instance (default: 60)")
    arguments = parser.parse_args(argv)

    def run() -> int:
        rows = [
            row(path, arguments.timeout)
            for path in track(arguments.instances, description="solving", transient=True, console=terminal())
        ]
        table = plain_table(TITLES)
        for cells in rows:
            table.add_row(*cells)
        terminal().print(table)
        return int(not all(cells[-1] for cells in rows))

    return guarded(run)


if __name__ == "__main__":
    sys.exit(main())
