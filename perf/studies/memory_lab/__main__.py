"""Compare memory allocators on recorded traces: space, device calls, time and fragmentation.

It reads traces of `perf.studies.memory_lab.record`, TensorFlow logs with `__LOG_MEMORY__` lines and onnxruntime
profiles. It replays each trace on all allocators, and plans it offline. There is one record per trace.
"""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from rich.table import Table

from perf.memory.allocators.device import ALIGNMENT, Allocator, Device, rounded
from perf.memory.greedy import Buffer
from perf.records import file
from perf.studies.experiment import Origin, command_line, now, origin, progress_line
from perf.studies.memory_lab import onnxruntime_profile, tensorflow_log, trace
from perf.studies.memory_lab.allocators import ONLINE
from perf.studies.memory_lab.offline import OFFLINE, faults
from perf.studies.memory_lab.trace import Trace
from perf.studies.tables import plain_table
from triton_batching.terminal import Failure, Mistake, guarded, program_parser, terminal

FOLDER = Path("perf/results/local/memory")
TITLES = ("allocator", "held / bound", "device calls, first pass", "later", "device us", "us / call", "idle")


@dataclass(frozen=True, kw_only=True)
class AllocatorTrial:
    """The result of two passes over a trace by one allocator.

    `held_bytes`: the most bytes held from the device.
    `first_calls`, `first_us`: the device calls of the first pass and their modelled time; `later_*` of the second.
    `operation_us`: the time of the simulated allocator and device per call in later passes, in Python.
    `idle_share`: the mean of 1 - live / held over the first pass: what fragmentation and rounding cost.
    """

    allocator: str
    held_bytes: int
    held_over_load: float
    first_calls: int
    first_us: float
    later_calls: int
    later_us: float
    operation_us: float
    idle_share: float


@dataclass(frozen=True, kw_only=True)
class Planning:
    """One offline planner: the height of its placement, also relative to the lower bound, and its time."""

    planner: str
    held_bytes: int
    held_over_load: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class LabRecord(Origin):
    """The results of one trace."""

    KIND: ClassVar[str] = "memory lab"
    FORMAT: ClassVar[int] = 2
    name: str
    source: str
    device: str
    allocations: int
    unmatched: int
    remarks: int
    load_bytes: int
    plannings: tuple[Planning, ...]
    trials: tuple[AllocatorTrial, ...]


