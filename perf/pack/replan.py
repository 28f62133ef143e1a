"""Changes a placement for new rates with as few moves as possible.

A device that still meets its targets stays as it is. From another device the fewest models leave such that the others
fit, found by trying all subsets. They go to the devices where they fit best, or to a new device.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from perf.pack.algorithms import at_true_rates, remainders
from perf.pack.duty import Turns
from perf.pack.heuristics import fullest
from perf.pack.placement import Node, Placement
from perf.pack.problem import Items
from perf.pack.workload import Workload
from triton_batching.terminal import Mistake


@dataclass(frozen=True, kw_only=True)
class Move:
    """A model moves from device `source` (None: it is new) to device `target` (None: it is removed)."""

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
    """The new placement, in the order of the old devices, and the moves that lead to it."""

    placement: Placement
    moves: tuple[Move, ...]


def replan(workload: Workload, old: Placement) -> Replanned:
    """The old placement changed for the workload's rates; raises `Mistake` if there are too few devices.

    A device that loses all models is dropped, and later devices get lower numbers. The source of a move is an old
    number, its target a new one.
    """
    whole, problem = remainders(workload, old.headroom)
    slots = _slots(workload, old, whole, problem)
    bins = [slot if isinstance(slot, frozenset) else frozenset() for slot in slots]
    staying = [_largest(problem, items) for items in bins]
    out = sorted(set(range(problem.count)) - set().union(*staying, frozenset()), key=lambda item: -problem.size(item))
    full: list[Node | None] = [slot if isinstance(slot, Node) else None for slot in slots]
    _insert(problem, staying, full, out)
    nodes: list[Node] = []
    source: list[int | None] = []
    for at, items in enumerate(staying):
        node = full[at] or (problem.node(items) if items else None)
        if node is not None:
            nodes.append(at_true_rates(node, old.headroom))
            source.append(at if at < len(old.nodes) else None)
    if len(nodes) > workload.devices.count:
        raise Mistake(
            f"with the fewest moves {len(nodes)} devices are needed, and there are {workload.devices.count}. Pack "
            "again without --from, or add devices."
        )
    bound = sum(node is not None for node in full) + (problem.least if problem.count else 0)
    placement = Placement(algorithm="replan", nodes=tuple(nodes), bound=bound, headroom=old.headroom)
    return Replanned(placement=placement, moves=tuple(_moves(old, placement, source)))


def _slots(workload: Workload, old: Placement, whole: Sequence[Node], problem: Turns) -> list[Node | Items]:
    """The content of each old device: a model that fills it, or the remainders that it had; then new devices.

    A model keeps the devices that it had alone. Its remainder stays on a device that it shared, else on the last device
    that it had alone.
    """
    item_of = {portion.model.name: item for item, portion in enumerate(problem.portions)}
    left = list(whole)
    slots: list[Node | Items] = []
    for node in old.nodes:
        match = next((new for new in left if node.models == new.models), None)
        if match is not None:
            left.remove(match)
            slots.append(match)
            continue
        slots.append(frozenset(item_of.pop(name) for name in node.models if name in item_of))
    return [*slots, *left]


def _largest(problem: Turns, items: Items) -> Items:
    """The largest subset that fits; the fullest among equals."""
    for count in range(len(items), 0, -1):
        subsets = combinations(sorted(items), count)
        fits = [(full, part) for part in subsets if (full := problem.fullness(frozenset(part))) is not None]
        if fits:
            return frozenset(max(fits)[1])
    return frozenset()


def _insert(problem: Turns, bins: list[Items], full: list[Node | None], out: Sequence[int]) -> None:
    """Put each item into the fullest used device that it fits, else into an empty device, else into a new one."""
    for item in out:
        used = [at for at, items in enumerate(bins) if items and full[at] is None]
        place = fullest(problem, [bins[at] for at in used], item)
        if place is not None:
            at = used[place]
        else:
            empty = [at for at, items in enumerate(bins) if not items and full[at] is None]
            if not empty:
                bins.append(frozenset())
                full.append(None)
            at = empty[0] if empty else len(bins) - 1
        bins[at] |= {item}


def _moves(old: Placement, new: Placement, source: Sequence[int | None]) -> Iterator[Move]:
    """The moves; a stop on one device and a start on another are one move of the model."""
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
        stop = next((stop for stop in stops if stop[0] == name), None)
        if stop is not None:
            stops.remove(stop)
        yield Move(model=name, source=stop[1] if stop else None, target=at)
    for name, was in stops:
        yield Move(model=name, source=was, target=None)
