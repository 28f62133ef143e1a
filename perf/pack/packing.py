"""A workload onto devices by one of the algorithms."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from perf.pack import exact
from perf.pack.duty import Load, Turns
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


def pack(
    workload: Workload,
    algorithm: str = "squishy",
    *,
    headroom: float = 0.0,
    seed: int = 0,
    time_limit_s: float = exact.TIME_LIMIT_S,
) -> Placement:
    """Every model on devices, as if its rate were (1 + headroom) times what it is.

    What a model fills by itself gets whole devices, the remainders share. Raises `Mistake` for a model that fits
    nowhere, and where there are not enough devices.
    """
    whole, problem = remainders(workload, headroom)
    bins, bound = _bins(problem, algorithm, seed, time_limit_s)
    nodes = [*whole, *(node for items in bins if (node := problem.node(items)) is not None)]
    nodes = [at_true_rates(node, headroom) for node in nodes]
    if len(nodes) > workload.devices.count:
        raise Mistake(
            f"{len(nodes)} devices are needed by {algorithm} (at least {len(whole) + bound} by any plan of this kind) "
            f"and there are {workload.devices.count}. Raise count, lower a rate, loosen a target, or try --algorithm "
            "exact."
        )
    return Placement(algorithm=algorithm, nodes=tuple(nodes), bound=len(whole) + bound, headroom=headroom)


def at_true_rates(node: Node, headroom: float) -> Node:
    """The device with the rates that it will see, of one that was planned for (1 + headroom) times them."""
    return replace(node, shares=tuple(replace(one, rate_per_s=one.rate_per_s / (1 + headroom)) for one in node.shares))


def remainders(workload: Workload, headroom: float = 0.0) -> tuple[list[Node], Turns]:
    """Devices that are filled by one model each, and the problem that the rest is; raises `Mistake`."""
    whole: list[Node] = []
    loads: list[Load] = []
    for model in workload.models:
        nodes, load = saturated(raised(model, headroom), workload.devices.memory_bytes)
        whole += nodes
        loads += [load] if load else []
    problem = Turns(loads=loads, memory_bytes=workload.devices.memory_bytes, pairs=workload.pairs)
    for item, load in enumerate(loads):
        if problem.fullness(frozenset({item})) is None:
            raise Mistake(
                f"model {load.model.name}: does not fit on a device of its own, by memory or by its target of "
                f"{load.model.sla_ms:g} ms at {load.rate_per_s:g} requests per second. Give devices more memory, or "
                "loosen the target."
            )
    return whole, problem


def _bins(problem: Turns, algorithm: str, seed: int, time_limit_s: float) -> tuple[list[Items], int]:
    if not problem.count:
        return [], 0
    if algorithm == "exact":
        answer = exact.fewest(problem, time_limit_s=time_limit_s)
        return list(answer.bins), answer.bound
    bound = problem.least
    bins = GREEDY["squishy" if algorithm == "improved" else algorithm](problem)
    if algorithm == "improved":
        bins = improve(problem, bins, bound=bound, seed=seed)
    return bins, bound
