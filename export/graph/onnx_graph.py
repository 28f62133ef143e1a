"""An ONNX graph as a file and as a net: weights stored beside it, who makes and who takes a tensor, its constants."""

from collections.abc import Mapping, Sequence
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
        start = _start(path)
        if start.startswith(b"version https://git-lfs"):
            raise Mistake(f"{path}: a pointer of Git LFS, not the model itself. Fetch it: git lfs pull.") from error
        found = f" ({_first_line(error)}); it starts with {start[:8]!r}" if start else f" ({_first_line(error)})"
        raise Mistake(f"{path}: not a readable ONNX file, or not all of it{found}. Export or copy it again.") from error
    if not model.graph.node:
        raise Mistake(f"{path}: not a readable ONNX file (it has no nodes). Export it again.")
    return model


def save(model: onnx.ModelProto, path: Path) -> None:
    """Write `model` as one file, or with its weights in `WEIGHTS` beside it where one file cannot hold them."""
    if sum(len(tensor.raw_data) for tensor in model.graph.initializer) <= SINGLE_FILE_BYTES:
        try:
            onnx.save(model, path)
        except (EncodeError, ValueError) as error:
            raise Mistake(
                f"{path.name}: more than 2 GB that are not raw weights, which one file cannot hold "
                f"({_first_line(error)}). Export it with its weights as raw data."
            ) from error
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


def declare_outputs(model: onnx.ModelProto, origin: str) -> None:
    """Write down the shapes of outputs that an exporter left out; raises `Mistake` when they cannot be inferred."""
    bare = [output for output in model.graph.output if not output.type.tensor_type.HasField("shape")]
    if not bare:
        return
    try:
        inferred = {output.name: output for output in onnx.shape_inference.infer_shapes(model).graph.output}
    except (onnx.shape_inference.InferenceError, ValueError) as error:
        raise Mistake(
            f'{origin}: output "{bare[0].name}" has no shape in the graph, and none can be inferred '
            f"({_first_line(error)}). Export it with shapes."
        ) from error
    for output in bare:
        if not inferred[output.name].type.tensor_type.HasField("shape"):
            raise Mistake(
                f'{origin}: output "{output.name}" has no shape in the graph, and config.pbtxt needs one. Export it '
                "with shapes."
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
    takers: Mapping[str, Sequence[tuple[onnx.NodeProto, int]]]
    """The nodes that take each tensor, with the index of that input."""

    @classmethod
    def of(cls, model: onnx.ModelProto) -> Self:
        """Index `model`."""
        held = {tensor.name: tensor for tensor in model.graph.initializer}
        for node in model.graph.node:
            if node.op_type == "Constant" and (value := attribute(node, "value")) is not None:
                held[node.output[0]] = value
        made = {name: node for node in model.graph.node for name in node.output if name}
        taken: dict[str, list[tuple[onnx.NodeProto, int]]] = {}
        for node in model.graph.node:
            for index, name in enumerate(node.input):
                taken.setdefault(name, []).append((node, index))
        return cls(model=model, constants=held, makers=made, takers=taken)

    def constant(self, name: str) -> NDArray[Any] | None:
        """The value of a tensor that no input changes; None for any other."""
        return numpy_helper.to_array(self.constants[name]) if name in self.constants else None

    def numbers(self, node: onnx.NodeProto, name: str, index: int) -> Sequence[int] | None:
        """Whole numbers that older opsets have as attribute `name` and newer ones as a constant input `index`."""
        value = attribute(node, name)
        if value is None and len(node.input) > index:
            value = self.constant(node.input[index])
        return None if value is None else [int(one) for one in np.atleast_1d(value)]


def _start(path: Path) -> bytes:
    """The first bytes of a file, none where it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(64)
    except OSError:
        return b""


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0]
