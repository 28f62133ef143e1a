"""Memory of an onnxruntime run, from the session's profile (`enable_profiling` on, `enable_mem_pattern` off).

A profile has no single allocations, but for every node what its arena had in use after it and how much the node added.
So a node allocates its outputs (their shapes are there), as far as they add up to what it added; what is missing in
front of the next node was released in between, and is matched with live buffers of exactly that size together. Which of
several equal ones it was, the profile does not say: the oldest is taken, and a remark counts such cases. Scratch memory
that a kernel allocates and frees within itself is not in a profile either.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from perf.memory.trace.fields import content
from perf.memory.trace.ledger import Key, Ledger
from perf.memory.trace.onnxruntime_events import ADVICE, NodeEvent, runs
from perf.memory.trace.trace import Trace
from triton_batching.terminal import Mistake

SOURCE = "onnxruntime profile"
ITEM_BYTES = {
    **dict.fromkeys(("bool", "int8", "uint8", "float8e4m3fn", "float8e5m2"), 1),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 2),
    **dict.fromkeys(("float", "int32", "uint32"), 4),
    **dict.fromkeys(("double", "int64", "uint64"), 8),
}
# Sets of buffers are tried for a release up to this many at once, and up to this many sets; the same for outputs.
MOST_TOGETHER = 4
MOST_SETS = 100_000


@dataclass(frozen=True, kw_only=True)
class Node:
    """What one node did: requested bytes in use after it, what it added to them (and to the rounded bytes), outputs."""

    name: str
    place: int
    in_use: int
    added: int
    held: int
    outputs: tuple[int, ...]
    provider: str

    @property
    def before(self) -> int:
        """Requested bytes in use when it began."""
        return self.in_use - self.added


def read(path: Path) -> tuple[Trace, ...]:
    """One trace per run and execution provider; raises `Mistake`, for broken JSON with line and column."""
    return parse(content(path, ADVICE), str(path))


def parse(data: bytes, origin: str = "profile") -> tuple[Trace, ...]:
    """Traces of the runs in the order of their time, without the weights, which are in use before the first node."""
    found = [[_node(event) for event in run] for run in runs(data, origin)]
    traces = [_trace(nodes) for run in found for nodes in _by_provider(run)]
    if not traces:
        raise Mistake(f"{origin}: no node says mem_bytes_requested_in_use, so there is no memory to read. {ADVICE}")
    return tuple(traces)


def _node(event: NodeEvent) -> Node:
    return Node(
        name=event.name,
        place=event.place,
        in_use=event.requested,
        added=event.number("mem_requested_in_use_delta"),
        held=event.number("mem_in_use_delta"),
        outputs=tuple(_sizes(event.values.get("output_type_shape") or ())),
        provider=str(event.values.get("provider", "")),
    )


def _by_provider(nodes: list[Node]) -> list[list[Node]]:
    return [
        [node for node in nodes if node.provider == name] for name in dict.fromkeys(node.provider for node in nodes)
    ]


def _trace(nodes: list[Node]) -> Trace:
    ledger = Ledger(SOURCE, nodes[0].provider)
    in_use = base = nodes[0].before
    guesses = 0
    for node in nodes:
        guesses += _release(ledger, in_use - node.before, f"before event {node.place} ({node.name})")
        _allocate(ledger, node)
        in_use = node.in_use
    if in_use < base:
        ledger.remark("end of the run", f"{base - in_use:,} bytes less in use than before it")
    _release(ledger, sum(one.requested_bytes for _, one in ledger.live()), "end of the run")
    if guesses:
        ledger.remark("whole run", f"{guesses} releases could as well be of another live buffer of the same size")
    return ledger.trace()


def _allocate(ledger: Ledger, node: Node) -> None:
    """The outputs that add up to what the node added; else one buffer of it all."""
    where = f"event {node.place}"
    if node.added < 0:
        _release(ledger, -node.added, where)
        return
    sizes = _adding_up(node.outputs, node.added)
    if sizes is None:
        ledger.remark(
            where, f"{node.name} added {node.added:,} bytes, its outputs are {list(node.outputs)}: kept as one"
        )
        sizes = (node.added,)
    for number, size in enumerate(sizes):
        if size:
            held = node.held if len(sizes) == 1 else None
            ledger.allocate(f"{node.place}.{number}", size, where=where, held=held, name=node.name)


def _release(ledger: Ledger, size: int, where: str) -> bool:
    """Free live buffers, the oldest first, of exactly `size` bytes together: whether others could have been it."""
    if size <= 0:
        if size < 0:
            ledger.remark(where, f"{-size:,} bytes more in use than after the node before: not of a node, left out")
        return False
    live = ledger.live()
    if sum(one.requested_bytes for _, one in live) == size:
        keys: list[Key] | None = [key for key, _ in live]
    else:
        keys = _matching(live_sizes=[(key, one.requested_bytes) for key, one in live], size=size)
    if keys is None:
        ledger.remark(where, f"{size:,} bytes are released, which no {MOST_TOGETHER} live buffers add up to: left live")
        return False
    for key in keys:
        ledger.free(key, where=where)
    sizes = {one.requested_bytes for key, one in live if key in keys}
    return any(one.requested_bytes in sizes for _, one in ledger.live())


def _matching(live_sizes: list[tuple[Key, int]], size: int) -> list[Key] | None:
    fitting = [one for one in live_sizes if one[1] <= size]
    for count in range(1, MOST_TOGETHER + 1):
        if math.comb(len(fitting), count) > MOST_SETS:
            break
        for chosen in combinations(fitting, count):
            if sum(one[1] for one in chosen) == size:
                return [key for key, _ in chosen]
    return None


def _adding_up(outputs: tuple[int, ...], added: int) -> tuple[int, ...] | None:
    """The largest part of `outputs` whose sizes make `added`; the others took over a buffer that was there."""
    for count in range(len(outputs), -1, -1):
        if math.comb(len(outputs), count) > MOST_SETS:
            break
        for chosen in combinations(outputs, count):
            if sum(chosen) == added:
                return chosen
    return None


def _sizes(outputs: Any) -> Iterator[int]:
    for output in outputs:
        for kind, dims in output.items() if isinstance(output, dict) else ():
            if kind in ITEM_BYTES and isinstance(dims, list):
                yield ITEM_BYTES[kind] * math.prod(dims)
