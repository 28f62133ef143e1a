"""What a model holds at one batch size, and what a planner of offsets would make of it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from perf.memory.allocators.bfc import NEXT_POWER_OF_TWO, BfcRules
from perf.memory.estimate.checked import unchecked
from perf.memory.estimate.graph import Graph, Shape
from perf.memory.estimate.ort_format import Value
from perf.memory.estimate.planner import Plan, plan
from perf.memory.estimate.shapes import Shapes, infer, inputs_at
from perf.memory.estimate.simulated import Session
from perf.memory.estimate.timeline import Lifetime, Timeline
from perf.memory.estimate.weights import Weights, weights
from perf.memory.offline import greedy
from perf.memory.offline.buffer import Buffer, load
from triton_batching.terminal import Failure

# The arena gives out multiples of this; the offsets keep the same alignment.
STEP_BYTES = 256
NAMED = 5


@dataclass(frozen=True, kw_only=True)
class Tenant:
    """A tensor that is live at the peak, or a kernel's scratch, which has the name of what the kernel makes."""

    tensor: str
    bytes: int
    scratch: bool


@dataclass(frozen=True, kw_only=True)
class BatchMemory:
    """Bytes at batch size `batch`, on a fresh arena, once the arena has stopped growing.

    `weights`: constants and packed weights, whatever the batch. `activations_peak`: most in use at one time beyond the
    weights, whole chunks, scratch and outputs included. `arena_held`: what the arena took from the system for it.
    `lower_bound`: what is live at one time at least, with the aliases and in-place writes that the kernels allow;
    `packed`: the height of an offset plan of the same tensors (greedy by size).
    `tenants`: who lives at the peak of the first run, the largest first; `peak_node`: the operator and name of the node
    that runs then.
    """

    batch: int
    weights: int
    activations_peak: int
    arena_held: int
    lower_bound: int
    packed: int
    peak_node: str
    tenants: tuple[Tenant, ...]

    @property
    def held(self) -> int:
        """All that the process holds for one instance of the model."""
        return self.weights + self.arena_held


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model read for estimates. `threads` are those of the session's intra-op pool, `pattern` its memory pattern."""

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
        """Read an ONNX file; raises `Mistake` where onnxruntime cannot."""
        graph = Graph.of(path, level)
        return cls(graph=graph, plan=plan(graph), weights=weights(graph), threads=threads, pattern=pattern, rules=rules)

    @property
    def unchecked(self) -> dict[str, int]:
        """Operator -> nodes, where kernels are not known to the byte, so that the figures are a lower estimate."""
        return unchecked(self.graph)

    def inputs(self, batch: int, dims: Mapping[str, int]) -> dict[str, Shape]:
        """The inputs' shapes at one batch size; raises `Mistake` as `inputs_at` does."""
        return inputs_at(self.graph, batch, dims)

    def runs(self, inputs: Sequence[Mapping[str, Shape]]) -> list[Timeline]:
        """The simulated runs of inputs of these shapes, one after the other in one session; raises as `shapes` does."""
        session = self._session(self.graph, self.plan)
        return [session.run(self.shapes(one).known) for one in inputs]

    def held_after(self, sizes: Sequence[int], dims: Mapping[str, int]) -> int:
        """Bytes held, weights and all, once one session ran each of these batch sizes twice, in turn."""
        runs = self.runs([self.inputs(size, dims) for size in [*sizes, *sizes]])
        return runs[-1].boundaries[-1].held + self.weights.outside

    def at(self, batch: int, dims: Mapping[str, int]) -> BatchMemory:
        """The memory of one batch size; raises as `inputs` and `shapes` do."""
        shapes = self.shapes(self.inputs(batch, dims))
        session = self._session(self.graph, self.plan)
        # The second run of some shapes is the first that follows their pattern; all later ones are like it.
        first, *later = [session.run(shapes.known) for _ in range(1 + self.pattern)]
        last = (later or [first])[-1].boundaries[-1]
        in_arena = sum(kept.bytes for kept in self.weights.arena)
        node = self.graph.nodes[first.peak_node]
        buffers = self.apart(shapes)
        return BatchMemory(
            batch=batch,
            weights=self.weights.bytes,
            activations_peak=last.peak - in_arena,
            arena_held=last.held - in_arena,
            lower_bound=load(buffers),
            packed=greedy.plan(buffers).height,
            peak_node=f"{node.op_type} {node.name}".strip(),
            tenants=tuple(self._tenants(first)),
        )

    def _session(self, graph: Graph, plan: Plan) -> Session:
        return Session(graph, plan, self.weights, threads=self.threads, rules=self.rules, pattern=self.pattern)

    def shapes(self, inputs: Mapping[str, Shape]) -> Shapes:
        """Every tensor's shape; raises `Failure` naming those that nobody can know without a run."""
        shapes = infer(self.graph, inputs)
        if shapes.unknown:
            maker = {name: node.op_type for node in self.graph.nodes for name in node.output}
            named = ", ".join(f"{name} of {maker[name]}" for name in shapes.unknown[:NAMED])
            raise Failure(
                f"{self.graph.name}: the shapes of {len(shapes.unknown)} tensors follow from the values of "
                f"the input, not from its shape ({named}{', ...' if len(shapes.unknown) > NAMED else ''}), so their "
                "bytes are unknown before a run. Measure this model instead."
            )
        return shapes

    def apart(self, shapes: Shapes) -> list[Buffer]:
        """The tensors with real shapes, none in the freed buffer of another, and the scratch: as offsets are planned.

        Time i is the run of node i. A buffer that node i makes is live with all that the node reads.
        """
        values = {name: Value(type=one.type, dims=shapes.known.get(name)) for name, one in self.graph.values.items()}
        graph = replace(self.graph, values=values)
        run = self._session(graph, plan(graph, reuse=False)).run(shapes.known)
        return [
            Buffer(id=at, lower=one.first, upper=one.last + 1, size=-(-one.bytes // STEP_BYTES) * STEP_BYTES)
            for at, one in enumerate(run.lifetimes)
        ]

    def _tenants(self, run: Timeline) -> Iterator[Tenant]:
        live = [one for one in run.lifetimes if one.first <= run.peak_node <= one.last]
        for one in sorted(live, key=lambda one: -one.bytes):
            name = one.tensor if one.scratch else self._tenant(one, run.peak_node)
            yield Tenant(tensor=name, bytes=one.bytes, scratch=one.scratch)

    def _tenant(self, buffer: Lifetime, at: int) -> str:
        """The tensor that was last put into the buffer."""
        made = [name for node in self.graph.nodes[: at + 1] for name in node.output if name]
        return next(name for name in reversed(made) if self.plan.buffers[name] == buffer.tensor)


def batches(text: str) -> Sequence[int]:
    """The batch sizes that `1..32` (powers of two, and the end) or `1,3,24` names; raises `ValueError`."""
    first, dots, last = text.partition("..")
    if not dots:
        sizes = [int(one) for one in text.split(",")]
    else:
        low, high = int(first), int(last)
        sizes = sorted({size for size in (2**power for power in range(high.bit_length())) if size >= low} | {low, high})
    if min(sizes) < 1 or (dots and int(first) > int(last)):
        raise ValueError(text)
    return sizes