def traces(path: Path) -> dict[str, Trace]:
    """The non-empty traces of a file, by its name, with a number if there are several; raises `Mistake`."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise Mistake(f"{path}: {error.strerror}. {trace.ADVICE}") from error
    if data.lstrip().startswith(b"["):
        found = onnxruntime_profile.parse(data, str(path))
    elif tensorflow_log.MARK.encode() in data:
        found = tensorflow_log.parse(data.decode(errors="replace"), str(path))
    else:
        found = (trace.parse(data, str(path)),)
    filled = [each for each in found if each.allocations]
    return {path.stem if len(filled) == 1 else f"{path.stem}-{number}": each for number, each in enumerate(filled)}


def compare(name: str, recorded: Trace, command: Sequence[str]) -> LabRecord:
    """Run and check all planners and allocators on a trace."""
    started_at = now()
    return LabRecord(
        name=name,
        source=recorded.source,
        device=recorded.device,
        allocations=len(recorded.allocations),
        unmatched=len(recorded.unmatched),
        remarks=len(recorded.remarks),
        load_bytes=recorded.live_peak_bytes,
        plannings=tuple(_planning(planner, recorded) for planner in OFFLINE),
        trials=tuple(trial(recorded, allocator, make) for allocator, make in ONLINE.items()),
        **origin(command, started_at),
    )


def _planning(planner: str, recorded: Trace) -> Planning:
    buffers = tuple(
        Buffer(
            id=number,
            lower=buffer.allocated_at,
            upper=recorded.moments if buffer.freed_at is None else buffer.freed_at,
            size=rounded(buffer.requested_bytes, ALIGNMENT),
        )
        for number, buffer in enumerate(recorded.allocations)
    )
    started = time.perf_counter()
    placement = OFFLINE[planner](buffers)
    seconds = time.perf_counter() - started
    if wrong := faults(buffers, placement.offsets):
        raise Failure(f"{planner} gave no valid placement: {wrong[0]}.")
    height = placement.height
    ratio = height / recorded.live_peak_bytes
    return Planning(planner=planner, held_bytes=height, held_over_load=ratio, seconds=seconds)


def trial(trace: Trace, name: str, make: Callable[[Device], Allocator]) -> AllocatorTrial:
    """Replay a trace twice, check both passes and time further ones; raises `Failure` if buffers overlap."""
    device = Device()
    allocator = make(device)
    idle = _replay(trace, name, allocator)
    first_calls, first_us = device.calls, device.us
    _replay(trace, name, allocator)
    return AllocatorTrial(
        allocator=name,
        held_bytes=device.peak_held_bytes,
        held_over_load=device.peak_held_bytes / trace.live_peak_bytes,
        first_calls=first_calls,
        first_us=first_us,
        later_calls=device.calls - first_calls,
        later_us=device.us - first_us,
        operation_us=_operation_us(trace, make(Device())),
        idle_share=idle,
    )


def _replay(trace: Trace, name: str, allocator: Allocator) -> float:
    """One pass, in which remaining buffers are freed at the end; the mean share of idle memory."""
    device, live_bytes = allocator.device, 0
    live: dict[int, tuple[int, int]] = {}
    placed: list[tuple[Buffer, int]] = []
    shares: list[float] = []
    calls = [*trace.events(), *((False, trace.allocations.index(buffer)) for buffer in trace.unmatched)]
    for moment, (allocated, number) in enumerate(calls):
        size = trace.allocations[number].requested_bytes
        if allocated:
            address = allocator.allocate(size)
            if not any(base <= address and address + size <= base + held for base, held in device.regions.items()):
                raise Failure(f"{name}: buffer {number} is outside all device regions. This is a bug of the lab.")
            live[number] = address, moment
            live_bytes += size
        else:
            address, start = live.pop(number)
            allocator.free(address)
            live_bytes -= size
            placed.append((Buffer(id=number, lower=start, upper=moment, size=size), address))
        if device.held_bytes:
            shares.append(1 - live_bytes / device.held_bytes)
    buffers, addresses = zip(*placed, strict=True)
    if wrong := faults(buffers, addresses):
        raise Failure(f"{name}: {wrong[0]}. This is a bug of the lab.")
    return sum(shares) / len(shares)


def _operation_us(trace: Trace, allocator: Allocator, repeats: int = 5) -> float:
    """Microseconds per call after the first pass, the least of `repeats` passes."""
    sizes = [buffer.requested_bytes for buffer in trace.allocations]
    calls = [*trace.events(), *((False, trace.allocations.index(buffer)) for buffer in trace.unmatched)]
    addresses, times = [0] * len(sizes), []
    for _ in range(1 + repeats):
        started = time.perf_counter()
        for allocated, number in calls:
            if allocated:
                addresses[number] = allocator.allocate(sizes[number])
            else:
                allocator.free(addresses[number])
        times.append(time.perf_counter() - started)
    return min(times[1:]) / max(1, len(calls)) * 1e6


def table(record: LabRecord) -> Table:
    """A table with a row per allocator and a column per measure."""
    title = f"{record.name}: {record.allocations} allocations, {record.unmatched} not freed, {record.remarks} remarks, "
    rows = plain_table(TITLES, title=f"{title}lower bound {record.load_bytes:,} bytes")
    for row in record.trials:
        rows.add_row(
            row.allocator,
            f"{row.held_over_load:.3f}",
            str(row.first_calls),
            str(row.later_calls),
            f"{row.first_us:.0f}",
            f"{row.operation_us:.2f}",
            f"{row.idle_share:.0%}",
        )
    for plan in record.plannings:
        rows.add_row(f"offline: {plan.planner}", f"{plan.held_over_load:.3f}", "1", "0", f"in {plan.seconds:.2f} s")
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Compare and print; exit code 2 for a user's mistake."""
    example = "perf/studies/results/memory/traces/*.json"
    parser = program_parser("python -m perf.studies.memory_lab", __doc__, example=example)
    parser.add_argument("traces", nargs="+", type=Path, metavar="TRACE", help="trace files of these tools")
    parser.add_argument("--results", type=Path, default=FOLDER, help=f"folder of the records (default: {FOLDER})")
    arguments = parser.parse_args(argv)
    command = command_line("memory_lab", argv)

    def run() -> None:
        by_name = {name: each for path in arguments.traces for name, each in traces(path).items()}
        if not by_name:
            raise Mistake(f"{', '.join(map(str, arguments.traces))}: no allocation in them. {trace.ADVICE}")
        for name, recorded in by_name.items():
            with progress_line(name):
                record = compare(name, recorded, command)
            file.write(record, arguments.results / f"{name}.json")
            terminal().print(table(record))
        terminal().print(f"records: {arguments.results}", markup=False)

    return guarded(run, on_interrupt="stopped; the records of finished traces are on disk.")


if __name__ == "__main__":
    sys.exit(main())
