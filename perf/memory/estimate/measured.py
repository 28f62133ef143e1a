"""onnxruntime's own account of its arena: the profile of one real run, node by node."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from perf.memory.estimate import session
from perf.memory.estimate.timeline import Boundary

FIELDS = {
    "in_use": "mem_bytes_in_use",
    "requested": "mem_bytes_requested_in_use",
    "peak": "mem_in_use_peak",
    "held": "mem_arena_held",
}
SUFFIX = "_kernel_time"


def measure(
    model: Path,
    runs: Sequence[Mapping[str, NDArray[np.generic]]],
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
        for feeds in runs:
            running.run(None, dict(feeds))
        events = json.loads(Path(running.end_profiling()).read_text())
    found: list[list[Boundary]] = [[]]
    for event in events:
        if event["cat"] == "Node" and event["name"].endswith(SUFFIX):
            found[-1].append(_boundary(event))
        elif event["name"] == "model_run":  # written when a run ends
            found.append([])
    return found[:-1]


def _boundary(event: Mapping[str, object]) -> Boundary:
    arguments: Mapping[str, str] = event["args"]  # type: ignore[assignment]
    return Boundary(
        node=str(event["name"]).removesuffix(SUFFIX),
        operator=arguments["op_name"],
        **{name: int(arguments[field]) for name, field in FIELDS.items()},
    )
