"""The memory trace of an onnxruntime run, from its profile (`enable_profiling` on, `enable_mem_pattern` off).

A profile has no allocations. For each node it has the bytes in use after the node, the bytes that the node added and
the shapes of its outputs. So the reader infers: a node allocates those of its outputs that add up to the added bytes.
Bytes that are gone before the next node were released in between; the reader frees live buffers of that total size. Of
several equal buffers it frees the oldest, and a remark counts such cases. The scratch memory of a kernel is not in a
profile.
"""

import json
import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from perf.studies.memory_lab.trace import Ledger, Trace
from triton_batching.terminal import Mistake

SOURCE = "onnxruntime profile"
ADVICE = "Set SessionOptions.enable_profiling, unset enable_mem_pattern, and give the file of end_profiling()."
SUFFIX = "_kernel_time"
ITEM_BYTES = {
    **dict.fromkeys(("bool", "int8", "uint8"), 1),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 2),
    **dict.fromkeys(("float", "int32", "uint32"), 4),
    **dict.fromkeys(("double", "int64", "uint64"), 8),
}
# The search for buffers that add up to a size tries sets of at most so many buffers, and at most so many sets.
MAX_SET_SIZE = 4
MAX_SETS = 100_000


@dataclass(frozen=True, kw_only=True)
class Node:
    """One node: when it began, the requested bytes in use after it, the requested and the held bytes that it added."""

    name: str
    place: int
    begin_us: int
    in_use: int
    added: int
    held: int
    outputs: tuple[int, ...]

    @classmethod
    def of(cls, place: int, event: Mapping[str, Any]) -> "Node":
        """The node of an event of the profile, which writes numbers as strings."""
        values = event["args"]
        return cls(
            name=str(event["name"]).removesuffix(SUFFIX),
            place=place,
            begin_us=int(event["ts"]),
            in_use=int(values["mem_bytes_requested_in_use"]),
            added=int(values["mem_requested_in_use_delta"]),
            held=int(values["mem_in_use_delta"]),
            outputs=tuple(_sizes(values.get("output_type_shape") or ())),
        )


def parse(data: bytes, origin: str = "profile") -> tuple[Trace, ...]:
    """The traces of the runs in order of time, without the weights, which are in use before the first node.

    A node belongs to the latest run that began before it. Raises `Mistake`; for broken JSON with line and column.
    """
    try:
        events = json.loads(data)
        starts = sorted(int(event["ts"]) for event in events if event.get("name") == "model_run")
        nodes = [Node.of(place, event) for place, event in enumerate(events) if _has_memory(event)]
    except json.JSONDecodeError as error:
        raise Mistake(f"{origin}:{error.lineno}:{error.colno}: not JSON: {error.msg}. Write the file again.") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Mistake(f"{origin}: not a profile of onnxruntime ({error!r}). {ADVICE}") from error
    runs: list[list[Node]] = [[] for _ in starts]
    for node in nodes:
        if number := bisect_right(starts, node.begin_us):
            runs[number - 1].append(node)
    traces = tuple(_trace(run) for run in runs if run)
    if not traces:
        raise Mistake(f"{origin}: no node has mem_bytes_requested_in_use, so there is no memory to read. {ADVICE}")
    return traces


def _has_memory(event: Mapping[str, Any]) -> bool:
    return str(event.get("name", "")).endswith(SUFFIX) and "mem_bytes_requested_in_use" in (event.get("args") or {})


def _trace(nodes: Sequence[Node]) -> Trace:
    ledger = Ledger(SOURCE, "CPUExecutionProvider")
    in_use = base = nodes[0].in_use - nodes[0].added
    guesses = 0
    for node in nodes:
        guesses += _release(ledger, in_use - (node.in_use - node.added), f"before event {node.place} ({node.name})")
        _allocate(ledger, node)
        in_use = node.in_use
    if in_use < base:
        ledger.remark("end of the run", f"{base - in_use:,} bytes less in use than before it")
    _release(ledger, sum(ledger.live().values()), "end of the run")
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
    keys = list(live) if sum(live.values()) == size else _matching(live, size)
    if keys is None:
        ledger.remark(where, f"{size:,} bytes are released; no {MAX_SET_SIZE} live buffers add up to them: left live")
        return False
    for key in keys:
        ledger.free(key, where=where)
    return bool({live[key] for key in keys} & set(ledger.live().values()))


def _matching(live: Mapping[int | str, int], size: int) -> list[int | str] | None:
    """The keys of the smallest set of buffers of `size` bytes in total; None if the search has no result."""
    candidates = [key for key, live_size in live.items() if live_size <= size]
    for count in range(1, MAX_SET_SIZE + 1):
        if math.comb(len(candidates), count) > MAX_SETS:
            break
        for keys in combinations(candidates, count):
            if sum(live[key] for key in keys) == size:
                return list(keys)
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
        for kind, dims in output.items():
            if kind in ITEM_BYTES:
                yield ITEM_BYTES[kind] * math.prod(dims)
