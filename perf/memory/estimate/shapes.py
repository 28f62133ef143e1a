"""The number behind every dimension of a model at one batch size."""

from collections.abc import Mapping
from dataclasses import dataclass

import onnx

from export.terminal import Mistake
from perf.memory.estimate import session
from perf.memory.estimate.graph import Graph, Shape


@dataclass(frozen=True, kw_only=True)
class Shapes:
    """`known` maps a tensor to its shape; `unknown` names those that no inference could tell, never guessed."""

    known: Mapping[str, Shape]
    unknown: tuple[str, ...]


def at_batch(graph: Graph, batch: int, dims: Mapping[str, int]) -> Shapes:
    """Fix the batch (first) dimension of every input, and the other dynamic ones by `dims`, and infer all shapes.

    onnxruntime infers, with constants folded; what it leaves open is asked of onnx's own inference with data propagation.
    Raises `Mistake` for a dynamic dimension that `dims` does not name.
    """
    fixed = _fixed(graph, batch, dims)
    shapes = session.inferred(fixed)
    if any(not _whole(shape) for shape in shapes.values()):
        shapes = {**shapes, **_by_onnx(fixed, shapes)}
    shapes |= {name: tuple(tensor.dims) for name, tensor in graph.weights.items()}
    known = {name: tuple(int(dim) for dim in shape if dim is not None) for name, shape in shapes.items() if _whole(shape)}
    made = [name for node in graph.nodes for name in node.output if name]
    return Shapes(known=known, unknown=tuple(name for name in made if name not in known))


def free_dims(graph: Graph) -> dict[str, list[str]]:
    """Each dynamic dimension behind the batch: its name, or `input:axis` without one, and the inputs that have it."""
    found: dict[str, list[str]] = {}
    batch = {_name(value, 0) for value in _inputs(graph)}
    for value in _inputs(graph):
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            name = _name(value, axis)
            if axis > 0 and not dim.HasField("dim_value") and name not in batch:
                found.setdefault(name, []).append(value.name)
    return found


def _fixed(graph: Graph, batch: int, dims: Mapping[str, int]) -> onnx.ModelProto:
    missing = {name: inputs for name, inputs in free_dims(graph).items() if name not in dims}
    if missing:
        name, inputs = next(iter(missing.items()))
        raise Mistake(
            f'input "{inputs[0]}": its dimension "{name}" is dynamic, so its bytes cannot be known. Say how large it is: '
            f"--dims {','.join(f'{one}=SIZE' for one in missing)}"
        )
    model = onnx.ModelProto()
    model.CopyFrom(graph.model)
    inputs = {value.name for value in _inputs(graph)}
    sizes = {_name(value, 0): batch for value in _inputs(graph)} | dict(dims)
    for value in model.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if value.name in inputs and not dim.HasField("dim_value"):
                dim.dim_value = sizes[_name(value, axis)]
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    return model


def _inputs(graph: Graph) -> list[onnx.ValueInfoProto]:
    return [value for value in graph.model.graph.input if value.name in graph.inputs]


def _name(value: onnx.ValueInfoProto, axis: int) -> str:
    dims = value.type.tensor_type.shape.dim
    return (dims[axis].dim_param if axis < len(dims) else "") or f"{value.name}:{axis}"


def _whole(shape: session.Dims) -> bool:
    return all(isinstance(dim, int) for dim in shape)


def _by_onnx(model: onnx.ModelProto, shapes: Mapping[str, session.Dims]) -> dict[str, session.Dims]:
    try:
        done = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    except onnx.shape_inference.InferenceError:
        return {}
    found = {}
    for value in [*done.value_info, *done.output]:
        tensor = value.type.tensor_type
        shape = tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim)
        if tensor.HasField("shape") and _whole(shape) and not _whole(shapes.get(value.name, (None,))):
            found[value.name] = shape
    return found
