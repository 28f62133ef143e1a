"""The memory trace of an onnxruntime run, from its profile (`enable_profiling` on, `enable_mem_pattern` off).

A profile has no allocations. For each node it has the bytes in use after the node, the bytes that the node added and
the shapes of its outputs. So the reader infers: a node allocates those of its outputs that add up to the added bytes.
Bytes that are gone before the next node were released in between; the reader frees live buffers of that total size. Of
several equal buffers it frees the oldest, and a remark counts such cases. The scratch memory of a kernel is not in a
profile.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from perf.studies.memory_lab.traces.fields import content
from perf.studies.memory_lab.traces.ledger import Key, Ledger
from perf.studies.memory_lab.traces.onnxruntime_events import ADVICE, NodeEvent, nodes_by_run
from perf.studies.memory_lab.traces.trace import Trace
from triton_batching.terminal import Mistake

SOURCE = "onnxruntime profile"
ITEM_BYTES = {
    **dict.fromkeys(("bool", "int8", "uint8", "float8e4m3fn", "float8e5m2"), 1),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 2),
    **dict.fromkeys(("float", "int32", "uint32"), 4),
    **dict.fromkeys(("double", "int64", "uint64"), 8),
}
# The search for buffers that add up to a size tries sets of at most so many buffers, and at most so many sets.
MAX_SET_SIZE = 4
MAX_SETS = 100_000


@dataclass(frozen=True, kw_only=True)
class Node:
    """One node: the requested bytes in use after it, the requested and the held bytes that it added, its outputs."""

    name: str
    place: int
    in_use: int
    added: int
    held: int
    outputs: tuple[int, ...]
    provider: str

    @property
    def before(self) -> int:
        """Requested bytes in use before the node."""
        return self.in_use - self.added


def read(path: Path) -> tuple[Trace, ...]:
    """One trace per run and execution provider; raises `Mistake`; for broken JSON with line and column."""
    return parse(content(path, ADVICE), str(path))


def parse(data: bytes, origin: str = "profile") -> tuple[Trace, ...]:
    """The traces of the runs in order of time, without the weights, which are in use before the first node."""
    runs = [[_node(event) for event in run] for run in nodes_by_run(data, origin)]
    traces = [_trace(nodes) for run in runs for nodes in _by_provider(run)]
    if not traces:
        raise Mistake(f"{origin}: no node has mem_bytes_requested_in_use, so there is no memory to read. {ADVICE}")
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
    providers = dict.fromkeys(node.provider for node in nodes)
    return [[node for node in nodes if node.provider == name] for name in providers]


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
    _release(ledger, sum(buffer.requested_bytes for _, buffer in ledger.live()), "end of the run")
    if guesses:
        ledger.remark("whole run", f"{guesses} releases may be of another live buffer of the same size")
    return ledger.trace()


def _allocate(ledger: Ledger, node: Node) -> None:
    """Add the outputs that add up to the bytes that the node added; else one buffer of all these bytes."""
    where = f"event {node.place}"
    if node.added < 0:
        _release(ledger, -node.added, where)
        return
    sizes = _adding_up(node.outputs, node.added)
    if sizes is None:
        text = f"{node.name} added {node.added:,} bytes, its outputs are {list(node.outputs)}: taken as one buffer"
        ledger.remark(where, text)
        sizes = (node.added,)
    for number, size in enumerate(sizes):
        if size:
            held = node.held if len(sizes) == 1 else None
            ledger.allocate(f"{node.place}.{number}", size, where=where, held=held, name=node.name)


def _release(ledger: Ledger, size: int, where: str) -> bool:
    """Free live buffers of `size` bytes in total, the oldest first; whether other live buffers have these sizes too."""
    if size <= 0:
        if size < 0:
            ledger.remark(where, f"{-size:,} bytes more in use than after the node before: of no node, left out")
        return False
    live = ledger.live()
    if sum(buffer.requested_bytes for _, buffer in live) == size:
        keys: list[Key] | None = [key for key, _ in live]
    else:
        keys = _matching(live_sizes=[(key, buffer.requested_bytes) for key, buffer in live], size=size)
    if keys is None:
        ledger.remark(where, f"{size:,} bytes are released; no {MAX_SET_SIZE} live buffers add up to them: left live")
        return False
    for key in keys:
        ledger.free(key, where=where)
    sizes = {buffer.requested_bytes for key, buffer in live if key in keys}
    return any(buffer.requested_bytes in sizes for _, buffer in ledger.live())


def _matching(live_sizes: list[tuple[Key, int]], size: int) -> list[Key] | None:
    """The keys of the smallest set of buffers of `size` bytes in total; None if the search has no result."""
    candidates = [(key, live_size) for key, live_size in live_sizes if live_size <= size]
    for count in range(1, MAX_SET_SIZE + 1):
        if math.comb(len(candidates), count) > MAX_SETS:
            break
        for chosen in combinations(candidates, count):
            if sum(live_size for _, live_size in chosen) == size:
                return [key for key, _ in chosen]
    return None


def _adding_up(outputs: tuple[int, ...], added: int) -> tuple[int, ...] | None:
    """The largest subset of `outputs` of `added` bytes in total; the other outputs reuse an existing buffer."""
    for count in range(len(outputs), -1, -1):
        if math.comb(len(outputs), count) > MAX_SETS:
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
