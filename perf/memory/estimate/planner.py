"""onnxruntime's allocation plan: which tensor is in which buffer, and after which node a buffer is released.

The rules follow `ComputeSingleStreamReusePlan` and `GenerateDeallocationPlan` in
onnxruntime/core/framework/allocation_planner.cc, for one stream (one execution provider, sequential execution).
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import onnx

from perf.memory.estimate.graph import Graph, element_bytes, inputs_of
from perf.memory.estimate.kernels import aliased_input, inplace_inputs

NEW, REUSE, OUTPUT, EXTERNAL = "new", "reuse", "output", "external"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The buffer of every tensor.

    `kinds` maps a tensor to NEW (a buffer of its own), REUSE (the buffer of another tensor), OUTPUT (of the model,
    never shared) or EXTERNAL (input or weight). `buffers` maps a tensor to the first tensor in its buffer.
    `released[i]` names the buffers that go back to the arena after node i of the order of execution.
    """

    kinds: Mapping[str, str]
    buffers: Mapping[str, str]
    released: tuple[tuple[str, ...], ...]


def plan(graph: Graph, *, reuse: bool = True) -> Plan:
    """The plan that onnxruntime makes with a session: from the exported shapes, with a dynamic batch.

    Without `reuse` no tensor gets the freed buffer of another one, which an offset planner needs.
    """
    planner = _Planner(graph, reuse=reuse)
    for node in graph.nodes:
        planner.place(node)
    return Plan(kinds=planner.kinds, buffers=planner.buffers, released=_releases(graph, planner))


class _Planner:
    def __init__(self, graph: Graph, *, reuse: bool) -> None:
        self.graph, self.reuse = graph, reuse
        external = [*graph.inputs, *graph.weights]
        self.kinds = dict.fromkeys(external, EXTERNAL)
        self.buffers = {name: name for name in external}
        # Counts the definition and each use; once more if the caller or the session keeps the tensor.
        self.uses = Counter([*external, *graph.outputs])
        for node in graph.nodes:
            self.uses.update(name for name in [*inputs_of(node), *node.output] if name)
        # Freed buffers, the last freed one first.
        self.free: list[str] = []

    def place(self, node: onnx.NodeProto) -> None:
        for at, name in enumerate(node.output):
            if name:
                self._place(node, at, name)
        for name in [*inputs_of(node), *node.output]:
            if name:
                self._used(name)

    def _place(self, node: onnx.NodeProto, at: int, name: str) -> None:
        self.buffers[name] = name
        if name in self.graph.outputs:
            self.kinds[name] = OUTPUT
        elif source := self._reusable_input(node, at, name) or self._reusable_buffer(name):
            buffer = self.buffers[source]
            self.kinds[name], self.buffers[name] = REUSE, buffer
            self.uses[buffer] += self.uses[name]
        else:
            self.kinds[name] = NEW

    def _reusable_input(self, node: onnx.NodeProto, at: int, name: str) -> str | None:
        inputs = dict(enumerate(node.input))
        if alias := inputs.get(aliased_input(node, at)):
            return alias
        for index in inplace_inputs(node, at):
            source = inputs.get(index)
            if source and self.uses[self.buffers[source]] == 1 and self._same_size(source, name):
                return source
        return None

    def _reusable_buffer(self, name: str) -> str | None:
        """A freed buffer of the size of `name`. An output that no node reads always has a buffer of its own."""
        value = self.graph.values[name]
        if not self.reuse or value.type is None or not value.dims or self.uses[name] == 1:
            return None
        for at, buffer in enumerate(self.free):
            if self._same_size(buffer, name):
                return self.free.pop(at)
        return None

    def _same_size(self, tensor: str, other: str) -> bool:
        """Whether element sizes are equal and shapes are equal by number or name; an unknown shape equals none."""
        first, second = self.graph.values[tensor], self.graph.values[other]
        if first.type is None or second.type is None or onnx.TensorProto.STRING in (first.type, second.type):
            return False
        if first.dims is None or second.dims is None or None in first.dims:
            return False
        return element_bytes(first.type) == element_bytes(second.type) and first.dims == second.dims

    def _used(self, name: str) -> None:
        buffer = self.buffers[name]
        self.uses[buffer] -= 1
        if self.uses[buffer] == 0:
            self.free.insert(0, buffer)


def _releases(graph: Graph, planner: _Planner) -> tuple[tuple[str, ...], ...]:
    """The buffers to release after each node: those whose tensors no later node reads.

    A buffer that no node reads stays until the end of the run.
    """
    last: dict[str, int] = {}
    for at, node in enumerate(graph.nodes):
        for name in inputs_of(node):
            if name and planner.kinds[planner.buffers[name]] == NEW:
                last[planner.buffers[name]] = at
    released: list[list[str]] = [[] for _ in graph.nodes]
    for buffer, at in last.items():
        released[at].append(buffer)
    return tuple(map(tuple, released))
