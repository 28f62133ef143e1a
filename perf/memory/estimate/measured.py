"""onnxruntime's own account of its arena: the profile of one real run, node by node."""

import json
import tempfile
from collections.abc import Mapping
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
    feeds: Mapping[str, NDArray[np.generic]],
    *,
    level: str = "basic",
    threads: int = 1,
    pattern: bool = False,
) -> list[Boundary]:
    """Run the model once, in a fresh session on the CPU, and read what the profile says at every node.

    With `pattern` it runs twice, onnxruntime's memory pattern on, and the boundaries of both runs follow each other.
    """
    with tempfile.TemporaryDirectory() as folder:
        options = session.settings(level, threads=threads)
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder) / "profile")
        options.enable_mem_pattern = pattern
        running = session.opened(model, options)
        for _ in range(1 + pattern):
            running.run(None, dict(feeds))
        events = json.loads(Path(running.end_profiling()).read_text())
    return [_boundary(event) for event in events if event.get("cat") == "Node" and event["name"].endswith(SUFFIX)]


def _boundary(event: Mapping[str, object]) -> Boundary:
    arguments: Mapping[str, str] = event["args"]  # type: ignore[assignment]
    return Boundary(
        node=str(event["name"]).removesuffix(SUFFIX),
        operator=arguments["op_name"],
        **{name: int(arguments[field]) for name, field in FIELDS.items()},
    )
