"""Packs a workload onto devices by one of the algorithms, for its rates or higher ones."""

from dataclasses import replace

from perf.pack.duty import CHECKS, Items, Portion, SpentError, Turns
from perf.pack.greedy import best_fit_decreasing, saturated
from perf.pack.improve import improve
from perf.pack.placement import Node, Placement
from perf.pack.workload import Workload
from triton_batching.terminal import Mistake

IMPROVED, GREEDY = "improved", "best-fit-decreasing"
ALGORITHMS = (IMPROVED, GREEDY)


def pack(workload: Workload, algorithm: str = IMPROVED, *, headroom: float = 0.0, seed: int = 0) -> Placement:
    """Place all models as if their rates were (1 + headroom) times as high.

    A model gets the devices that it fills by itself, and the remainders share devices. Raises `Mistake` if a model fits
    nowhere, or if there are too few devices.
    """
    whole, problem = remainders(workload, headroom)
    bins = _bins(problem, algorithm, seed) if problem.count else []
    nodes = [*whole, *(node for items in bins if (node := problem.node(items)) is not None)]
    nodes = [_at_true_rates(node, headroom) for node in nodes]
    bound = len(whole) + (problem.least if problem.count else 0)
    if len(nodes) > workload.devices.count:
        uneven = f" at {1 + headroom:g} x the rates, which uneven arrivals need," if headroom else ""
        raise Mistake(
            f"{len(nodes)} devices are needed{uneven} by {algorithm} (at least {bound} by any algorithm), and there "
            f"are {workload.devices.count}. Raise count, lower a rate, or raise a target."
        )
    return Placement(algorithm=algorithm, nodes=tuple(nodes), bound=bound, headroom=headroom)


def _at_true_rates(node: Node, headroom: float) -> Node:
    """A device that was planned with headroom, with its true rates."""
    shares = (replace(share, rate_per_s=share.rate_per_s / (1 + headroom)) for share in node.shares)
    return replace(node, shares=tuple(shares))


def remainders(workload: Workload, headroom: float = 0.0) -> tuple[list[Node], Turns]:
    """The devices that one model fills, and the packing problem of the remainders; raises `Mistake`."""
    whole: list[Node] = []
    portions: list[Portion] = []
    for model in workload.models:
        raised = replace(model, rate_per_s=model.rate_per_s * (1 + headroom))
        nodes, portion = saturated(raised, workload.devices.memory_bytes)
        whole += nodes
        portions += [portion] if portion else []
    problem = Turns(portions=portions, memory_bytes=workload.devices.memory_bytes)
    for item, portion in enumerate(portions):
        if problem.fullness(frozenset({item})) is None:
            raise Mistake(
                f"model {portion.model.name}: does not fit on a device alone, by memory or by its target of "
                f"{portion.model.target_ms:g} ms at {portion.rate_per_s:g} requests per second. Give devices more "
                "memory, or raise the target."
            )
    return whole, problem


def _bins(problem: Turns, algorithm: str, seed: int) -> list[Items]:
    try:
        fewest = best_fit_decreasing(problem)
    except SpentError as error:
        raise Mistake(
            f"{problem.count} models that do not fill a device are too many: to place them takes checks of more than "
            f"{CHECKS:,} sets of models. Write them into several plans, with a part of the devices each."
        ) from error
    return fewest if algorithm == GREEDY else improve(problem, fewest, bound=problem.least, seed=seed)
