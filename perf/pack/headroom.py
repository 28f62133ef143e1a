"""The headroom that uneven arrivals need, chosen by some replays of a placement and confirmed by others.

A placement is made for higher rates, in steps, until its replays show that 99 % of each model's requests are in time
(`Replayed.proven`).
"""

from collections.abc import Callable, Sequence

from perf.pack.algorithms import ALGORITHMS, pack
from perf.pack.placement import Placement
from perf.pack.replay import replay
from perf.pack.replayed import Replayed
from perf.pack.validator import violations
from perf.pack.workload import Workload
from triton_batching.terminal import Failure, Mistake

STEP, MOST = 0.05, 1.0
STEPS = round(MOST / STEP) + 1
# The placements that are tried at most; each confidence holds over all of them.
TRIES = STEPS * len(ALGORITHMS)
# Replays that choose a placement, and others that must confirm it.
CHOOSING, CONFIRMING = 20, 100

Planned = tuple[Placement, list[Replayed]]


def plan(workload: Workload, *, seed: int = 0, progress: Callable[[str], None] = lambda _: None) -> Planned:
    """The placement with the least headroom that is proven to be in time, with the replays that confirmed it.

    A fuller placement may need so much more headroom that it takes more devices in the end. So after `improved` the
    others are tried too, as long as they need fewer devices. Raises `Mistake` if no placement is in time or there are
    too few devices, and `Failure` if the validator refuses one.
    """
    best: Planned | None = None
    refused: Mistake | None = None
    for number, name in enumerate(ALGORITHMS):

        def packed(headroom: float, name: str = name) -> Placement:
            progress(f"packing for {1 + headroom:g} x the rates by {name}")
            return pack(workload, name, headroom=headroom, seed=seed)

        try:
            found = _planned(workload, packed, seed, number * STEPS, len(best[0].nodes) if best else None)
            best = found or best
        except Mistake as mistake:
            refused = refused or mistake
    if best is None:
        raise refused or Mistake("no placement is in time")
    return best


def confirmed(workload: Workload, placement: Placement, *, seed: int = 0, number: int = 0) -> list[Replayed]:
    """Replays of a placement that did not choose it: other ones for each `number`."""
    first = CHOOSING + number * CONFIRMING
    return replay(workload, placement, seed=seed, numbers=range(first, first + CONFIRMING))


def unproven(workload: Workload, results: Sequence[Replayed], placements: int = 1) -> list[str]:
    """The models that the replays of one of so many `placements` do not show to be in time.

    Even arrivals differ in phase only, so a replay is worth one request. But then the duty cycle itself is a proof, and
    no late request in any replay is enough.
    """
    even = workload.arrivals == "uniform"
    return sorted({each.model for each in results if not (each.proven(placements) or (even and not each.late))})


def _planned(
    workload: Workload, packed: Callable[[float], Placement], seed: int, number: int, fewer_than: int | None
) -> Planned | None:
    """The proven placement with the least headroom; None if it needs `fewer_than` devices or more.

    Its replays are numbered from `number`. Raises `Mistake` if there is none.
    """
    for step in range(STEPS):
        placement = packed(step * STEP)
        if fewer_than is not None and len(placement.nodes) >= fewer_than:
            return None
        if broken := violations(workload, placement):
            raise Failure("the validator refuses the placement, so nothing was written:\n" + "\n".join(broken))
        if _chosen(workload, placement, seed):
            results = confirmed(workload, placement, seed=seed, number=number + step)
            if not unproven(workload, results, TRIES):
                return placement, results
    worst = _worst(confirmed(workload, placement, seed=seed))
    raise Mistake(f"even planned for {1 + MOST:g} times the rates, {worst}. Raise that target.")


def _chosen(workload: Workload, placement: Placement, seed: int) -> bool:
    """Whether a placement looks enough; most that are not show it in the first two replays."""
    tries = (replay(workload, placement, seed=seed, numbers=range(count)) for count in (2, CHOOSING))
    return all(result.in_time for results in tries for result in results)


def _worst(results: list[Replayed]) -> str:
    worst = max(results, key=lambda result: (result.share.high, result.late_replays))
    return (
        f"{worst.late} of {worst.requests} requests of {worst.model} on device {worst.device} are late in "
        f"{worst.replays} replays, and more than 1 % in {worst.late_replays} of these"
    )
