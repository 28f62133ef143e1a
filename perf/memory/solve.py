"""Solve instances of dynamic storage allocation within a capacity by MiniMalloc's search, and check every answer.

Exit code 1 when one is not solved. `--minimise` looks for the lowest capacity instead.
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.progress import track
from rich.table import Table

from perf.memory.offline import greedy, instance, omni
from perf.memory.offline.buffer import Buffer, Placement, load
from perf.memory.offline.checker import faults
from triton_batching.terminal import Failure, Mistake, guarded, program_parser, terminal


@dataclass(frozen=True, kw_only=True)
class Solved:
    """One instance: its size, the lower bound, greedy's height, what was found and how long that took."""

    name: str
    buffers: int
    load: int
    greedy: int
    found: Placement | None
    seconds: float


def solve(path: Path, capacity: int | None, timeout_s: float) -> Solved:
    """Search one file, within `capacity` or (None) as low as the time allows; raises `Failure` for a false answer."""
    buffers = instance.read(path)
    quick = greedy.plan(buffers)
    started = time.monotonic()
    found = _search(buffers, capacity, timeout_s, quick)
    seconds = time.monotonic() - started
    for placement in filter(None, (found, quick)):
        wrong = faults(placement, buffers, capacity if placement is found else None)
        if wrong:
            raise Failure(f"{path}: {placement.planner} gave no valid placement: {wrong[0].text}.")
    return Solved(
        name=path.name,
        buffers=len(buffers),
        load=load(buffers),
        greedy=quick.height,
        found=found,
        seconds=seconds,
    )


def _search(buffers: tuple[Buffer, ...], capacity: int | None, timeout_s: float, quick: Placement) -> Placement | None:
    if capacity is None:
        return omni.minimised(buffers, timeout_s, quick)
    if quick.height <= capacity:
        return quick
    return omni.fit(buffers, capacity, timeout_s).placement


def main(argv: Sequence[str] | None = None) -> int:
    """Solve and print; exit code 1 for an instance without an answer, 2 for a user's mistake."""
    parser = program_parser("python -m perf.memory.solve", __doc__, example="A.1048576.csv --capacity 1048576")
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
    solved = [solve(path, capacity, timeout_s) for path in track(paths, description="solving", transient=True)]
    table = Table("instance", "buffers", "load", "greedy / load", "found", "found / load", "by", "s")
    for one in solved:
        found = (f"{one.found.height:,}", f"{one.found.height / one.load:.3f}", one.found.planner) if one.found else ()
        cells = (one.name, str(one.buffers), f"{one.load:,}", f"{one.greedy / one.load:.3f}")
        table.add_row(*cells, *(found or ("none", "", "")), f"{one.seconds:.2f}")
        if folder is not None and one.found is not None:
            folder.mkdir(parents=True, exist_ok=True)
            instance.write(one.found, folder / one.name)
    console = terminal()
    console.print(table)
    missing = [one.name for one in solved if one.found is None]
    total = sum(one.seconds for one in solved)
    console.print(f"{len(solved) - len(missing)} of {len(solved)} solved in {total:.2f} s, every placement checked.")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
