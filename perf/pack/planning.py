"""A placement that stands: packed, checked by the validator, and replayed, with the headroom that the replay needs."""

from perf.pack import exact
from perf.pack.packing import pack
from perf.pack.placement import Placement
from perf.pack.replay import Replayed, replay
from perf.pack.validator import violations
from perf.pack.workload import Workload
from triton_batching.terminal import Failure, Mistake

# Rates are raised in such steps, to at most so much, where arrivals that are not even need room.
STEP, MOST = 0.05, 1.0


def plan(
    workload: Workload,
    algorithm: str = "squishy",
    *,
    seed: int = 0,
    time_limit_s: float = exact.TIME_LIMIT_S,
) -> Placement:
    """The placement with the least headroom at which 99 % of every model's requests are in time in the replay.

    Raises `Mistake` where no placement is found, and `Failure` for one that the validator refuses.
    """
    for step in range(round(MOST / STEP) + 1):
        placement = pack(workload, algorithm, headroom=step * STEP, seed=seed, time_limit_s=time_limit_s)
        if broken := violations(workload, placement):
            raise Failure("the validator refuses the placement, so nothing was written:\n" + "\n".join(broken))
        found = replay(workload, placement, seed=seed)
        if all(one.kept for one in found):
            return placement
    raise Mistake(f"even for {1 + MOST:g} times the rates {_worst(found)}. Loosen that target.")


def _worst(found: list[Replayed]) -> str:
    worst = max(found, key=lambda one: one.late / one.requests)
    return f"{worst.late} of {worst.requests} requests of {worst.model} on device {worst.device} are late in the replay"
