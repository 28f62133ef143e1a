"""The planner for a trace, by its size."""

from collections.abc import Sequence

from perf.memory.offline import greedy, omni
from perf.memory.offline.buffer import Buffer, Placement, load

# Above it a search is worse than greedy: with 18,692 buffers 1.065 of the load after 3 s, against greedy's 1.008.
MOST_SEARCHED = 2000


def plan(buffers: Sequence[Buffer], timeout_s: float = 3.0) -> Placement:
    """Greedy by size; where that is above the load and the trace is small, MiniMalloc's search from there downward.

    Without omnimalloc greedy's answer stands; the placement names its planner.
    """
    quick = greedy.plan(buffers)
    if quick.height == load(buffers) or len(buffers) > MOST_SEARCHED or omni.installed() is None:
        return quick
    return omni.minimised(buffers, timeout_s, quick)
