"""Compare memory allocators on recorded traces: space, device calls, time, fragmentation and locality.

It reads traces of `perf.studies.memory_lab.record`, TensorFlow logs, torch snapshots and profiles, and onnxruntime
profiles. It replays each trace on all allocators, plans it offline, serves it from the plan, and serves changed
inferences from the same plan. There is one record per trace. A trace that has a record is printed, not measured again.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from perf.memory.allocators.device import DeviceCosts
from perf.studies.experiment import command_line, progress_line
from perf.studies.memory_lab import comparison, page
from perf.studies.memory_lab.comparison import LabRecord
from perf.studies.memory_lab.traces import trace_file
from perf.studies.memory_lab.traces.reading import named
from perf.studies.memory_lab.traces.trace import Trace
from perf.studies.memory_lab.trial import PLANNED
from triton_batching.terminal import Mistake, guarded, program_parser, terminal

FOLDER = Path("perf/results/local/memory")
# The allocators with a map of their memory.
MAPPED = ("tensorflow bfc", "onnxruntime same", PLANNED)


def traces(paths: Sequence[Path]) -> dict[str, Trace]:
    """The non-empty traces of the files, by the file's name; raises `Mistake` if there are none."""
    by_name: dict[str, Trace] = {}
    for path in paths:
        by_name |= named(path)
    if not by_name:
        raise Mistake(
            f"{', '.join(map(str, paths))}: no file has an allocation. Record one: "
            "python -m perf.studies.memory_lab.record MODEL."
        )
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
    example = "perf/studies/results/memory/traces/*.json --pages build/maps"
    parser = program_parser("python -m perf.studies.memory_lab", __doc__, example=example)
    parser.add_argument("traces", nargs="+", type=Path, metavar="TRACE", help="trace files of these tools")
    parser.add_argument("--results", type=Path, default=FOLDER, help=f"folder of the records (default: {FOLDER})")
    parser.add_argument("--save-traces", type=Path, metavar="FOLDER", help="also write the traces as small trace files")
    parser.add_argument(
        "--pages", type=Path, metavar="FOLDER", help="write a page per trace: maps of memory and curves over time"
    )
    default = ",".join(f"{size}:{us:g}" for size, us in DeviceCosts().points)
    parser.add_argument("--malloc-us", metavar="BYTES:US,..", help=f"time of a cudaMalloc by size (default: {default})")
    parser.add_argument("--again", action="store_true", help="measure again and replace records")
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
            pages=arguments.pages,
            command=command_line("memory_lab", argv),
        )

    return guarded(run, on_interrupt="stopped; finished traces are on disk. Run the same command to continue.")


def costs(text: str | None) -> DeviceCosts:
    """The costs in a text such as `256:1,4096:50`; the default costs for None; raises `Mistake`."""
    if text is None:
        return DeviceCosts()
    try:
        points = tuple((int(size), float(us)) for size, us in (point.split(":") for point in text.split(",")))
    except ValueError as error:
        raise Mistake(f"--malloc-us {text}: not pairs of bytes and microseconds. Write 256:1,4096:50.") from error
    if list(points) != sorted(points) or any(size < 1 or us <= 0 for size, us in points):
        raise Mistake(f"--malloc-us {text}: the sizes must ascend, and all numbers must be above 0.")
    return DeviceCosts(points=points)


def _compare(
    by_name: dict[str, Trace],
    device_costs: DeviceCosts,
    *,
    results: Path,
    again: bool,
    pages: Path | None,
    command: Sequence[str],
) -> None:
    console = terminal()
    records: list[LabRecord] = []
    for name, trace in by_name.items():
        old = None if again or pages else comparison.read(results / f"{name}.json")
        if old is not None and old.key == comparison.key(trace, device_costs):
            records.append(old)
            continue
        with progress_line(name) as progress:
            new, replays = comparison.compare(name, trace, relatives(name, by_name), device_costs, progress, command)
        records.append(new)
        comparison.write(new, results)
        if pages is not None:
            page.write(name, replays, MAPPED, trace.live_peak_bytes, pages / f"{name}.html")
    for record in records:
        console.print(table(record))
        console.print(departures(record))
    console.print(f"records: {results}", markup=False)


COLUMNS = (
    *("allocator", "held / bound", "device calls, first pass", "later", "own us / call", "with device, us / call"),
    *("idle", "scattered", "locality"),
)


def table(record: LabRecord) -> Table:
    """A table with a row per allocator and a column per measure."""
    title = f"{record.name}: {record.allocations} allocations, lower bound {record.load_bytes:,} bytes"
    rows = Table(*COLUMNS, title=title)
    for row in record.trials:
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
    for plan in record.plannings:
        seconds = f"(planned in {plan.seconds:.2f} s)"
        rows.add_row(f"offline: {plan.planner}", f"{plan.held_over_load:.3f}", "1", "0", seconds)
    return rows


def departures(record: LabRecord) -> Table:
    """A table of other inferences that the plan of this trace served."""
    title = f"{record.name}: the plan ({record.planner}) serves another inference, twice"
    columns = ("inference", "held / its bound", "allocations", "elsewhere in the region", "fallbacks", "left the plan")
    rows = Table(*columns, title=title)
    for row in record.departures:
        counts = (row.allocations, row.unplanned.in_region, row.unplanned.fallbacks, row.unplanned.departures)
        rows.add_row(row.trace, f"{row.held_bytes / row.load_bytes:.3f}", *map(str, counts))
    return rows


if __name__ == "__main__":
    sys.exit(main())
