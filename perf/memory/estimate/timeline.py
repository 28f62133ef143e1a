"""A plan carried out on the arena: what is in use and held after every node, as onnxruntime's profile has it."""

from collections.abc import Mapping
from dataclasses import dataclass

import onnx

from perf.memory.allocators.bfc import NEXT_POWER_OF_TWO, BfcArena, BfcRules
from perf.memory.allocators.device import Device
from perf.memory.estimate.call import Call, Output
from perf.memory.estimate.graph import Graph, Shape
from perf.memory.estimate.planner import NEW, OUTPUT, Plan
from perf.memory.estimate.scratch import steps
from perf.memory.estimate.weights import Kept, Weights


@dataclass(frozen=True, kw_only=True)
class Boundary:
    """The arena after a node ran and before its inputs are released, in bytes.

    `in_use` counts whole chunks, `requested` what was asked for, `peak` the most in use so far, also within kernels;
    `held` is what the arena has from the system. All include the reservations for weights.
    """

    node: str
    operator: str
    in_use: int
    requested: int
    peak: int
    held: int


@dataclass(frozen=True, kw_only=True)
class Lifetime:
    """A buffer: from node `first` to node `last` of the order of execution, both included; `tensor` is its first tenant.

    A kernel's scratch, `scratch` true, has the name of the node's output.
    """

    tensor: str
    bytes: int
    first: int
    last: int
    scratch: bool = False


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """A first run on a fresh arena: the boundary after each node, every buffer's lifetime, and the node of the peak."""

    boundaries: tuple[Boundary, ...]
    lifetimes: tuple[Lifetime, ...]

    @property
    def peak_node(self) -> int:
        """The node during which most bytes are in use; the first of equals."""
        peaks = [one.peak for one in self.boundaries]
        return peaks.index(max(peaks))


def simulate(
    graph: Graph,
    plan: Plan,
    shapes: Mapping[str, Shape],
    *,
    weights: Weights,
    threads: int = 1,
    rules: BfcRules = NEXT_POWER_OF_TWO,
) -> Timeline:
    """Run the plan once. `shapes` must hold every tensor made."""
    run = _Run(graph, plan, shapes, BfcArena(Device(), rules), threads)
    for kept in weights.arena:
        run.keep(kept)
    boundaries = [run.execute(at, node) for at, node in enumerate(graph.nodes)]
    return Timeline(boundaries=tuple(boundaries), lifetimes=tuple(run.lifetimes()))


class _Run:
    def __init__(
        self, graph: Graph, plan: Plan, shapes: Mapping[str, Shape], arena: BfcArena, threads: int
    ) -> None:
        self.graph, self.plan, self.shapes, self.arena, self.threads = graph, plan, shapes, arena, threads
        self.opset = next(one.version for one in graph.model.opset_import if one.domain in ("", "ai.onnx"))
        self.requested = 0
        self.held: dict[str, tuple[int, int, int]] = {}  # tensor -> address, bytes, node that made it
        self.ended: list[Lifetime] = []

    def keep(self, kept: Kept) -> None:
        self.arena.reserve(kept.bytes) if kept.reserved else self.arena.allocate(kept.bytes)
        self.requested += kept.bytes

    def execute(self, at: int, node: onnx.NodeProto) -> Boundary:
        scratch: list[tuple[int, int] | None] = []
        call = Call(graph=self.graph, node=node, shapes=self.shapes, threads=self.threads, opset=self.opset)
        for step in steps(call):
            if isinstance(step, Output):
                self._output(at, node.output[step.index])
                continue
            scratch.append(self._take(step.bytes))
            self.ended.append(
                Lifetime(tensor=node.output[0], bytes=step.bytes, first=at, last=at, scratch=True)
            )
            if step.frees is not None:
                self._give(scratch[step.frees])
                scratch[step.frees] = None
        for block in scratch:
            self._give(block)
        boundary = Boundary(
            node=node.name,
            operator=node.op_type,
            in_use=self.arena.in_use_bytes,
            requested=self.requested,
            peak=self.arena.peak_in_use_bytes,
            held=self.arena.held_bytes,
        )
        for buffer in self.plan.released[at]:
            self._release(at, buffer)
        return boundary

    def lifetimes(self) -> list[Lifetime]:
        last = len(self.graph.nodes) - 1
        kept = [Lifetime(tensor=name, bytes=size, first=at, last=last) for name, (_, size, at) in self.held.items()]
        return [*self.ended, *kept]

    def _output(self, at: int, name: str) -> None:
        if self.plan.kinds[name] not in (NEW, OUTPUT):
            return
        size = self.graph.nbytes(name, self.shapes[name])
        if block := self._take(size):
            self.held[name] = (*block, at)

    def _release(self, at: int, name: str) -> None:
        if name in self.held:
            address, size, first = self.held.pop(name)
            self._give((address, size))
            self.ended.append(Lifetime(tensor=name, bytes=size, first=first, last=at))

    def _take(self, size: int) -> tuple[int, int] | None:
        if not size:
            return None
        self.requested += size
        return self.arena.allocate(size), size

    def _give(self, block: tuple[int, int] | None) -> None:
        if block:
            self.arena.free(block[0])
            self.requested -= block[1]
