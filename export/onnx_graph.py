"""An ONNX graph as a file and as a net: weights stored beside it, who makes and who takes a tensor, its constants."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from onnx import numpy_helper

from export.terminal import Mistake

Dims = tuple[int | str, ...]
"""The dimensions of one tensor: a number, or the name of a dynamic one ('' for one without a name)."""

# protobuf refuses messages of 2 GiB; the graph itself and its strings need room as well.
SINGLE_FILE_BYTES = 1_900_000_000
WEIGHTS = "model.onnx.data"
SMALLEST_EXTERNAL_BYTES = 1024


def load(path: Path) -> onnx.ModelProto:
    """Read a file with the weights that are stored beside it; raises `Mistake`."""
    try:
        model = onnx.load(path)
    except onnx.checker.ValidationError as error:
        raise Mistake(
            f"{path}: its weights cannot be read ({_first_line(error)}). They are in files of their own beside it: "
            "copy them there as well."
        ) from error
    except (OSError, DecodeError, ValueError) as error:
        raise Mistake(f"{path}: not a readable ONNX file ({_first_line(error)}). Export it again.") from error
    if not model.graph.node:
        raise Mistake(f"{path}: not a readable ONNX file (it has no nodes). Export it again.")
    return model


def save(model: onnx.ModelProto, path: Path) -> None:
    """Write `model` as one file, or with its weights in `WEIGHTS` beside it where one file cannot hold them."""
    if sum(len(tensor.raw_data) for tensor in model.graph.initializer) <= SINGLE_FILE_BYTES:
        onnx.save(model, path)
        return
    copy = onnx.ModelProto()
    copy.CopyFrom(model)  # saving marks the tensors as external, in the model that it is given
    onnx.save(
        copy,
        path,
        save_as_external_data=True,
        all_tensors_to_one_file=True,
        location=WEIGHTS,
        size_threshold=SMALLEST_EXTERNAL_BYTES,
    )


def graph_inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """What a request must bring: inputs without a default value."""
    held = {tensor.name for tensor in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in held]


def dims(value: onnx.ValueInfoProto) -> Dims:
    """The dimensions of a graph's input or output."""
    return tuple(
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param for dim in value.type.tensor_type.shape.dim
    )


def declare_outputs(model: onnx.ModelProto) -> None:
    """Write down the shapes of outputs that an exporter left out; raises `Mistake` when they cannot be inferred."""
    bare = [output for output in model.graph.output if not output.type.tensor_type.HasField("shape")]
    if not bare:
        return
    inferred = {output.name: output for output in onnx.shape_inference.infer_shapes(model).graph.output}
    for output in bare:
        if not inferred[output.name].type.tensor_type.HasField("shape"):
            raise Mistake(
                f'output "{output.name}" has no shape in the graph, and config.pbtxt needs one. Export with it.'
            )
        output.CopyFrom(inferred[output.name])


def label(node: onnx.NodeProto) -> str:
    """How messages name a node."""
    return (
        f'node "{node.name}" ({node.op_type})'
        if node.name
        else f"the node that makes {node.output[0]} ({node.op_type})"
    )


def attribute(node: onnx.NodeProto, name: str, default: Any = None) -> Any:
    """The value of an attribute."""
    return next((onnx.helper.get_attribute_value(one) for one in node.attribute if one.name == name), default)


@dataclass(frozen=True, kw_only=True)
class Net:
    """A graph by tensor name: its constants, and the node that makes each other tensor."""

    model: onnx.ModelProto
    constants: Mapping[str, onnx.TensorProto]
    makers: Mapping[str, onnx.NodeProto]

    @classmethod
    def of(cls, model: onnx.ModelProto) -> Self:
        """Index `model`."""
        held = {tensor.name: tensor for tensor in model.graph.initializer}
        for node in model.graph.node:
            if node.op_type == "Constant" and (value := attribute(node, "value")) is not None:
                held[node.output[0]] = value
        made = {name: node for node in model.graph.node for name in node.output if name}
        return cls(model=model, constants=held, makers=made)

    def constant(self, name: str) -> NDArray[Any] | None:
        """The value of a tensor that no input changes; None for any other."""
        return numpy_helper.to_array(self.constants[name]) if name in self.constants else None

    def takers(self, name: str) -> Iterator[tuple[onnx.NodeProto, int]]:
        """Every node that takes the tensor, and as its how-manieth input."""
        for node in self.model.graph.node:
            yield from ((node, index) for index, taken in enumerate(node.input) if taken == name)

    def numbers(self, node: onnx.NodeProto, name: str, index: int) -> Sequence[int] | None:
        """Whole numbers that older opsets have as attribute `name` and newer ones as a constant input `index`."""
        value = attribute(node, name)
        if value is None and len(node.input) > index:
            value = self.constant(node.input[index])
        return None if value is None else [int(one) for one in np.atleast_1d(value)]


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0]
