"""The call of one node, and the allocation steps of its kernel."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import onnx

from export.graph.onnx_graph import attribute
from perf.memory.estimate.graph import Graph, Shape


@dataclass(frozen=True, kw_only=True)
class Output:
    """The kernel requests its output `index`; the plan says which buffer that is."""

    index: int


@dataclass(frozen=True, kw_only=True)
class Scratch:
    """The kernel allocates `bytes` of scratch, then frees the scratch of its step `frees`; the rest at its end.

    If only a bound is known, `bytes` is the least and `most` the most.
    """

    bytes: int
    frees: int | None = None
    most: int | None = None


Step = Output | Scratch


@dataclass(frozen=True, kw_only=True)
class Call:
    """A node with the shapes of one batch size; `threads` is the size of the session's intra-op pool."""

    graph: Graph
    node: onnx.NodeProto
    shapes: Mapping[str, Shape]
    threads: int
    opset: int

    def outputs(self) -> list["Step"]:
        """A step for each output, in order."""
        return [Output(index=at) for at, name in enumerate(self.node.output) if name]

    def has(self, at: int) -> bool:
        """Whether input `at` is present."""
        return at < len(self.node.input) and bool(self.node.input[at])

    def gives(self, at: int) -> bool:
        """Whether output `at` is used."""
        return at < len(self.node.output) and bool(self.node.output[at])

    def shape(self, at: int) -> Shape:
        """The shape of input `at`."""
        return self.shapes[self.node.input[at]]

    def size(self, at: int) -> int:
        """Bytes of an element of input `at`."""
        return self.graph.element_bytes(self.node.input[at]) or 0

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute's value."""
        return attribute(self.node, name, default)
