"""Packs a workload onto devices by one of the algorithms, with the headroom that uneven arrivals need."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from perf.pack import exact
from perf.pack.duty import Portion, Turns
from perf.pack.heuristics import best_fit_decreasing, best_fit_online, first_fit_decreasing
from perf.pack.improve import improve
from perf.pack.placement import Node, Placement
from perf.pack.problem import Items
from perf.pack.replay import replay
from perf.pack.replayed import Replayed
from perf.pack.squishy import saturated, squishy
from perf.pack.validator import violations
from perf.pack.workload import Workload, raised
from triton_batching.terminal import Failure, Mistake

GREEDY: Mapping[str, Callable[[Turns], list[Items]]] = {
    "squishy": squishy,
    "best-fit": best_fit_online,
    "best-fit-decreasing": best_fit_decreasing,
    "first-fit-decreasing": first_fit_decreasing,
}
ALGORITHMS = (*GREEDY, "improved", "exact")
DEFAULT = "improved"
# The headroom for uneven arrivals is raised in these steps up to this maximum.
HEADROOM_STEP, MAX_HEADROOM = 0.05, 1.0
STEPS = round(MAX_HEADROOM / HEADROOM_STEP) + 1
# Replays that choose a headroom, and others that must confirm it.
CHOOSING, CONFIRMING = 20, 100


def pack(
    workload: Workload,
    algorithm: str = DEFAULT,
    *,
    headroom: float = 0.0,
    seed: int = 0,
    time_limit_s: float = exact.TIME_LIMIT_S,
) -> Placement:
    """Place all models as if their rates were (1 + headroom) times as high.

    A model gets the devices that it fills by itself, and the remainders share devices. Raises `Mistake` if a model fits
    nowhere, or if there are too few devices.
    """
    whole, problem = remainders(workload, headroom)
    bins, bound = _bins(problem, algorithm, seed, time_limit_s)
    nodes = [*whole, *(node for items in bins if (node := problem.node(items)) is not None)]
    nodes = [at_true_rates(node, headroom) for node in nodes]
    if len(nodes) > workload.devices.count:
        uneven = f" at {1 + headroom:g} x the rates, which uneven arrivals need," if headroom else ""
        raise Mistake(
            f"{len(nodes)} devices are needed{uneven} by {algorithm} (at least {len(whole) + bound} by any algorithm), "
            f"and there are {workload.devices.count}. Raise count, lower a rate, raise a target, or try --algorithm "
            "exact."
        )
    return Placement(algorithm=algorithm, nodes=tuple(nodes), bound=len(whole) + bound, headroom=headroom)


def at_true_rates(node: Node, headroom: float) -> Node:
    """A device that was planned with headroom, with its true rates."""
    shares = (replace(share, rate_per_s=share.rate_per_s / (1 + headroom)) for share in node.shares)
    return replace(node, shares=tuple(shares))


def remainders(workload: Workload, headroom: float = 0.0) -> tuple[list[Node], Turns]:
    """The devices that one model fills, and the packing problem of the remainders; raises `Mistake`."""
    whole: list[Node] = []
    portions: list[Portion] = []
    for model in workload.models:
        nodes, portion = saturated(raised(model, headroom), workload.devices.memory_bytes)
        whole += nodes
        portions += [portion] if portion else []
    problem = Turns(portions=portions, memory_bytes=workload.devices.memory_bytes, pairs=workload.pairs)
    for item, portion in enumerate(portions):
        if problem.fullness(frozenset({item})) is None:
            raise Mistake(
                f"model {portion.model.name}: does not fit on a device alone, by memory or by its target of "
                f"{portion.model.target_ms:g} ms at {portion.rate_per_s:g} requests per second. Give devices more "
                "memory, or raise the target."
            )
    return whole, problem


def _bins(problem: Turns, algorithm: str, seed: int, time_limit_s: float) -> tuple[list[Items], int]:
    if not problem.count:
        return [], 0
    if algorithm == "exact":
        answer = exact.fewest(problem, time_limit_s=time_limit_s)
        return list(answer.bins), answer.bound
    bound = problem.least
    if algorithm == "improved":
        fewest = min((greedy(problem) for greedy in GREEDY.values()), key=len)
        return improve(problem, fewest, bound=bound, seed=seed), bound
    return GREEDY[algorithm](problem), bound


def plan(
    workload: Workload,
    algorithm: str = DEFAULT,
    *,
    seed: int = 0,
    time_limit_s: float = exact.TIME_LIMIT_S,
    progress: Callable[[str], None] = lambda _: None,
) -> tuple[Placement, list[Replayed]]:
    """The placement with the least headroom at which 99 % of each model's requests are in time, and its replays.

    A headroom that looks enough in `CHOOSING` replays must be confirmed by `CONFIRMING` others (`Replayed.proven`),
    which are the ones returned; if it is not, the next one is tried. Raises `Mistake` if there is no such placement,
    and `Failure` if the validator refuses it.
    """
    for step in range(STEPS):
        progress(f"packing for {1 + step * HEADROOM_STEP:g} x the rates")
        placement = pack(workload, algorithm, headroom=step * HEADROOM_STEP, seed=seed, time_limit_s=time_limit_s)
        if broken := violations(workload, placement):
            raise Failure("the validator refuses the placement, so nothing was written:\n" + "\n".join(broken))
        if not _chosen(workload, placement, seed):
            continue
        results = confirmed(workload, placement, seed=seed, step=step)
        if not unproven(workload, results, STEPS):
            return placement, results
    worst = _worst(confirmed(workload, placement, seed=seed))
    raise Mistake(f"even planned for {1 + MAX_HEADROOM:g} times the rates, {worst}. Raise that target.")


def _chosen(workload: Workload, placement: Placement, seed: int) -> bool:
    """Whether a placement looks enough; most that are not show it in the first two replays."""
    tries = (replay(workload, placement, seed=seed, numbers=range(count)) for count in (2, CHOOSING))
    return all(result.in_time for results in tries for result in results)


def confirmed(workload: Workload, placement: Placement, *, seed: int = 0, step: int = 0) -> list[Replayed]:
    """Replays of a placement that chose no headroom: other ones at each `step`."""
    first = CHOOSING + step * CONFIRMING
    return replay(workload, placement, seed=seed, numbers=range(first, first + CONFIRMING))


def unproven(workload: Workload, results: Sequence[Replayed], placements: int = 1) -> list[str]:
    """The models that the replays of one of so many `placements` do not show to be in time.

    Even arrivals differ in phase only, so a replay is worth one request. But then the duty cycle itself is a proof, and
    no late request in any replay is enough.
    """
    even = workload.arrivals == "uniform"
    return sorted({each.model for each in results if not (each.proven(placements) or (even and not each.late))})


def _worst(results: list[Replayed]) -> str:
    worst = max(results, key=lambda result: (result.share.high, result.late_replays))
    return (
        f"{worst.late} of {worst.requests} requests of {worst.model} on device {worst.device} are late in "
        f"{worst.replays} replays, and more than 1 % in {worst.late_replays} of these"
    )
