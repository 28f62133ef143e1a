"""onnxruntime's own account of its arena: the profile of one real run, node by node."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from perf.memory.estimate import session
from perf.memory.estimate.timeline import Boundary
from perf.memory.trace.onnxruntime_events import NodeEvent, runs

FIELDS = {
    "in_use": "mem_bytes_in_use",
    "requested": "mem_bytes_requested_in_use",
    "peak": "mem_in_use_peak",
    "held": "mem_arena_held",
}


def measure(
    model: Path,
    inputs: Sequence[Mapping[str, NDArray[np.generic]]],
    *,
    level: str = "basic",
    threads: int = 1,
    pattern: bool = False,
    shared_arena: bool = False,
) -> list[list[Boundary]]:
    """Run the model on each of these inputs in turn, in a fresh session on the CPU: what its profile says.

    `shared_arena` uses the arena that was registered for the whole process, with its strategy.
    """
    with tempfile.TemporaryDirectory() as folder:
        options = session.settings(level, threads=threads)
        options.enable_profiling = True
        options.enable_mem_pattern = pattern
        if shared_arena:
            options.add_session_config_entry("session.use_env_allocators", "1")
        options.profile_file_prefix = str(Path(folder) / "profile")
        running = session.opened(model, options)
        for feeds in inputs:
            running.run(None, dict(feeds))
        profile = Path(running.end_profiling()).read_bytes()
    return [[_boundary(event) for event in run] for run in runs(profile, f"the profile of {model}")]


def _boundary(event: NodeEvent) -> Boundary:
    return Boundary(
        node=event.name,
        operator=str(event.values["op_name"]),
        **{name: event.number(field) for name, field in FIELDS.items()},
    )
