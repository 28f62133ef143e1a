"""Reads and writes ONNX files with the weights beside them, and indexes graphs by tensor name."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import onnx
from google.protobuf.message import DecodeError, EncodeError
from numpy.typing import NDArray
from onnx import numpy_helper

from triton_batching.terminal import Mistake

Dims = tuple[int | str, ...]
"""The dimensions of one tensor: a number, or the name of an open one ('' if it has no name)."""

# protobuf refuses messages of 2 GiB; the rest is room for the graph itself and its strings.
SINGLE_FILE_BYTES = 1_900_000_000
WEIGHTS = "model.onnx.data"
SMALLEST_EXTERNAL_BYTES = 1024


def load(path: Path) -> onnx.ModelProto:
    """Read a file, and weights that are stored beside it; raises `Mistake`."""
    try:
        model = onnx.load(path)
    except onnx.checker.ValidationError as error:
        raise Mistake(
            f"{path}: its weights cannot be read ({_first_line(error)}). They are in separate files: copy those beside "
            "it as well."
        ) from error
    except (OSError, DecodeError, ValueError) as error:
        start = _start(path)
        if start.startswith(b"version https://git-lfs"):
            raise Mistake(f"{path}: a pointer of Git LFS, not the model itself. Fetch it: git lfs pull.") from error
        reason = f"{_first_line(error)}; it starts with {start[:8]!r}" if start else _first_line(error)
        raise Mistake(f"{path}: not a complete ONNX file ({reason}). Export or copy it again.") from error
    if not model.graph.node:
        raise Mistake(f"{path}: not an ONNX model, it has no nodes. Export it again.")
    return model


def save(model: onnx.ModelProto, path: Path) -> None:
    """Write `model` as one file, or with its weights in `WEIGHTS` beside it if one file cannot hold them."""
    if sum(len(tensor.raw_data) for tensor in model.graph.initializer) <= SINGLE_FILE_BYTES:
        try:
            onnx.save(model, path)
        except (EncodeError, ValueError) as error:
            raise Mistake(
                f"{path.name}: one file cannot hold more than 2 GB, and its weights are not raw data that could be "
                f"stored beside it ({_first_line(error)}). Export it with its weights as raw data."
            ) from error
        return
    copy = onnx.ModelProto()
    copy.CopyFrom(model)  # onnx.save marks the tensors of its argument as external
    onnx.save(
        copy,
        path,
        save_as_external_data=True,
        all_tensors_to_one_file=True,
        location=WEIGHTS,
        size_threshold=SMALLEST_EXTERNAL_BYTES,
    )


def graph_inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """The inputs that a request must have: those without a default value."""
    defaults = {tensor.name for tensor in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in defaults]


def dims(value: onnx.ValueInfoProto) -> Dims:
    """The dimensions of a graph's input or output."""
    return tuple(
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param for dim in value.type.tensor_type.shape.dim
    )


def shape_text(shape: Sequence[int | str]) -> str:
    """A shape for messages; an open dimension without a name is "any"."""
    return f"[{', '.join(str(dim) if dim != '' else 'any' for dim in shape)}]"


def declare_outputs(model: onnx.ModelProto, origin: str) -> None:
    """Add output shapes that the exporter left out; raises `Mistake` if they cannot be inferred."""
    unshaped = [output for output in model.graph.output if not output.type.tensor_type.HasField("shape")]
    if not unshaped:
        return
    try:
        inferred = {output.name: output for output in onnx.shape_inference.infer_shapes(model).graph.output}
    except (onnx.shape_inference.InferenceError, ValueError) as error:
        raise Mistake(
            f'{origin}: output "{unshaped[0].name}" has no shape in the graph, and it cannot be inferred '
            f"({_first_line(error)}). Export it with shapes."
        ) from error
    for output in unshaped:
        if not inferred[output.name].type.tensor_type.HasField("shape"):
            raise Mistake(
                f'{origin}: output "{output.name}" has no shape in the graph, and config.pbtxt needs one. Export it '
                "with shapes."
            )
        output.CopyFrom(inferred[output.name])


def with_all_outputs(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which every node has a unique name, which onnxruntime's errors show, and every tensor is an output."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    outputs = {output.name for output in copy.graph.output}
    for number, node in enumerate(copy.graph.node):
        node.name = f"node-{number}"
        for name in node.output:
            if name and name not in outputs:
                copy.graph.output.append(onnx.ValueInfoProto(name=name))
    return copy


def label(node: onnx.NodeProto) -> str:
    """How messages name a node."""
    return (
        f'node "{node.name}" ({node.op_type})'
        if node.name
        else f"the node that makes {node.output[0]} ({node.op_type})"
    )


def attribute(node: onnx.NodeProto, name: str, default: Any = None) -> Any:
    """The value of an attribute, `default` if the node does not have it."""
    return next((onnx.helper.get_attribute_value(entry) for entry in node.attribute if entry.name == name), default)


def rename_inputs(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
    """Let `node`, and the nodes of its branches and bodies, read other tensors: `names` maps an old name to a new."""
    for each in with_bodies(node):
        each.input[:] = [names.get(name, name) for name in each.input]


def with_bodies(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """The node, and those of its branches and bodies."""
    yield node
    for entry in node.attribute:
        for body in (*([entry.g] if entry.HasField("g") else []), *entry.graphs):
            for inner in body.node:
                yield from with_bodies(inner)


@dataclass(frozen=True, kw_only=True)
class Net:
    """A graph by tensor name: constants, and the nodes that make and take the other tensors."""

    model: onnx.ModelProto
    constants: Mapping[str, onnx.TensorProto]
    makers: Mapping[str, onnx.NodeProto]
    takers: Mapping[str, Sequence[tuple[onnx.NodeProto, int]]]
    """The nodes that take each tensor, with the index of that input."""

    @classmethod
    def of(cls, model: onnx.ModelProto) -> Self:
        """Index `model`."""
        constants = {tensor.name: tensor for tensor in model.graph.initializer}
        for node in model.graph.node:
            if node.op_type == "Constant" and (value := attribute(node, "value")) is not None:
                constants[node.output[0]] = value
        makers = {name: node for node in model.graph.node for name in node.output if name}
        takers: dict[str, list[tuple[onnx.NodeProto, int]]] = {}
        for node in model.graph.node:
            for index, name in enumerate(node.input):
                takers.setdefault(name, []).append((node, index))
        return cls(model=model, constants=constants, makers=makers, takers=takers)

    def constant(self, name: str) -> NDArray[Any] | None:
        """The value of a constant; None for other tensors."""
        return numpy_helper.to_array(self.constants[name]) if name in self.constants else None

    def numbers(self, node: onnx.NodeProto, name: str, index: int) -> Sequence[int] | None:
        """Whole numbers of `node`: its attribute `name` in older opsets, its constant input `index` in newer ones."""
        value = attribute(node, name)
        if value is None and len(node.input) > index:
            value = self.constant(node.input[index])
        return None if value is None else [int(number) for number in np.atleast_1d(value)]


def _start(path: Path) -> bytes:
    """The first 64 bytes of a file; none if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(64)
    except OSError:
        return b""


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0]
