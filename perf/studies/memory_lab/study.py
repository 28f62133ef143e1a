"""All allocators on one trace, as a record on disk."""

import dataclasses
import datetime
import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perf.memory.allocators.device import Device, DeviceCosts
from perf.memory.allocators.plan import Plan, planned
from perf.memory.allocators.planned import Planned, Unplanned
from perf.memory.offline import best, greedy, omni
from perf.memory.offline.buffer import Buffer, Placement, load, of_trace
from perf.memory.offline.checker import faults
from perf.memory.replay import Replay, overlaps, replay
from perf.memory.trace.trace import Trace
from perf.studies.memory_lab.changes import CHANGES
from perf.studies.memory_lab.trial import Trial, allocators, trial
from triton_batching.machine import Machine, versions
from triton_batching.terminal import Failure

FORMAT = 1
STEP_BYTES = 256


@dataclass(frozen=True, kw_only=True)
class Planning:
    """One offline planner: the height it found, over the lower bound, and the seconds that took."""

    planner: str
    held_bytes: int
    held_over_load: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Departure:
    """The plan of this trace, serving another: `trace` says which, or how it was changed.

    `held_bytes` is the most held in two passes, `load_bytes` the lower bound of the other trace, and the counts are of
    both passes, whose allocations are `allocations`.
    """

    trace: str
    allocations: int
    load_bytes: int
    held_bytes: int
    unplanned: Unplanned


@dataclass(frozen=True, kw_only=True)
class Study:
    """Everything about one trace. `key` is what must be equal for the record to stand for it."""

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
    trials: tuple[Trial, ...]
    departures: tuple[Departure, ...]
    machine: Machine
    versions: dict[str, str]
    started_at: str
    format: int = FORMAT


def study(
    name: str, trace: Trace, others: dict[str, Trace], costs: DeviceCosts, progress: Callable[[str], None]
) -> tuple[Study, dict[str, Replay]]:
    """Plan, replay and check everything; `others` are traces of the same model, which the plan is made to serve."""
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    buffers = of_trace(trace, STEP_BYTES)
    plannings = []
    for planner, run in _planners().items():
        progress(f"{name}: {planner}")
        plannings.append(_planning(planner, run, buffers, trace.live_peak_bytes))
    plan = planned(trace, best.plan(buffers))
    trials, replays = [], {}
    for allocator, make in allocators(plan).items():
        progress(f"{name}: {allocator}")
        result, replays[allocator] = trial(trace, allocator, make, costs)
        trials.append(result)
    changed = {text: change(trace) for text, change in CHANGES.items()} | others
    found = Study(
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
        departures=tuple(_departure(text, plan, other) for text, other in changed.items()),
        machine=Machine.this(),
        versions=versions(),
        started_at=started,
    )
    return found, replays


def key(trace: Trace, costs: DeviceCosts) -> str:
    """SHA-256 of the trace, the costs and the format."""
    text = json.dumps([FORMAT, dataclasses.asdict(trace), dataclasses.asdict(costs)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def write(found: Study, folder: Path) -> Path:
    """Write the record; its file is named as the trace."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{found.name}.json"
    path.write_text(json.dumps(dataclasses.asdict(found), indent=1) + "\n")
    return path


def read(path: Path) -> Study | None:
    """The record at `path`, or None where there is none of this format."""
    try:
        of: dict[str, Any] = json.loads(path.read_text())
        if of["format"] != FORMAT:
            return None
        points = tuple((size, us) for size, us in of["costs"]["points"])
        of |= {
            "costs": DeviceCosts(points=points, free_share=of["costs"]["free_share"]),
            "plannings": tuple(Planning(**one) for one in of["plannings"]),
            "trials": tuple(Trial(**{**one, "unplanned": _unplanned(one["unplanned"])}) for one in of["trials"]),
            "departures": tuple(
                Departure(**{**one, "unplanned": Unplanned(**one["unplanned"])}) for one in of["departures"]
            ),
            "machine": Machine(**of["machine"]),
        }
        return Study(**of)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _unplanned(of: dict[str, int] | None) -> Unplanned | None:
    return None if of is None else Unplanned(**of)


def _planners() -> dict[str, Callable[[tuple[Buffer, ...]], Placement]]:
    found: dict[str, Callable[[tuple[Buffer, ...]], Placement]] = {greedy.NAME: greedy.plan}
    if omni.installed() is not None:
        found |= {omni.TELAMALLOC: omni.telamalloc, omni.MINIMALLOC: omni.minimised}
    return found


def _planning(
    name: str, run: Callable[[tuple[Buffer, ...]], Placement], buffers: tuple[Buffer, ...], load_bytes: int
) -> Planning:
    started = time.perf_counter()
    placement = run(buffers)
    seconds = time.perf_counter() - started
    wrong = faults(placement, buffers)
    if wrong or placement.height < load(buffers):
        raise Failure(f"{name} gave no valid placement: {wrong[0].text if wrong else 'it is below the load'}.")
    height = placement.height
    return Planning(planner=name, held_bytes=height, held_over_load=height / load_bytes, seconds=seconds)


def _departure(text: str, plan: Plan, other: Trace) -> Departure:
    device = Device()
    allocator = Planned(device, plan)
    for _ in range(2):
        if overlaps(replay(other, allocator)):
            raise Failure(f"planned, serving '{text}': two live buffers overlap (a fault of ours).")
    return Departure(
        trace=text,
        allocations=2 * len(other.allocations),
        load_bytes=other.live_peak_bytes,
        held_bytes=device.peak_held_bytes,
        unplanned=allocator.unplanned,
    )
