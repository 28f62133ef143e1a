"""A model as onnxruntime executes it: the nodes in order of execution, and the type and shape of every tensor."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import onnx
from onnx import AttributeProto, helper

from perf.memory.estimate import session
from perf.memory.estimate.ort_format import Value

# `sizeof(std::string)` of libstdc++; the characters of a long string are outside the arena.
STRING_BYTES = 32
ONNX_DOMAINS = ("", "ai.onnx")
HALF_BYTE_TYPES = {onnx.TensorProto.INT4, onnx.TensorProto.UINT4}

Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Graph:
    """The optimised graph of the file `name`.

    `nodes` are in order of execution, `loaded` are the same nodes in order of their index. `values` has every tensor by
    name, `weights` the constants.
    """

    name: str
    model: onnx.ModelProto
    nodes: tuple[onnx.NodeProto, ...]
    loaded: tuple[onnx.NodeProto, ...]
    values: Mapping[str, Value]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    weights: Mapping[str, onnx.TensorProto]

    @classmethod
    def of(cls, path: Path, level: str = "basic") -> "Graph":
        """Read a file as onnxruntime optimises it at `level`; raises `Mistake` if onnxruntime cannot load it."""
        optimised = session.optimised(path, level)
        layout, graph = optimised.layout, optimised.model.graph
        weights = {tensor.name: tensor for tensor in graph.initializer}
        loaded = sorted(graph.node, key=lambda node: layout.indices[first_output(node)])
        return cls(
            name=str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path),
            model=optimised.model,
            nodes=tuple(executed(loaded)),
            loaded=tuple(loaded),
            values=layout.values,
            inputs=tuple(value.name for value in graph.input if value.name not in weights),
            outputs=tuple(value.name for value in graph.output),
            weights=weights,
        )

    @property
    def opset(self) -> int:
        """The version of ONNX's own operators."""
        return next(entry.version for entry in self.model.opset_import if entry.domain in ONNX_DOMAINS)

    def element_bytes(self, name: str) -> int | None:
        """Bytes of one element of a tensor; None for other values."""
        kind = self.values[name].type
        return None if kind is None else element_bytes(kind)

    def nbytes(self, name: str, shape: Shape) -> int:
        """Bytes of a tensor of this shape."""
        kind = self.values[name].type
        if kind in HALF_BYTE_TYPES:
            return (prod(shape) + 1) // 2
        return prod(shape) * element_bytes(kind or 0)


def element_bytes(kind: int) -> int:
    """Bytes of one element of an ONNX type."""
    if kind == onnx.TensorProto.STRING:
        return STRING_BYTES
    return int(helper.tensor_dtype_to_np_dtype(kind).itemsize)


def weight_bytes(tensor: onnx.TensorProto) -> int:
    """Bytes of a constant in memory."""
    if tensor.data_type in HALF_BYTE_TYPES:
        return (prod(tensor.dims) + 1) // 2
    return prod(tensor.dims) * element_bytes(tensor.data_type)


def first_output(node: onnx.NodeProto) -> str:
    """The first used output, which identifies the node."""
    return next(name for name in node.output if name)


def inputs_of(node: onnx.NodeProto) -> list[str]:
    """The inputs of a node and of its subgraphs; '' for an absent optional input."""
    return [*node.input, *(name for graph in subgraphs(node) for name in outer_names(graph))]


def subgraphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """The branches or bodies of If, Loop and Scan."""
    return [attribute.g for attribute in node.attribute if attribute.type == AttributeProto.GRAPH]


def outer_names(graph: onnx.GraphProto) -> list[str]:
    """What a branch or body reads from outside, bodies within it included."""
    own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    own |= {name for node in graph.node for name in node.output}
    taken = dict.fromkeys(name for node in graph.node for name in inputs_of(node))
    taken |= dict.fromkeys(value.name for value in graph.output)
    return [name for name in taken if name and name not in own]


def executed(nodes: list[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """The nodes, sorted by index, in onnxruntime's order of execution (`GraphViewer`, `Graph::ReverseDFSFrom`).

    The order is depth first from the nodes whose outputs no node reads, the highest index first. A node comes after all
    nodes that it reads from.
    """
    maker = {name: at for at, node in enumerate(nodes) for name in node.output if name}
    sources = [sorted({maker[name] for name in inputs_of(node) if name in maker}) for node in nodes]
    read = {source for node_sources in sources for source in node_sources}
    stack = [(at, False) for at in range(len(nodes)) if at not in read]
    visited: set[int] = set()
    while stack:
        at, done = stack.pop()
        if done:
            yield nodes[at]
        elif at not in visited:
            visited.add(at)
            stack.append((at, True))
            stack.extend((source, False) for source in sources[at] if source not in visited)
