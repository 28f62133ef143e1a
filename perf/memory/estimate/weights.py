"""The memory of constants: small ones in the arena, large ones outside it, and the copies that kernels pack."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

import onnx

from export.graph.onnx_graph import attribute
from perf.memory.estimate import quantized
from perf.memory.estimate.graph import ONNX_DOMAINS, Graph, inputs_of, subgraphs, weight_bytes

FLOAT = 4
# A larger constant stays outside the arena, in the memory it was loaded to (`kSmallTensorExternalDataThreshold`).
SMALL_BYTES = 127
# MLAS packs a matrix in groups of 16 columns; the size is a multiple of a cache line.
COLUMNS = 16
MICROSOFT = "com.microsoft"
LINE_BYTES = 64


@dataclass(frozen=True, kw_only=True)
class Kept:
    """A constant or packed weight in the arena for the life of the session.

    It is `reserved` outside the arena's bins (`IAllocator::Reserve`), else a chunk. `scratch` are the bytes of a chunk
    that is allocated for the packing and then freed, `reserved_scratch` of one outside the bins. `frees` are the bytes
    of the small constant in the arena that it takes the place of.
    """

    bytes: int
    reserved: bool = True
    scratch: int = 0
    reserved_scratch: int = 0
    frees: int = 0


@dataclass(frozen=True, kw_only=True)
class Weights:
    """The memory of constants: in the `arena`, in order of allocation, and the bytes `outside`.

    `bodies` is what constants in the bodies of If, Loop and Scan take at most, in the arena or outside; their copies
    included. They take `bodies_least` at least.
    """

    arena: tuple[Kept, ...]
    outside: int
    bodies: tuple[Kept, ...] = ()
    bodies_least: int = 0

    @property
    def bytes(self) -> int:
        """All bytes; the least if there are constants in bodies."""
        return sum(kept.bytes for kept in self.arena) + self.outside + self.bodies_least

    @property
    def most_bytes(self) -> int:
        """The most bytes."""
        return self.bytes - self.bodies_least + sum(kept.bytes for kept in self.bodies)


def weights(graph: Graph) -> Weights:
    """The memory of a graph's constants; a constant that a kernel packed is freed unless another node reads it."""
    copies_of = [one for node in graph.loaded for one in _packed(graph, node).items()]
    read = {name for node in graph.nodes for name in inputs_of(node) if name not in _packed(graph, node)}
    sizes = [weight_bytes(tensor) for name, tensor in graph.weights.items() if name in read or name in graph.outputs]
    last = {name: at for at, (name, _) in enumerate(copies_of)}
    packed = [
        kept if last[name] != at or name in read or name in graph.outputs else replace(kept, frees=_small(graph, name))
        for at, (name, kept) in enumerate(copies_of)
    ]
    small = [Kept(bytes=size) for size in sizes if 0 < size <= SMALL_BYTES]
    plain, copies = _in_bodies(graph, graph.loaded)
    return Weights(
        arena=(*small, *packed),
        outside=sum(size for size in sizes if size > SMALL_BYTES),
        bodies=tuple(Kept(bytes=size, reserved=False) for size in (*plain, *copies) if size),
        bodies_least=sum(plain),
    )


def _small(graph: Graph, name: str) -> int:
    """Bytes of a constant that is in the arena until a kernel has packed it; 0 for one outside."""
    size = weight_bytes(graph.weights[name])
    return size if size <= SMALL_BYTES else 0


def _in_bodies(graph: Graph, nodes: Iterable[onnx.NodeProto]) -> tuple[list[int], list[int]]:
    """Bytes of each constant in the bodies of these nodes, and of each copy that kernels may pack of them."""
    plain: list[int] = []
    copies: list[int] = []
    for body in (body for node in nodes for body in subgraphs(node)):
        own = {tensor.name: tensor for tensor in body.initializer}
        inside = replace(graph, weights={**graph.weights, **own})
        packed = [kept for node in body.node for kept in _packed(inside, node).values()]
        deeper = _in_bodies(inside, body.node)
        plain += [*map(weight_bytes, body.initializer), *deeper[0]]
        copies += [*(kept.bytes + kept.scratch + kept.reserved_scratch for kept in packed), *deeper[1]]
    return plain, copies


def _packed(graph: Graph, node: onnx.NodeProto) -> Mapping[str, Kept]:
    """The constants of a node that its kernel packs, by name, with the packed copies."""
    if node.domain not in (*ONNX_DOMAINS, MICROSOFT):
        return {}
    constants = {at: graph.weights[name] for at, name in enumerate(node.input) if name in graph.weights}
    floats = {at: tensor for at, tensor in constants.items() if tensor.data_type == onnx.TensorProto.FLOAT}
    # Only ConvTranspose packs into an ordinary chunk.
    reserved = node.op_type != "ConvTranspose"
    sizes = _packed_bytes(node, {at: tuple(tensor.dims) for at, tensor in floats.items()})
    kept = {node.input[at]: Kept(bytes=size, reserved=reserved) for at, size in sizes}
    return kept | {
        node.input[one.index]: Kept(
            bytes=one.bytes, reserved=not one.chunk, scratch=one.scratch, reserved_scratch=one.reserved_scratch
        )
        for one in quantized.packed(graph, node)
    }


def _packed_bytes(node: onnx.NodeProto, shapes: Mapping[int, tuple[int, ...]]) -> Iterator[tuple[int, int]]:
    kind, shape = node.op_type, shapes.get(1, ())
    if kind in ("MatMul", "Gemm", "FusedMatMul", "FusedGemm") and len(shape) == 2:
        yield 1, _matrix(*(shape if attribute(node, "transB", 0) else shape[::-1]))
    elif kind == "LSTM":
        yield from ((at, shapes[at][0] * _matrix(*shapes[at][1:])) for at in (1, 2) if at in shapes)
    elif kind == "GRU":
        yield from ((1, shape[0] * _matrix(*shape[1:])) for _ in [0] if shape)
        if 2 in shapes:
            sides, _, hidden = shapes[2]
            yield 2, sides * (_matrix(2 * hidden, hidden) + _matrix(hidden, hidden))
    elif kind == "ConvTranspose" and len(shape) > 2:
        groups = attribute(node, "group", 1)
        if shape[0] // groups > 1 and prod(shape[1:]) > 1:
            yield 1, FLOAT * prod(shape)


def _matrix(columns: int, rows: int) -> int:
    """`MlasGemmPackBSize` in bytes."""
    size = -(-columns // COLUMNS) * COLUMNS * rows * FLOAT
    return -(-size // LINE_BYTES) * LINE_BYTES
