"""Packs a workload onto devices by one of the algorithms, for its rates or higher ones."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from perf.pack import exact
from perf.pack.duty import Portion, Turns
from perf.pack.heuristics import best_fit_decreasing, best_fit_online, first_fit_decreasing
from perf.pack.improve import improve
from perf.pack.placement import Node, Placement
from perf.pack.problem import Items
from perf.pack.squishy import saturated, squishy
from perf.pack.workload import Workload, raised
from triton_batching.terminal import Mistake

GREEDY: Mapping[str, Callable[[Turns], list[Items]]] = {
    "squishy": squishy,
    "best-fit": best_fit_online,
    "best-fit-decreasing": best_fit_decreasing,
    "first-fit-decreasing": first_fit_decreasing,
}
ALGORITHMS = (*GREEDY, "improved", "exact")
DEFAULT = "improved"


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
