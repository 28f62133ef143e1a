"""The memory of a model at one batch size, under onnxruntime and under an offset plan."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from perf.memory import greedy
from perf.memory.allocators.bfc import NEXT_POWER_OF_TWO, BfcRules
from perf.memory.allocators.device import rounded
from perf.memory.estimate.body import most_bytes
from perf.memory.estimate.bound import Most, largest
from perf.memory.estimate.call import Call
from perf.memory.estimate.checked import bounded, counts, is_bounded, unchecked
from perf.memory.estimate.graph import Graph, Shape
from perf.memory.estimate.orders import Orders, orders
from perf.memory.estimate.ort_format import Value
from perf.memory.estimate.planner import Plan, plan
from perf.memory.estimate.shapes import Shapes, infer, inputs_at
from perf.memory.estimate.simulated import Session
from perf.memory.estimate.timeline import Boundary, Lifetime, Timeline
from perf.memory.estimate.weights import Weights, weights
from perf.memory.greedy import Buffer, peak_bytes
from triton_batching.terminal import Failure

# The arena's alignment, which the offset plan keeps.
STEP_BYTES = 256
MAX_NAMED = 5


@dataclass(frozen=True, kw_only=True)
class LiveTensor:
    """A tensor that is live at the peak, or a kernel's scratch, named after the kernel's output."""

    tensor: str
    bytes: int
    scratch: bool


@dataclass(frozen=True, kw_only=True)
class BatchMemory:
    """Bytes at batch size `batch`, in a fresh session whose arena has stopped growing.

    `weights`: constants and packed weights; the same for all batch sizes.
    `activations_peak`: the most bytes in use at one time without the weights; whole chunks, with scratch and outputs.
    `arena_held`: the bytes that the arena took from the system for the activations.
    `lower_bound`: the most bytes live at one time, with the aliases and in-place writes that the kernels allow.
    `packed`: the height of an offset plan of the same tensors (greedy by size).
    `peak_node`: the operator and name of the node that runs at the peak of the first run.
    `live`: the tensors that are live then, the largest first.
    `most`: the upper bounds; None if kernels, shapes in a body or some orders of the nodes are unknown. If figures are
    not exact, the others are the least.
    """

    batch: int
    weights: int
    activations_peak: int
    arena_held: int
    lower_bound: int
    packed: int
    peak_node: str
    live: tuple[LiveTensor, ...]
    most: Most | None

    @property
    def held(self) -> int:
        """Bytes that the process holds for one instance of the model; the least if that is not exact."""
        return self.weights + self.arena_held

    @property
    def held_most(self) -> int | None:
        """The most bytes that it holds; None if unknown."""
        return self.most.weights + self.most.arena_held if self.most else None


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model and its session: `threads` of its intra-op pool, memory `pattern`, growth `rules` of its arena."""

    graph: Graph
    plan: Plan
    weights: Weights
    threads: int = 1
    pattern: bool = False
    rules: BfcRules = NEXT_POWER_OF_TWO

    @classmethod
    def of(
        cls,
        path: Path,
        *,
        level: str = "basic",
        threads: int = 1,
        pattern: bool = False,
        rules: BfcRules = NEXT_POWER_OF_TWO,
    ) -> "Model":
        """Read an ONNX file; raises `Mistake` if onnxruntime cannot load it."""
        graph = Graph.of(path, level)
        return cls(graph=graph, plan=plan(graph), weights=weights(graph), threads=threads, pattern=pattern, rules=rules)

    @classmethod
    def as_served(cls, path: Path) -> "Model":
        """A model with the defaults of onnxruntime and Triton; raises like `of`."""
        return cls.of(path, level="all", pattern=True)

    @cached_property
    def orders(self) -> tuple["Model", ...]:
        """This model in several orders of execution, if its order differs from session to session; itself first."""
        others = (replace(self, graph=graph, plan=plan(graph)) for graph in self._orders.graphs[1:])
        return (self, *others)

    @property
    def all_orders(self) -> bool:
        """Whether a session has one of `orders`; else these are some of many, and there is no upper bound."""
        return self._orders.complete

    @property
    def is_exact(self) -> bool:
        """Whether all figures are exact."""
        return self.all_orders and len(self.orders) == 1 and not self.bounded and not self.unchecked

    @cached_property
    def _orders(self) -> Orders:
        return orders(self.graph)

    @property
    def bounded(self) -> dict[str, int]:
        """The number of nodes by operator of whose memory only a bound is known, if their bodies have known shapes."""
        return bounded(self.graph)

    @property
    def unchecked(self) -> dict[str, int]:
        """The number of nodes by operator with unknown scratch memory; with any, all figures are lower estimates."""
        return unchecked(self.graph)

    def unbounded(self, shapes: Shapes) -> dict[str, int]:
        """The nodes of `bounded` without a bound for these shapes, as the shapes in their bodies depend on values."""
        calls = (
            Call(graph=self.graph, node=node, shapes=shapes.known, threads=self.threads, opset=self.graph.opset)
            for node in self.graph.nodes
            if is_bounded(node)
        )
        return counts(call.node for call in calls if most_bytes(call) is None)

    def inputs(self, batch: int, dims: Mapping[str, int]) -> dict[str, Shape]:
        """The shapes of the inputs at one batch size; raises `Mistake` like `inputs_at`."""
        return inputs_at(self.graph, batch, dims)

    def runs(self, inputs: Sequence[Mapping[str, Shape]], *, most: bool = False) -> list[Timeline]:
        """Simulated runs of one session, one per item of `inputs`; raises like `shapes`.

        With `most` all kernels take the most of their bounds, else the least. Those of `unbounded` take the least.
        """
        session = self._session(self.graph, self.plan, most=most)
        return [session.run(self.shapes(shapes).known) for shapes in inputs]

    def held_after(self, sizes: Sequence[int], dims: Mapping[str, int]) -> int:
        """Bytes held, weights included, after one session has run each of these batch sizes twice in turn.

        The least if the estimate is not exact.
        """
        return min(order._held_after(sizes, dims) for order in self.orders)

    def most_after(self, sizes: Sequence[int], dims: Mapping[str, int]) -> int | None:
        """The most bytes of `held_after`; None if unknown."""
        most = [order._most_after(sizes, dims) for order in self.orders]
        return None if None in most or not self.all_orders else max(size for size in most if size is not None)

    def at(self, batch: int, dims: Mapping[str, int]) -> BatchMemory:
        """The memory at one batch size; raises like `inputs` and `shapes`."""
        shapes = self.shapes(self.inputs(batch, dims))
        first, *others = (order._at(batch, shapes) for order in self.orders)
        every = [first, *others]
        return replace(
            first,
            activations_peak=min(memory.activations_peak for memory in every),
            arena_held=min(memory.arena_held for memory in every),
            lower_bound=min(memory.lower_bound for memory in every),
            most=largest([memory.most for memory in every]) if self.all_orders else None,
        )

    def _held_after(self, sizes: Sequence[int], dims: Mapping[str, int]) -> int:
        runs = self.runs([self.inputs(size, dims) for size in [*sizes, *sizes]])
        return runs[-1].boundaries[-1].held + self.weights.bytes - self._in_arena

    def _most_after(self, sizes: Sequence[int], dims: Mapping[str, int]) -> int | None:
        if self.unchecked or any(self.unbounded(self.shapes(self.inputs(size, dims))) for size in sizes):
            return None
        if not self.bounded:
            return self._held_after(sizes, dims)
        last = self.runs([self.inputs(size, dims) for size in [*sizes, *sizes]], most=True)[-1].boundaries[-1]
        return last.held + last.next_region + self.weights.outside

    def _at(self, batch: int, shapes: Shapes) -> BatchMemory:
        first, *later = self._settled(shapes)
        last = (later or [first])[-1].boundaries[-1]
        node = self.graph.nodes[first.peak_node]
        buffers = self.buffers(shapes)
        return BatchMemory(
            batch=batch,
            weights=self.weights.bytes,
            activations_peak=(last.least_peak if self.bounded or self.unchecked else last.peak) - self._in_arena,
            arena_held=last.held - self._in_arena,
            lower_bound=peak_bytes(buffers),
            packed=greedy.plan(buffers).height,
            peak_node=f"{node.op_type} {node.name}".strip(),
            live=tuple(self._live(first)),
            most=self._most(shapes, last),
        )

    @property
    def _in_arena(self) -> int:
        return sum(kept.bytes for kept in self.weights.arena)

    def _settled(self, shapes: Shapes, *, most: bool = False) -> list[Timeline]:
        """Runs until the arena stops growing: the second is the first that follows the memory pattern."""
        session = self._session(self.graph, self.plan, most=most)
        return [session.run(shapes.known) for _ in range(1 + self.pattern)]

    def _most(self, shapes: Shapes, exact: Boundary) -> Most | None:
        """The upper bounds. What a bound leaves open can make the arena take one region more."""
        if self.unchecked or self.unbounded(shapes):
            return None
        last = self._settled(shapes, most=True)[-1].boundaries[-1] if self.bounded else exact
        more = last.next_region if self.bounded else 0
        kept = self._in_arena + (sum(kept.bytes for kept in self.weights.bodies) if self.bounded else 0)
        return Most(
            weights=self.weights.most_bytes,
            activations_peak=(last.most_peak if self.bounded else last.peak) - kept,
            arena_held=last.held + more - kept,
        )

    def least_bytes(self, inputs: Mapping[str, Shape]) -> int:
        """Bytes that one instance needs for these shapes, whatever the allocator: weights and lower bound."""
        shapes = self.shapes(inputs)
        return self.weights.bytes + min(peak_bytes(order.buffers(shapes)) for order in self.orders)

    def _session(self, graph: Graph, plan: Plan, *, most: bool = False) -> Session:
        return Session(
            graph, plan, self.weights, threads=self.threads, rules=self.rules, pattern=self.pattern, most=most
        )

    def shapes(self, inputs: Mapping[str, Shape]) -> Shapes:
        """The shape of every tensor; raises `Failure` if shapes depend on values of the input."""
        shapes = infer(self.graph, inputs)
        if shapes.unknown:
            maker = {name: node.op_type for node in self.graph.nodes for name in node.output}
            names = ", ".join(f"{name} of {maker[name]}" for name in shapes.unknown[:MAX_NAMED])
            more = ", ..." if len(shapes.unknown) > MAX_NAMED else ""
            what = (
                "on how often a Loop runs or on shapes that its body changes"
                if maker[shapes.unknown[0]] == "Loop"
                else "on the values of the input"
            )
            raise Failure(
                f"{self.graph.name}: the shapes of {len(shapes.unknown)} tensors depend {what} "
                f"({names}{more}), so their bytes are unknown before a run. Measure this model instead."
            )
        return shapes

    def first_run(self, shapes: Shapes) -> Timeline:
        """The first run of a session, in which each buffer still has an address of its own."""
        return self._session(self.graph, self.plan).run(shapes.known)

    def buffers(self, shapes: Shapes) -> list[Buffer]:
        """The input of an offset planner: a buffer per item of `lifetimes`.

        Time i is the run of node i. A buffer that node i writes is live together with all that the node reads.
        """
        return [
            Buffer(id=number, lower=life.first, upper=life.last + 1, size=rounded(life.bytes, STEP_BYTES))
            for number, life in enumerate(self.lifetimes(shapes))
        ]

    def lifetimes(self, shapes: Shapes) -> tuple[Lifetime, ...]:
        """Those of each tensor and scratch, without reuse of freed buffers."""
        values = {
            name: Value(type=value.type, dims=shapes.known.get(name)) for name, value in self.graph.values.items()
        }
        graph = replace(self.graph, values=values)
        return self._session(graph, plan(graph, reuse=False)).run(shapes.known).lifetimes

    def _live(self, run: Timeline) -> Iterator[LiveTensor]:
        live = [life for life in run.lifetimes if life.first <= run.peak_node <= life.last]
        for life in sorted(live, key=lambda life: -life.bytes):
            held = next(one for one in reversed(self.tensors(life)) if one.first <= run.peak_node)
            yield LiveTensor(tensor=held.tensor, bytes=life.bytes, scratch=life.scratch)

    def tensors(self, buffer: Lifetime) -> list[Lifetime]:
        """The tensors in a buffer of a run, each until the next one is written to it; scratch is itself."""
        if buffer.scratch:
            return [buffer]
        written = [
            (at, name)
            for at, node in enumerate(self.graph.nodes[: buffer.last + 1])
            for name in node.output
            if name and self.plan.buffers[name] == buffer.tensor
        ]
        ends = [at - 1 for at, _ in written[1:]] + [buffer.last]
        return [
            replace(buffer, tensor=name, first=at, last=end)
            for (at, name), end in zip(written, ends, strict=True)
            if at <= end
        ]
