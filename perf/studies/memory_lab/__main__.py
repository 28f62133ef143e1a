"""Compare memory allocators on recorded traces: space, device calls, time, fragmentation and locality.

Reads traces of `perf.studies.memory_lab.record`, TensorFlow logs, torch snapshots and profiles, and onnxruntime
profiles. It replays each trace on all allocators, plans it offline, serves it from the plan, and serves changed
inferences from the same plan. There is one record per trace; a trace that has a record is only printed.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.progress import Progress
from rich.table import Table

from perf.memory.allocators.device import DeviceCosts
from perf.studies.memory_lab import memory_map, study
from perf.studies.memory_lab.replay import Replay
from perf.studies.memory_lab.study import Study
from perf.studies.memory_lab.traces import trace_file
from perf.studies.memory_lab.traces.reading import named
from perf.studies.memory_lab.traces.trace import Trace
from perf.studies.memory_lab.trial import PLANNED
from triton_batching.terminal import Mistake, guarded, program_parser, terminal

FOLDER = Path("perf/results/local/memory")
MAPPED = ("tensorflow bfc", "onnxruntime same", PLANNED)


def traces(paths: Sequence[Path]) -> dict[str, Trace]:
    """The non-empty traces of the files, by the file's name; raises `Mistake` if there are none."""
    by_name: dict[str, Trace] = {}
    for path in paths:
        by_name |= named(path)
    if not by_name:
        raise Mistake(f"{', '.join(map(str, paths))}: no allocations in any of them.")
    return by_name


def relatives(name: str, by_name: dict[str, Trace]) -> dict[str, Trace]:
    """The other traces of the same model from the same tool."""
    trace = by_name[name]
    return {
        other_name: other
        for other_name, other in by_name.items()
        if other_name != name and trace.model and (other.model, other.source) == (trace.model, trace.source)
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Compare and print; exit code 2 for a user's mistake."""
    example = "perf/studies/results/memory/traces/*.json --pictures build/maps"
    parser = program_parser("python -m perf.studies.memory_lab", __doc__, example=example)
    parser.add_argument("traces", nargs="+", type=Path, metavar="TRACE", help="files of any of these tools")
    parser.add_argument("--results", type=Path, default=FOLDER, help=f"folder of the records (default: {FOLDER})")
    parser.add_argument("--save-traces", type=Path, metavar="FOLDER", help="also write the traces as small trace files")
    parser.add_argument("--pictures", type=Path, metavar="FOLDER", help="draw maps and curves over time into it")
    parser.add_argument("--maps", nargs="+", default=MAPPED, metavar="ALLOCATOR", help="allocators to map")
    parser.add_argument("--format", choices=("png", "svg"), default="png", help="of the pictures (default: png)")
    default = ",".join(f"{size}:{us:g}" for size, us in DeviceCosts().points)
    parser.add_argument("--malloc-us", metavar="BYTES:US,..", help=f"time of a cudaMalloc by size (default: {default})")
    parser.add_argument("--again", action="store_true", help="measure again even if there is a record")
    arguments = parser.parse_args(argv)

    def run() -> None:
        by_name = traces(arguments.traces)
        if arguments.save_traces is not None:
            for name, trace in by_name.items():
                trace_file.write(trace, arguments.save_traces / f"{name}.json")
        _compare(
            by_name,
            costs(arguments.malloc_us),
            results=arguments.results,
            again=arguments.again,
            pictures=arguments.pictures,
            mapped=arguments.maps,
            suffix=arguments.format,
        )

    return guarded(run, on_interrupt="stopped; finished traces are on disk. Run the same command to continue.")


def costs(text: str | None) -> DeviceCosts:
    """The costs in a text such as `256:1,4096:50`; the default costs for None; raises `Mistake`."""
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
    by_name: dict[str, Trace],
    device_costs: DeviceCosts,
    *,
    results: Path,
    again: bool,
    pictures: Path | None,
    mapped: Sequence[str],
    suffix: str,
) -> None:
    console = terminal()
    studies: list[Study] = []
    for name, trace in by_name.items():
        old = None if again or pictures else study.read(results / f"{name}.json")
        if old is not None and old.key == study.key(trace, device_costs):
            studies.append(old)
            continue
        with _progress(name) as progress:
            new, replays = study.study(name, trace, relatives(name, by_name), device_costs, progress)
        studies.append(new)
        study.write(new, results)
        if pictures is not None:
            _draw(name, trace, replays, pictures, mapped, suffix)
    for result in studies:
        console.print(table(result))
        console.print(departures(result))
    console.print(f"records: {results}", markup=False)


@contextlib.contextmanager
def _progress(name: str) -> Iterator[Callable[[str], None]]:
    """A progress line; yields the function that sets its text."""
    with Progress(transient=True) as bar:
        task = bar.add_task(name, total=None)
        yield lambda text: bar.update(task, description=text)


def _draw(
    name: str, trace: Trace, replays: dict[str, Replay], folder: Path, mapped: Sequence[str], suffix: str
) -> None:
    unknown = [allocator for allocator in mapped if allocator not in replays]
    if unknown:
        raise Mistake(f"--maps {unknown[0]}: no such allocator. Known: {', '.join(replays)}.")
    chosen = {allocator: replays[allocator] for allocator in mapped}
    memory_map.maps(name, chosen, trace.live_peak_bytes, folder / f"{name}-map.{suffix}")
    memory_map.held(name, replays, folder / f"{name}-held.{suffix}")
    memory_map.scattered(name, replays, folder / f"{name}-scattered.{suffix}")


COLUMNS = (
    *("allocator", "held / bound", "device calls, first pass", "later", "own us / call", "with device, us / call"),
    *("idle", "scattered", "locality"),
)


def table(result: Study) -> Table:
    """A table with a row per allocator and a column per measure."""
    title = f"{result.name}: {result.allocations} allocations, lower bound {result.load_bytes:,} bytes"
    rows = Table(*COLUMNS, title=title)
    for row in result.trials:
        rows.add_row(
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
    for plan in result.plannings:
        seconds = f"(planned in {plan.seconds:.2f} s)"
        rows.add_row(f"offline: {plan.planner}", f"{plan.held_over_load:.3f}", "1", "0", seconds)
    return rows


def departures(result: Study) -> Table:
    """A table of other inferences that the plan of this trace served."""
    title = f"{result.name}: the plan ({result.planner}) serves another inference, twice"
    columns = ("inference", "held / its bound", "allocations", "elsewhere in the region", "fallbacks", "left the plan")
    rows = Table(*columns, title=title)
    for row in result.departures:
        counts = (row.allocations, row.unplanned.in_region, row.unplanned.fallbacks, row.unplanned.departures)
        rows.add_row(row.trace, f"{row.held_bytes / row.load_bytes:.3f}", *map(str, counts))
    return rows


if __name__ == "__main__":
    sys.exit(main())
