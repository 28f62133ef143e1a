"""The memory that the branches and bodies of If, Loop and Scan take at most.

A body is estimated as a model of its own whose inputs are what it reads from outside. Which branch runs, and how often
a body runs, depends on values, so this is a bound.
"""

import functools
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import onnx
from onnx import helper, numpy_helper

from export.graph.onnx_graph import attribute
from perf.memory.allocators.device import rounded
from perf.memory.estimate.call import Call, Scratch, Step
from perf.memory.estimate.graph import Shape, outer_names, subgraphs
from triton_batching.terminal import Failure, Mistake

STEP_BYTES = 256
# `M` and the condition of a Loop, which it keeps in two chunks.
LOOP_INPUTS = 2
# The arena gives a chunk whole if it is less than twice the request.
SLACK = 2


@dataclass(frozen=True, kw_only=True)
class Body:
    """One run of a body: the most bytes in use without weights, and the shape of each of its outputs.

    `peak` is None if the body has an If, Loop or Scan with a body whose shapes depend on values.
    """

    peak: int | None
    outputs: tuple[Shape, ...]
    bytes: tuple[int, ...]


def steps(call: Call) -> list[Step]:
    """The outputs, and a scratch for all that the bodies take, 0 bytes at least."""
    most = most_bytes(call)
    return [*call.outputs(), *([Scratch(bytes=0, most=most)] if most else [])]


def loop_shapes(call: Call) -> tuple[Shape, ...] | None:
    """The shape of each output of a Loop; None if its body changes a shape or if the number of runs is not constant."""
    (body,) = subgraphs(call.node)
    ran = ran_once(call, body)
    carried = [call.shape(at) for at in range(LOOP_INPUTS, len(call.node.input))]
    if ran is None or list(ran.outputs[1 : 1 + len(carried)]) != carried:
        return None
    scanned = ran.outputs[1 + len(carried) :]
    trips = _trips(call, body)
    if scanned and trips is None:
        return None
    return (*carried, *((trips or 0, *shape) for shape in scanned))


def ran_once(call: Call, body: onnx.GraphProto) -> Body | None:
    """One run of this body of a node; None if its memory is unknown."""
    model = _standalone(call, body)
    return None if model is None else _ran(model.SerializeToString(), call.threads)


def most_bytes(call: Call) -> int | None:
    """The most that the bodies of a node take; None if shapes in one of them depend on values."""
    ran = [ran_once(call, body) for body in subgraphs(call.node)]
    known = [(body, body.peak) for body in ran if body and body.peak is not None]
    if len(known) < len(ran):
        return None
    if call.node.op_type == "If":
        return SLACK * max(peak for _, peak in known)
    ((body, peak),) = known
    made = sum(call.graph.nbytes(name, call.shapes[name]) + STEP_BYTES for name in call.node.output if name)
    # The outputs of one run are the inputs of the next, and a Loop joins the copies of what it collects at its end.
    kept = sum(rounded(size, STEP_BYTES) for size in body.bytes)
    return SLACK * (peak + kept + made * (1 + _copies(call)) + LOOP_INPUTS * STEP_BYTES)


def _copies(call: Call) -> int:
    """How often the arena's rounding can enlarge the collected pieces: small ones take a whole step each."""
    sizes = [call.graph.nbytes(name, call.shapes[name]) for name in call.node.output if name]
    pieces = sum(call.shapes[name][0] if call.shapes[name] else 1 for name in call.node.output if name)
    return 1 + pieces * STEP_BYTES // max(1, sum(sizes))


def _trips(call: Call, body: onnx.GraphProto) -> int | None:
    """How often a Loop runs; None unless `M` is constant and the body passes the condition on."""
    limit = call.graph.weights.get(call.node.input[0]) if call.has(0) else None
    condition = body.output[0].name
    makers = {name: node for node in body.node for name in node.output}
    maker = makers.get(condition)
    passed = maker is not None and maker.op_type == "Identity" and maker.input[0] == body.input[1].name
    if limit is None or limit.external_data or call.has(1) or not passed:
        return None
    return int(numpy_helper.to_array(limit).item())


def _standalone(call: Call, body: onnx.GraphProto) -> onnx.ModelProto | None:
    graph = onnx.GraphProto()
    graph.CopyFrom(body)
    shapes = _own_inputs(call, body)
    if shapes is None:
        return None
    for value, shape in zip(graph.input, shapes, strict=True):
        value.CopyFrom(helper.make_tensor_value_info(value.name, value.type.tensor_type.elem_type, shape))
    for name in outer_names(body):
        if not _take(call, name, graph):
            return None
    for tensor in [tensor for tensor in graph.initializer if tensor.external_data]:
        graph.initializer.remove(tensor)
        graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    return helper.make_model(graph, opset_imports=call.graph.model.opset_import, ir_version=call.graph.model.ir_version)


def _take(call: Call, name: str, graph: onnx.GraphProto) -> bool:
    """Add what the body reads from outside to its graph; whether its type and shape are known."""
    weight = call.graph.weights.get(name)
    if weight is not None and not weight.external_data:
        graph.initializer.append(weight)
        return True
    kind = call.graph.values[name].type
    shape = tuple(weight.dims) if weight is not None else call.shapes.get(name)
    if kind is None or shape is None:
        return False
    graph.input.append(helper.make_tensor_value_info(name, kind, shape))
    return True


def _own_inputs(call: Call, body: onnx.GraphProto) -> list[Shape] | None:
    known: Mapping[str, Shape] = call.shapes
    if call.node.op_type == "If":
        return []
    names = list(call.node.input)
    if call.node.op_type == "Loop":
        carried = [known.get(name) for name in names[LOOP_INPUTS:]]
        return None if None in carried else [(), (), *(shape for shape in carried if shape is not None)]
    given = [known.get(name) for name in names]
    if None in given:
        return None
    shapes = [shape for shape in given if shape is not None]
    scanned = attribute(call.node, "num_scan_inputs")
    axes = attribute(call.node, "scan_input_axes", [0] * scanned)
    first = len(shapes) - scanned
    return shapes[:first] + [_without(shape, axis) for shape, axis in zip(shapes[first:], axes, strict=True)]


def _without(shape: Shape, axis: int) -> Shape:
    return tuple(size for at, size in enumerate(shape) if at != axis % len(shape))


@functools.lru_cache(maxsize=256)
def _ran(model: bytes, threads: int) -> Body | None:
    from perf.memory.estimate.batch_memory import Model

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "body.onnx"
        path.write_bytes(model)
        try:
            estimate = Model.of(path, level="disabled", threads=threads)
            inputs = estimate.inputs(1, {})
            found = estimate.shapes(inputs)
            (run,) = estimate.runs([inputs], most=True)
        except (Failure, Mistake):
            return None
    graph, shapes = estimate.graph, found.known
    outputs = tuple(shapes[name] for name in graph.outputs)
    in_arena = sum(kept.bytes for kept in estimate.weights.arena)
    peak = max((boundary.peak for boundary in run.boundaries), default=in_arena)
    sizes = tuple(
        prod(shape) * (graph.element_bytes(name) or 0) for name, shape in zip(graph.outputs, outputs, strict=True)
    )
    return Body(peak=None if estimate.unbounded(found) else peak - in_arena, outputs=outputs, bytes=sizes)
