"""The shape of every tensor of a model at one batch size."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import onnx
from onnx import helper

from perf.memory.estimate import session
from perf.memory.estimate.body import loop_shapes
from perf.memory.estimate.call import Call
from perf.memory.estimate.graph import Graph, Shape
from perf.memory.estimate.ort_format import Dims
from triton_batching.terminal import Mistake


@dataclass(frozen=True, kw_only=True)
class Shapes:
    """`known` maps a tensor to its shape; `unknown` names the tensors whose shape no inference finds."""

    known: Mapping[str, Shape]
    unknown: tuple[str, ...]


def inputs_at(graph: Graph, batch: int, dims: Mapping[str, int]) -> dict[str, Shape]:
    """The shape of every input at one batch size.

    `dims` has the sizes of the other dynamic dimensions, by name or `input:axis`. Raises `Mistake` if one is missing,
    if no input has one of them, and for a batch above 1 if the first dimension of all inputs is fixed.
    """
    _check(graph, dims)
    batched = batch_dim(graph, dims)
    if batched is None and batch > 1:
        raise Mistake(
            f"{graph.name}: the first dimension of every input is fixed, so there is no batch of {batch}. "
            "Give --batch 1, or export the model with a dynamic batch."
        )
    return {
        value.name: tuple(
            _size(value, axis, batch, batched, dims) for axis in range(len(value.type.tensor_type.shape.dim))
        )
        for value in _inputs(graph)
    }


def infer(graph: Graph, inputs: Mapping[str, Shape]) -> Shapes:
    """The shape of every tensor for these shapes of the inputs.

    onnxruntime infers them with constants folded; onnx's own inference, with data propagation, fills the rest.
    """
    fixed = _fixed(graph, inputs)
    shapes = _inferred(graph, fixed)
    # Each round may find the shapes that the next Loop needs.
    for _ in range(sum(node.op_type == "Loop" for node in graph.nodes)):
        if not shapes.unknown or not _declare_loops(graph, fixed, shapes):
            break
        shapes = _inferred(graph, fixed)
    return shapes


def _inferred(graph: Graph, fixed: onnx.ModelProto) -> Shapes:
    shapes = session.inferred(fixed)
    if not all(map(_whole, shapes.values())):
        shapes = {**_by_onnx(fixed), **{name: shape for name, shape in shapes.items() if _whole(shape)}}
    shapes |= {name: tuple(tensor.dims) for name, tensor in graph.weights.items()}
    known = {
        name: tuple(dim for dim in shape if isinstance(dim, int))
        for name, shape in shapes.items()
        if shape is not None and _whole(shape)
    }
    outputs = [name for node in graph.nodes for name in node.output if name]
    return Shapes(known=known, unknown=tuple(name for name in outputs if name not in known))


def _declare_loops(graph: Graph, fixed: onnx.ModelProto, shapes: Shapes) -> bool:
    """Declare the outputs of Loops whose bodies keep all shapes, which onnxruntime does not infer; whether of any."""
    found: dict[str, Shape] = {}
    for node in graph.nodes:
        unknown = any(name in shapes.unknown for name in node.output)
        if node.op_type == "Loop" and unknown and all(name in shapes.known for name in node.input if name):
            call = Call(graph=graph, node=node, shapes=shapes.known, threads=1, opset=graph.opset)
            pairs = zip(node.output, loop_shapes(call) or (), strict=False)
            found |= {name: shape for name, shape in pairs if name}
    kept = [value for value in fixed.graph.value_info if value.name not in found]
    del fixed.graph.value_info[:]
    declared = [helper.make_tensor_value_info(name, graph.values[name].type or 0, found[name]) for name in found]
    fixed.graph.value_info.extend([*kept, *declared])
    return bool(found)


def batch_dim(graph: Graph, fixed: Collection[str] = ()) -> str | None:
    """The name of the inputs' dynamic first dimension, without those in `fixed`; None if there is none.

    Raises `Mistake` if the inputs' first dimensions have different names, as only one of them can be the batch.
    """
    names = {}
    for value in _inputs(graph):
        dims = value.type.tensor_type.shape.dim
        if len(dims) and not dims[0].HasField("dim_value") and _name(value, 0) not in fixed:
            names[dims[0].dim_param] = value.name
    if len(names) > 1:
        pairs = ", ".join(f'"{dim}" of {name}' for dim, name in names.items())
        raise Mistake(
            f"{graph.name}: its inputs begin with different dynamic dimensions ({pairs}), so the batch is ambiguous. "
            "Give the sizes of all but the batch: --dims NAME=SIZE,..."
        )
    return next(iter(names), None)


def _check(graph: Graph, dims: Mapping[str, int]) -> None:
    known = {
        _name(value, axis): None
        for value in _inputs(graph)
        for axis, dim in enumerate(value.type.tensor_type.shape.dim)
        if not dim.HasField("dim_value")
    }
    for name in dims:
        if name not in known:
            raise Mistake(f"--dims {name}: no dynamic dimension of the inputs. Known: {', '.join(known) or 'none'}.")


def _fixed(graph: Graph, inputs: Mapping[str, Shape]) -> onnx.ModelProto:
    model = onnx.ModelProto()
    model.CopyFrom(graph.model)
    for value in model.graph.input:
        for dim, size in zip(value.type.tensor_type.shape.dim, inputs.get(value.name, ()), strict=False):
            dim.dim_value = size
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    return model


def _size(value: onnx.ValueInfoProto, axis: int, batch: int, batched: str | None, dims: Mapping[str, int]) -> int:
    dim, name = value.type.tensor_type.shape.dim[axis], _name(value, axis)
    if dim.HasField("dim_value"):
        return dim.dim_value
    if name in dims:
        return dims[name]
    if batched is not None and dim.dim_param == batched and (axis == 0 or dim.dim_param):
        return batch
    raise Mistake(
        f'input "{value.name}": its dimension "{name}" is dynamic, so its bytes are unknown. Give its size: '
        f"--dims {name}=SIZE"
    )


def _inputs(graph: Graph) -> list[onnx.ValueInfoProto]:
    return [value for value in graph.model.graph.input if value.name in graph.inputs]


def _name(value: onnx.ValueInfoProto, axis: int) -> str:
    dims = value.type.tensor_type.shape.dim
    return (dims[axis].dim_param if axis < len(dims) else "") or f"{value.name}:{axis}"


def _whole(shape: Dims | None) -> bool:
    return shape is not None and all(isinstance(dim, int) for dim in shape)


def _by_onnx(model: onnx.ModelProto) -> dict[str, Dims | None]:
    try:
        graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    except onnx.shape_inference.InferenceError:
        return {}
    values = [value for value in [*graph.value_info, *graph.output] if value.type.tensor_type.HasField("shape")]
    return {value.name: tuple(_number(dim) for dim in value.type.tensor_type.shape.dim) for value in values}


def _number(dim: onnx.TensorShapeProto.Dimension) -> int | None:
    return dim.dim_value if dim.HasField("dim_value") else None
