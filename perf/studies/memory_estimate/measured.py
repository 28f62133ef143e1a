"""Real runs of a model: their inputs, and onnxruntime's counters of its arena after each node."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from export.graph.ragged_feed import draw_items, feed, is_ragged
from export.repository import REPOSITORY, config_file, model_folder, models, read_config
from perf.memory.estimate import session
from perf.memory.estimate.timeline import Boundary
from perf.studies.memory_lab.drawn import draws
from perf.studies.memory_lab.traces.onnxruntime_events import NodeEvent, nodes_by_run

Array = NDArray[np.generic]
# Maps a batch size, in rows or ragged items, to the inputs of one run.
Feeds = Callable[[int], Mapping[str, Array]]
# Lengths of a ragged model's items, in turn.
LENGTHS = (16, 5, 9, 12, 3)
FIELDS = {
    "in_use": "mem_bytes_in_use",
    "requested": "mem_bytes_requested_in_use",
    "peak": "mem_in_use_peak",
    "held": "mem_arena_held",
}


def feeds_of(name: str, path: Path) -> Feeds:
    """The inputs of a model: Triton's inputs for a ragged model of the repository, else random values."""
    if name in models():
        config = read_config(config_file(model_folder(name, REPOSITORY), None))
        if is_ragged(config):
            return lambda batch: feed(config, draw_items(config, [LENGTHS[at % len(LENGTHS)] for at in range(batch)]))
    return draws(path)


def measure(
    model: Path,
    inputs: Sequence[Mapping[str, Array]],
    *,
    level: str = "basic",
    threads: int = 1,
    pattern: bool = False,
    shared_arena: bool = False,
) -> list[list[Boundary]]:
    """Run a model on each of `inputs` in a fresh session on the CPU; returns the boundaries of each run.

    `shared_arena` uses the arena that is registered for the whole process.
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
    return [[_boundary(event) for event in run] for run in nodes_by_run(profile, f"the profile of {model}")]


def _boundary(event: NodeEvent) -> Boundary:
    return Boundary(
        node=event.name,
        operator=str(event.values["op_name"]),
        **{name: event.number(field) for name, field in FIELDS.items()},
    )
