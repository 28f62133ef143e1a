"""Compare memory allocators over recorded traces: space, device calls, time, fragmentation and locality.

Reads any trace (its own files, TensorFlow logs, torch snapshots and profiles, onnxruntime profiles), replays it on
every allocator, plans it offline, serves it from the plan, and serves changed inferences from the same plan. One record
per trace; a trace whose record is there is only printed. Pictures with --pictures.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.progress import Progress
from rich.table import Table

from perf.memory.allocators.device import DeviceCosts
from perf.memory.replay import Replay
from perf.memory.trace.reading import named
from perf.memory.trace.trace import Trace
from perf.studies.memory_lab import memory_map, study
from perf.studies.memory_lab.study import Study
from perf.studies.memory_lab.trial import PLANNED
from triton_batching.terminal import Mistake, guarded, program_parser, terminal

FOLDER = Path("perf/results/local/memory")
MAPPED = ("tensorflow bfc", "onnxruntime same", PLANNED)


def traces(paths: Sequence[Path]) -> dict[str, Trace]:
    """Every trace of the files that has allocations, by the file's name; raises `Mistake`."""
    found: dict[str, Trace] = {}
    for path in paths:
        found |= named(path)
    if not found:
        raise Mistake(f"{', '.join(map(str, paths))}: no allocations in any of them.")
    return found


def relatives(name: str, among: dict[str, Trace]) -> dict[str, Trace]:
    """Other traces of the same model from the same tool."""
    one = among[name]
    return {
        other: trace
        for other, trace in among.items()
        if other != name and one.model and (trace.model, trace.source) == (one.model, one.source)
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Compare and print; exit code 2 for a user's mistake."""
    example = "perf/studies/results/memory/traces/*.json --pictures build/maps"
    parser = program_parser("python -m perf.studies.memory_lab", __doc__, example=example)
    parser.add_argument("traces", nargs="+", type=Path, metavar="TRACE", help="files of any of these tools")
    parser.add_argument("--results", type=Path, default=FOLDER, help=f"folder of the records (default: {FOLDER})")
    parser.add_argument("--pictures", type=Path, metavar="FOLDER", help="draw maps and the course of time into it")
    parser.add_argument("--maps", nargs="+", default=MAPPED, metavar="ALLOCATOR", help="allocators to map")
    parser.add_argument("--format", choices=("png", "svg"), default="png", help="of the pictures (default: png)")
    parser.add_argument(
        "--malloc-us",
        metavar="BYTES:US,..",
        help="what a cudaMalloc costs, by size (default: "
        + ",".join(f"{size}:{us:g}" for size, us in DeviceCosts().points)
        + ")",
    )
    parser.add_argument("--again", action="store_true", help="measure again where a record is there")
    arguments = parser.parse_args(argv)
    return guarded(
        lambda: _compare(
            traces(arguments.traces),
            costs(arguments.malloc_us),
            results=arguments.results,
            again=arguments.again,
            pictures=arguments.pictures,
            mapped=arguments.maps,
            suffix=arguments.format,
        ),
        on_interrupt="stopped; what is measured is on disk. Run the same command to go on.",
    )


def costs(text: str | None) -> DeviceCosts:
    """`256:1,4096:50` as costs; raises `Mistake`."""
    if text is None:
        return DeviceCosts()
    try:
        points = tuple((int(size), float(us)) for size, us in (point.split(":") for point in text.split(",")))
    except ValueError as error:
        raise Mistake(
            f"--malloc-us {text}: pairs of bytes and microseconds are needed, as in 256:1,4096:50."
        ) from error
    if list(points) != sorted(points) or any(size < 1 or us <= 0 for size, us in points):
        raise Mistake(f"--malloc-us {text}: sizes must ascend, and both be above zero.")
    return DeviceCosts(points=points)


def _compare(
    among: dict[str, Trace],
    price: DeviceCosts,
    *,
    results: Path,
    again: bool,
    pictures: Path | None,
    mapped: Sequence[str],
    suffix: str,
) -> None:
    console = terminal()
    found: list[Study] = []
    for name, trace in among.items():
        old = None if again or pictures else study.read(results / f"{name}.json")
        if old is not None and old.key == study.key(trace, price):
            found.append(old)
            continue
        with _told(name) as progress:
            one, replays = study.study(name, trace, relatives(name, among), price, progress)
        found.append(one)
        study.write(one, results)
        if pictures is not None:
            _draw(name, trace, replays, pictures, mapped, suffix)
    for one in found:
        console.print(table(one))
        console.print(departures(one))
    console.print(f"records: {results}", markup=False)


@contextlib.contextmanager
def _told(name: str) -> Iterator[Callable[[str], None]]:
    """A progress line, and what changes its text."""
    with Progress(transient=True) as bar:
        task = bar.add_task(name, total=None)
        yield lambda text: bar.update(task, description=text)


def _draw(
    name: str, trace: Trace, replays: dict[str, Replay], folder: Path, mapped: Sequence[str], suffix: str
) -> None:
    unknown = [one for one in mapped if one not in replays]
    if unknown:
        raise Mistake(f"--maps {unknown[0]}: no such allocator. Known: {', '.join(replays)}.")
    chosen = {one: replays[one] for one in mapped}
    memory_map.maps(name, chosen, trace.live_peak_bytes, folder / f"{name}-map.{suffix}")
    memory_map.held(name, replays, folder / f"{name}-held.{suffix}")
    memory_map.scattered(name, replays, folder / f"{name}-scattered.{suffix}")


def table(one: Study) -> Table:
    """Allocators down, measures across."""
    title = f"{one.name}: {one.allocations} allocations, lower bound {one.load_bytes:,} bytes"
    found = Table(
        "allocator",
        "held / bound",
        "device calls, first pass",
        "later",
        "own us / call",
        "with device, us / call",
        "idle",
        "scattered",
        "locality",
        title=title,
    )
    for row in one.trials:
        found.add_row(
            row.allocator,
            f"{row.held_over_load:.3f}",
            str(row.first_calls),
            str(row.later_calls),
            f"{row.operation_us:.2f}",
            f"{row.later_operation_us:.2f}",
            f"{row.idle_share:.0%}",
            f"{row.scattered_share:.0%}",
            f"{row.locality:.0%}",
        )
    for plan in one.plannings:
        found.add_row(
            f"offline: {plan.planner}", f"{plan.held_over_load:.3f}", "1", "0", f"(planned in {plan.seconds:.2f} s)"
        )
    return found


def departures(one: Study) -> Table:
    """What the plan of this trace does with other inferences."""
    title = f"{one.name}: the plan ({one.planner}) serves another inference, twice"
    found = Table(
        "inference", "held / its bound", "allocations", "elsewhere in the region", "fallbacks", "left", title=title
    )
    for row in one.departures:
        counts = (row.allocations, row.unplanned.in_region, row.unplanned.fallbacks, row.unplanned.departures)
        found.add_row(row.trace, f"{row.held_bytes / row.load_bytes:.3f}", *map(str, counts))
    return found


if __name__ == "__main__":
    sys.exit(main())
