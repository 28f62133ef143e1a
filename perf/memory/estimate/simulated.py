"""A simulated onnxruntime session: its runs carry out the allocation plan on the arena."""

from collections.abc import Mapping
from dataclasses import dataclass

import onnx

from perf.memory.allocators.bfc import NEXT_POWER_OF_TWO, BfcArena, BfcRules
from perf.memory.allocators.device import Device
from perf.memory.estimate.call import Call, Output
from perf.memory.estimate.graph import Graph, Shape
from perf.memory.estimate.pattern import Pattern, key
from perf.memory.estimate.planner import NEW, OUTPUT, Plan
from perf.memory.estimate.scratch import steps
from perf.memory.estimate.timeline import Boundary, Lifetime, Timeline
from perf.memory.estimate.weights import Kept, Weights


class Session:
    """A model's arena, from the load of the weights over all runs.

    With `pattern` the first run with some input shapes records a memory pattern. Later runs with these shapes allocate
    one block for all its buffers; only outputs and scratch are still allocated singly. With `most` kernels take the
    most of their bounds, else the least.
    """

    def __init__(
        self,
        graph: Graph,
        plan: Plan,
        weights: Weights,
        *,
        threads: int = 1,
        rules: BfcRules = NEXT_POWER_OF_TWO,
        pattern: bool = False,
        most: bool = False,
    ) -> None:
        self.graph, self.plan, self.threads, self.pattern, self.most = graph, plan, threads, pattern, most
        self.opset = graph.opset
        self.arena = _Arena(BfcArena(Device(), rules))
        self._patterns: dict[int, Pattern] = {}
        everything = (*weights.arena, *(weights.bodies if most else ()))
        originals = {at: self.arena.bfc.reserve(kept.frees) for at, kept in enumerate(everything) if kept.frees}
        for at, kept in enumerate(everything):
            self.arena.keep(kept)
            if at in originals:
                self.arena.bfc.free(originals[at])

    def run(self, shapes: Mapping[str, Shape]) -> Timeline:
        """One run; `shapes` has all inputs and all outputs of nodes."""
        inputs = key(shapes[name] for name in self.graph.inputs)
        run = _Run(self, shapes, self._patterns.get(inputs))
        timeline = run.timeline()
        run.end()
        if self.pattern:
            self._patterns.setdefault(inputs, run.pattern)
        return timeline


@dataclass(frozen=True, kw_only=True)
class _Block:
    address: int
    bytes: int


class _Arena:
    """The arena, and the requested bytes that are in use."""

    def __init__(self, bfc: BfcArena) -> None:
        self.bfc = bfc
        self.requested = 0
        self.kept: list[_Block] = []

    def keep(self, kept: Kept) -> None:
        first = self._packing(kept.scratch, reserved=False)
        address = self.bfc.reserve(kept.bytes) if kept.reserved else self.bfc.allocate(kept.bytes)
        self.kept.append(_Block(address=address, bytes=kept.bytes))
        self.requested += kept.bytes
        for address in (*first, *self._packing(kept.reserved_scratch, reserved=True)):
            self.bfc.free(address)

    def _packing(self, size: int, *, reserved: bool) -> list[int]:
        if not size:
            return []
        return [self.bfc.reserve(size) if reserved else self.bfc.allocate(size)]

    def take(self, size: int) -> _Block | None:
        if not size:
            return None
        self.requested += size
        return _Block(address=self.bfc.allocate(size), bytes=size)

    def give(self, block: _Block | None) -> None:
        if block:
            self.bfc.free(block.address)
            self.requested -= block.bytes

    def boundary(self, node: onnx.NodeProto) -> Boundary:
        return Boundary(
            node=node.name,
            operator=node.op_type,
            in_use=self.bfc.in_use_bytes,
            requested=self.requested,
            peak=self.bfc.peak_in_use_bytes,
            held=self.bfc.held_bytes,
            next_region=self.bfc.next_region_bytes,
            least_peak=self.bfc.least_peak_bytes,
            most_peak=self.bfc.most_peak_bytes,
        )


class _Run:
    """One run; it follows the pattern `known` of an earlier run, if any, and records its own."""

    def __init__(self, session: "Session", shapes: Mapping[str, Shape], known: Pattern | None) -> None:
        self.graph, self.plan, self.arena, self.shapes = session.graph, session.plan, session.arena, shapes
        self.threads, self.opset, self.most = session.threads, session.opset, session.most
        self.known, self.pattern = known, Pattern()
        self.block = self.arena.take(known.peak) if known else None
        self.live: dict[str, tuple[_Block | None, int, int]] = {}  # tensor -> block, bytes, node that writes it
        self.ended: list[Lifetime] = []

    def timeline(self) -> Timeline:
        boundaries = [self._execute(at, node) for at, node in enumerate(self.graph.nodes)]
        last = len(self.graph.nodes) - 1
        kept = [_lifetime(name, block, size, at, last) for name, (block, size, at) in self.live.items()]
        weights = [_lifetime("weights", block, block.bytes, 0, last) for block in self.arena.kept]
        return Timeline(
            boundaries=tuple(boundaries),
            lifetimes=(*self.ended, *kept),
            weights=tuple(weights),
            regions=dict(self.arena.bfc.device.regions),
        )

    def end(self) -> None:
        for block, _, _ in self.live.values():
            self.arena.give(block)
        self.arena.give(self.block)

    def _execute(self, at: int, node: onnx.NodeProto) -> Boundary:
        scratch: list[_Block | None] = []
        call = Call(graph=self.graph, node=node, shapes=self.shapes, threads=self.threads, opset=self.opset)
        for step in steps(call):
            if isinstance(step, Output):
                self._output(at, node.output[step.index])
                continue
            size = step.most if self.most and step.most is not None else step.bytes
            block = self.arena.take(size)
            scratch.append(block)
            self.ended.append(_lifetime(node.output[0], block, size, at, at, scratch=True))
            if step.frees is not None:
                self.arena.give(scratch[step.frees])
                scratch[step.frees] = None
        for block in scratch:
            self.arena.give(block)
        boundary = self.arena.boundary(node)
        for buffer in self.plan.released[at]:
            self._release(at, buffer)
        return boundary

    def _output(self, at: int, name: str) -> None:
        kind = self.plan.kinds[name]
        if kind not in (NEW, OUTPUT):
            return
        size = self.graph.nbytes(name, self.shapes[name])
        patterned = kind == NEW and self.known is not None and self.known.holds(name, size)
        self.live[name] = (None if patterned else self.arena.take(size), size, at)
        if kind == NEW:
            self.pattern.allocate(name, size)

    def _release(self, at: int, name: str) -> None:
        block, size, first = self.live.pop(name)
        self.arena.give(block)
        self.pattern.free(name)
        self.ended.append(_lifetime(name, block, size, first, at))


def _lifetime(name: str, block: _Block | None, size: int, first: int, last: int, *, scratch: bool = False) -> Lifetime:
    address = block.address if block else None
    return Lifetime(tensor=name, bytes=size, first=first, last=last, scratch=scratch, address=address)
