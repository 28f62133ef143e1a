"""All allocators and planners on one trace, and the plan on changed inferences, with the record of the results."""

import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from perf.memory import greedy
from perf.memory.allocators.device import Device, DeviceCosts
from perf.memory.greedy import Buffer, Placement, peak_bytes
from perf.records import file
from perf.records.file import RecordError
from perf.studies.experiment import Origin, now, origin
from perf.studies.memory_lab import omni
from perf.studies.memory_lab.allocators.plan import Plan, best_placement, buffers_of, planned
from perf.studies.memory_lab.allocators.planned import Planned, Unplanned
from perf.studies.memory_lab.changes import CHANGES
from perf.studies.memory_lab.checker import faults
from perf.studies.memory_lab.replay import Replay, overlaps, replay
from perf.studies.memory_lab.traces.trace import Trace
from perf.studies.memory_lab.trial import AllocatorTrial, allocators, trial
from triton_batching.terminal import Failure

STEP_BYTES = 256


@dataclass(frozen=True, kw_only=True)
class Planning:
    """One offline planner: the height of its placement, also relative to the lower bound, and its time."""

    planner: str
    held_bytes: int
    held_over_load: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Departure:
    """The plan of this trace serving another trace twice; `trace` names that trace or the change.

    `held_bytes` is the most bytes held, `load_bytes` the lower bound of the other trace, and `allocations` the number
    of allocations of both passes.
    """

    trace: str
    allocations: int
    load_bytes: int
    held_bytes: int
    unplanned: Unplanned


@dataclass(frozen=True, kw_only=True)
class LabRecord(Origin):
    """The results of one trace. A record is valid for a trace and costs of the same `key`."""

    KIND: ClassVar[str] = "memory lab"
    FORMAT: ClassVar[int] = 1
    name: str
    key: str
    source: str
    device: str
    allocations: int
    unmatched: int
    remarks: int
    load_bytes: int
    costs: DeviceCosts
    planner: str
    plannings: tuple[Planning, ...]
    trials: tuple[AllocatorTrial, ...]
    departures: tuple[Departure, ...]


def compare(
    name: str,
    trace: Trace,
    others: dict[str, Trace],
    costs: DeviceCosts,
    progress: Callable[[str], None],
    command: Sequence[str] = (),
) -> tuple[LabRecord, dict[str, Replay]]:
    """Run and check all planners and allocators on a trace, and its plan on `others`, traces of the same model."""
    started_at = now()
    buffers = buffers_of(trace, STEP_BYTES)
    plannings = []
    for planner, run in _planners().items():
        progress(f"{name}: {planner}")
        plannings.append(_planning(planner, run, buffers, trace.live_peak_bytes))
    plan = planned(trace, best_placement(buffers))
    trials, replays = [], {}
    for allocator, make in allocators(plan).items():
        progress(f"{name}: {allocator}")
        measured, replays[allocator] = trial(trace, allocator, make, costs)
        trials.append(measured)
    inferences = {text: change(trace) for text, change in CHANGES.items()} | others
    record = LabRecord(
        name=name,
        key=key(trace, costs),
        source=trace.source,
        device=trace.device,
        allocations=len(trace.allocations),
        unmatched=len(trace.unmatched),
        remarks=len(trace.remarks),
        load_bytes=trace.live_peak_bytes,
        costs=costs,
        planner=plan.placement.planner,
        plannings=tuple(plannings),
        trials=tuple(trials),
        departures=tuple(_departure(text, plan, other) for text, other in inferences.items()),
        **origin(command, started_at),
    )
    return record, replays


def key(trace: Trace, costs: DeviceCosts) -> str:
    """The SHA-256 of the format, the trace and the costs."""
    text = json.dumps([1, dataclasses.asdict(trace), dataclasses.asdict(costs)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def write(record: LabRecord, folder: Path) -> Path:
    """Write the record to a file named after the trace."""
    return file.write(record, folder / f"{record.name}.json")


def read(path: Path) -> LabRecord | None:
    """The record in a file; None if the file is absent or of another format."""
    try:
        return file.read(path, LabRecord)
    except RecordError:
        return None


def _planners() -> dict[str, Callable[[tuple[Buffer, ...]], Placement]]:
    planners: dict[str, Callable[[tuple[Buffer, ...]], Placement]] = {greedy.NAME: greedy.plan}
    if omni.installed() is not None:
        planners |= {omni.TELAMALLOC: omni.telamalloc, omni.MINIMALLOC: omni.minimised}
    return planners


def _planning(
    name: str, run: Callable[[tuple[Buffer, ...]], Placement], buffers: tuple[Buffer, ...], load_bytes: int
) -> Planning:
    started = time.perf_counter()
    placement = run(buffers)
    seconds = time.perf_counter() - started
    problems = faults(placement, buffers)
    if problems or placement.height < peak_bytes(buffers):
        raise Failure(f"{name} gave no valid placement: {problems[0] if problems else 'it is below the load'}.")
    height = placement.height
    return Planning(planner=name, held_bytes=height, held_over_load=height / load_bytes, seconds=seconds)


def _departure(text: str, plan: Plan, other: Trace) -> Departure:
    device = Device()
    allocator = Planned(device, plan)
    for _ in range(2):
        if overlaps(replay(other, allocator)):
            raise Failure(f"planned, serving '{text}': two live buffers overlap. This is a bug of the lab.")
    return Departure(
        trace=text,
        allocations=2 * len(other.allocations),
        load_bytes=other.live_peak_bytes,
        held_bytes=device.peak_held_bytes,
        unplanned=allocator.unplanned,
    )
