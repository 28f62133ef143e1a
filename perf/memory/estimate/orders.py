"""The orders in which a session may run the nodes of a graph.

onnxruntime numbers the nodes that end a blocked layout as they come out of a hash table of addresses
(`NchwcTransformerImpl::Finalize`), so each session may have another order of execution.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from math import perm

from perf.memory.estimate.graph import Graph, executed, first_output, inputs_of

REORDERED = ("com.microsoft.nchwc", "ReorderOutput")
# More permutations than this are not all tried.
MOST_TRIED = 50_000
# The number of permutations that are tried if there are more.
SAMPLED = 16
# Each order is simulated.
MOST_ORDERS = 24


@dataclass(frozen=True, kw_only=True)
class Orders:
    """The graph in different orders of execution, itself first; `complete` if there are no others."""

    graphs: tuple[Graph, ...]
    complete: bool


def orders(graph: Graph) -> Orders:
    """The orders of a graph: all of them if there are few, else some."""
    places = [at for at, node in enumerate(graph.loaded) if (node.domain, node.op_type) == REORDERED]
    groups = _compared(graph, set(places))
    moved = sorted(set(places) & set().union(*groups))
    every = perm(len(places), len(moved)) <= MOST_TRIED
    found = {tuple(map(first_output, graph.nodes)): graph}
    seen = set()
    for chosen in permutations(places, len(moved)) if every else _samples(places, len(moved)):
        index = dict(zip(moved, chosen, strict=True))
        ranks = tuple(tuple(sorted(group, key=lambda at: index.get(at, at))) for group in groups)
        if ranks not in seen:
            seen.add(ranks)
            other = _numbered(graph, places, index)
            found.setdefault(tuple(map(first_output, other.nodes)), other)
        if len(found) > MOST_ORDERS:
            break
    return Orders(graphs=tuple(found.values())[:MOST_ORDERS], complete=every and len(found) <= MOST_ORDERS)


def _compared(graph: Graph, places: set[int]) -> list[list[int]]:
    """The nodes whose indices are compared with each other, by index; only groups with a node of `places`.

    The indices of the sources of a node decide which runs first, and those of the nodes whose outputs no node reads.
    """
    maker = {name: at for at, node in enumerate(graph.loaded) for name in node.output if name}
    sources = [{maker[name] for name in inputs_of(node) if name in maker} for node in graph.loaded]
    read = set().union(*sources)
    groups = [*sources, {at for at in range(len(graph.loaded)) if at not in read}]
    return [sorted(group) for group in groups if len(group) > 1 and group & places]


def _samples(places: Sequence[int], count: int) -> Iterator[Sequence[int]]:
    yield places[::-1][:count]
    for seed in range(1, SAMPLED):
        yield random.Random(seed).sample(places, k=count)


def _numbered(graph: Graph, places: Sequence[int], index: dict[int, int]) -> Graph:
    """The graph with the nodes of `index` at these indices, the others of `places` at those that are left."""
    left = iter([place for place in places if place not in index.values()])
    loaded = list(graph.loaded)
    for source in places:
        loaded[index[source] if source in index else next(left)] = graph.loaded[source]
    return replace(graph, loaded=tuple(loaded), nodes=tuple(executed(loaded)))
