"""What an estimate does not know, in words: unknown kernels, values, onnxruntime's version, the processor."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

import onnx
import onnxruntime

from export.graph.onnx_graph import attribute
from perf.memory.estimate import processor, quantized
from perf.memory.estimate.batch_memory import BatchMemory, Model
from perf.memory.estimate.weights import weights

# The version that all rules were compared with.
VERSION = "1.31"
MIB = 2**20
BLOCKED = "com.microsoft.nchwc"


def note(model: Model, batch: int, dims: Mapping[str, int]) -> str:
    """What the figures leave open; empty if they are exact on every processor. `batch` and `dims` as of `Model.at`."""
    return " ".join(_sentences(model, batch, dims))


def _sentences(model: Model, batch: int, dims: Mapping[str, int]) -> Iterator[str]:
    if model.unchecked:
        kernels = _listed(model.unchecked)
        yield f"The figures are lower estimates: the scratch memory of these kernels is unknown: {kernels}."
    unbounded = model.unbounded(model.shapes(model.inputs(batch, dims)))
    if unbounded:
        inside = _listed(unbounded)
        yield f"The figures are lower estimates: the shapes in the bodies of these depend on values: {inside}."
    if bounded := Counter(model.bounded) - Counter(unbounded):
        yield f"What these take depends on values, so the figures are the least and the most: {_listed(bounded)}."
    if len(model.orders) > 1 or not model.all_orders:
        count = len(model.orders)
        kept = f"{count} orders" if count > 1 else "one order"
        yield (
            "onnxruntime runs these nodes in an order that differs from session to session; the figures are those of "
            f"{kept}, {'which are all' if model.all_orders else 'and others can take more or less'}."
        )
    if not onnxruntime.__version__.startswith(f"{VERSION}."):
        yield (
            f"The rules are those of onnxruntime {VERSION}; with {onnxruntime.__version__}, which is installed, the "
            "figures can differ."
        )
    others = [memory.held for memory in _elsewhere(model, batch, dims)] if any(map(_varies, model.graph.nodes)) else []
    if len(set(others)) > 1:
        yield (
            f"On other x86-64 processors batch {batch} holds {min(others) / MIB:,.2f} to {max(others) / MIB:,.2f} MiB, "
            "as some kernels pack their weights or take scratch memory by processor."
        )
    if any(node.domain == BLOCKED for node in model.graph.nodes):
        yield "The blocked layout of the convolutions is that of this processor: blocks of 16 with AVX-512, else of 8."


def _varies(node: onnx.NodeProto) -> bool:
    """Whether the memory of its kernel can depend on the processor."""
    grouped = node.op_type in ("Conv", "FusedConv") and attribute(node, "group", 1) > 1
    return grouped or node.op_type in quantized.KERNELS


def _elsewhere(model: Model, batch: int, dims: Mapping[str, int]) -> Iterator[BatchMemory]:
    for kind in processor.KINDS:
        with processor.like(kind):
            yield replace(model, weights=weights(model.graph)).at(batch, dims)


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {operator}" for operator, count in sorted(counts.items()))
