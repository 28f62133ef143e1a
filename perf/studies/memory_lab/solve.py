"""Solve instances of dynamic storage allocation with MiniMalloc's search, and check every answer.

`--capacity` asks for a placement within that many bytes, `--minimise` for the lowest placement. The exit code is 1 if
an instance is not solved.
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.progress import track
from rich.table import Table

from perf.memory import greedy
from perf.memory.greedy import Buffer, Placement, peak_bytes
from perf.studies.memory_lab import instance, omni
from perf.studies.memory_lab.checker import faults
from triton_batching.terminal import Failure, Mistake, guarded, program_parser, terminal


@dataclass(frozen=True, kw_only=True)
class Solved:
    """One instance: number of buffers, most live bytes, height of the greedy placement, placement, and search time.

    `placement` is None if the search has no result.
    """

    name: str
    buffers: int
    load: int
    greedy: int
    placement: Placement | None
    seconds: float


def solve(path: Path, capacity: int | None, timeout_s: float) -> Solved:
    """Solve the instance of a file within `capacity` bytes, or (None) as low as the time allows.

    Raises `Failure` for an invalid placement.
    """
    buffers = instance.read(path)
    quick = greedy.plan(buffers)
    started = time.monotonic()
    best = _search(buffers, capacity, timeout_s, quick)
    seconds = time.monotonic() - started
    for placement in filter(None, (best, quick)):
        if wrong := faults(placement, buffers, capacity if placement is best else None):
            raise Failure(f"{path}: {placement.planner} gave no valid placement: {wrong[0]}.")
    return Solved(
        name=path.name,
        buffers=len(buffers),
        load=peak_bytes(buffers),
        greedy=quick.height,
        placement=best,
        seconds=seconds,
    )


def _search(buffers: tuple[Buffer, ...], capacity: int | None, timeout_s: float, quick: Placement) -> Placement | None:
    if capacity is None:
        return omni.minimised(buffers, timeout_s, quick)
    if quick.height <= capacity:
        return quick
    return omni.fit(buffers, capacity, timeout_s).placement


def main(argv: Sequence[str] | None = None) -> int:
    """Solve and print; exit code 1 if an instance is not solved, 2 for a user's mistake."""
    parser = program_parser(
        "python -m perf.studies.memory_lab.solve", __doc__, example="A.1048576.csv --capacity 1048576"
    )
    parser.add_argument("instances", nargs="+", type=Path, metavar="CSV", help="columns id,lower,upper,size")
    goal = parser.add_mutually_exclusive_group(required=True)
    goal.add_argument("--capacity", type=int, metavar="BYTES", help="find a placement within these bytes")
    goal.add_argument("--minimise", action="store_true", help="find the lowest placement")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="S", help="seconds per instance (default: 60)")
    parser.add_argument("--to", type=Path, metavar="FOLDER", help="also write the placements, as CSV with offsets")
    arguments = parser.parse_args(argv)
    return guarded(lambda: _solve_all(arguments.instances, arguments.capacity, arguments.timeout, arguments.to))


def _solve_all(paths: list[Path], capacity: int | None, timeout_s: float, folder: Path | None) -> int:
    if capacity is not None and capacity < 1:
        raise Mistake(f"--capacity {capacity}: a capacity is at least one byte.")
    results = [solve(path, capacity, timeout_s) for path in track(paths, description="solving", transient=True)]
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        for result in results:
            if result.placement is not None:
                instance.write(result.placement, folder / result.name)
    console = terminal()
    console.print(_table(results))
    solved = sum(result.placement is not None for result in results)
    total = sum(result.seconds for result in results)
    console.print(f"{solved} of {len(results)} solved in {total:.2f} s, every placement checked.")
    return 0 if solved == len(results) else 1


def _table(results: list[Solved]) -> Table:
    table = Table("instance", "buffers", "load", "greedy / load", "height", "height / load", "by", "s")
    for result in results:
        cells = (result.name, str(result.buffers), f"{result.load:,}", f"{result.greedy / result.load:.3f}")
        best = result.placement
        answer = (f"{best.height:,}", f"{best.height / result.load:.3f}", best.planner) if best else ("none", "", "")
        table.add_row(*cells, *answer, f"{result.seconds:.2f}")
    return table


if __name__ == "__main__":
    sys.exit(main())
