"""A new placement for changed rates that moves as few models as it can, and what moves.

A device that still keeps its targets stays as it is. From one that does not, the fewest models go that leave a set
which fits, found by trying all; no plan that keeps this device's others where they are moves fewer. They go where
they fit best, and to a new device where they fit nowhere.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from perf.pack.duty import Turns
from perf.pack.heuristics import fullest
from perf.pack.packing import at_true_rates, remainders
from perf.pack.placement import Node, Placement
from perf.pack.problem import Items
from perf.pack.workload import Workload
from triton_batching.terminal import Mistake


@dataclass(frozen=True, kw_only=True)
class Move:
    """A model that leaves device `source` (None: it starts) for `target` (None: it stops there)."""

    model: str
    source: int | None
    target: int | None

    def __str__(self) -> str:
        if self.source is None:
            return f"{self.model} starts on device {self.target}"
        if self.target is None:
            return f"{self.model} stops on device {self.source}"
        return f"{self.model} moves from device {self.source} to device {self.target}"


@dataclass(frozen=True, kw_only=True)
class Replanned:
    """The new placement, device by device as in the old one, and what it takes to get there."""

    placement: Placement
    moves: tuple[Move, ...]


def replan(workload: Workload, old: Placement) -> Replanned:
    """The old placement changed for the workload's rates; raises `Mistake` where the devices are not enough.

    Devices that lose every model are dropped, so later ones move up in number; a move is told by the old number for
    where it starts and the new one for where it ends.
    """
    whole, problem = remainders(workload, old.headroom)
    slots = _slots(workload, old, whole, problem)
    bins = [one if isinstance(one, frozenset) else frozenset() for one in slots]
    kept = [_largest(problem, one) for one in bins]
    out = sorted(set(range(problem.count)) - set().union(*kept, frozenset()), key=lambda item: -problem.size(item))
    full: list[Node | None] = [one if isinstance(one, Node) else None for one in slots]
    _insert(problem, kept, full, out)
    nodes: list[Node] = []
    source: list[int | None] = []
    for at, items in enumerate(kept):
        made = full[at] or (problem.node(items) if items else None)
        if made is not None:
            nodes.append(at_true_rates(made, old.headroom))
            source.append(at if at < len(old.nodes) else None)
    if len(nodes) > workload.devices.count:
        raise Mistake(
            f"with the fewest moves {len(nodes)} devices are needed and there are {workload.devices.count}. Pack "
            "anew without --from, or add devices."
        )
    bound = sum(node is not None for node in full) + (problem.least if problem.count else 0)
    placement = Placement(algorithm="replan", nodes=tuple(nodes), bound=bound, headroom=old.headroom)
    return Replanned(placement=placement, moves=tuple(_moves(old, placement, source)))


def _slots(workload: Workload, old: Placement, whole: Sequence[Node], problem: Turns) -> list[Node | Items]:
    """For each old device what it is asked to hold now: a whole model, or the remainders that it had; new ones after.

    A model's whole devices stay on the ones it had to itself; its remainder stays where it shared, or where it was last
    alone.
    """
    wanted = {load.model.name: item for item, load in enumerate(problem.loads)}
    left = list(whole)
    slots: list[Node | Items] = []
    for node in old.nodes:
        match = next((one for one in left if node.models == one.models), None)
        if match is not None:
            left.remove(match)
            slots.append(match)
            continue
        slots.append(frozenset(wanted.pop(name) for name in node.models if name in wanted))
    return [*slots, *left]


def _largest(problem: Turns, items: Items) -> Items:
    """The most of them that fit together, and of as many the fullest."""
    for count in range(len(items), 0, -1):
        found = [
            (full, some)
            for some in combinations(sorted(items), count)
            if (full := problem.fullness(frozenset(some))) is not None
        ]
        if found:
            return frozenset(max(found)[1])
    return frozenset()


def _insert(problem: Turns, bins: list[Items], full: list[Node | None], out: Sequence[int]) -> None:
    """Each item into the fullest device that is in use and takes it, then into an empty one, then into a new one."""
    for item in out:
        used = [at for at, one in enumerate(bins) if one and full[at] is None]
        place = fullest(problem, [bins[at] for at in used], item)
        if place is not None:
            at = used[place]
        else:
            empty = [at for at, one in enumerate(bins) if not one and full[at] is None]
            if not empty:
                bins.append(frozenset())
                full.append(None)
            at = empty[0] if empty else len(bins) - 1
        bins[at] |= {item}


def _moves(old: Placement, new: Placement, source: Sequence[int | None]) -> Iterator[Move]:
    """Stops on one device and starts on another are one move of the model, as far as they are as many."""
    before = {(name, at) for at, node in enumerate(old.nodes) for name in node.models}
    numbers = {was: at for at, was in enumerate(source) if was is not None}
    after = {
        (name, was if was is not None else -1 - at)
        for at, (node, was) in enumerate(zip(new.nodes, source, strict=True))
        for name in node.models
    }
    stops = sorted(before - after)
    for name, place in sorted(after - before):
        at = numbers[place] if place >= 0 else -1 - place
        stop = next((one for one in stops if one[0] == name), None)
        if stop is not None:
            stops.remove(stop)
        yield Move(model=name, source=stop[1] if stop else None, target=at)
    for name, was in stops:
        yield Move(model=name, source=was, target=None)
