"""The signature of an ONNX file: names, types and shapes of its inputs and outputs, and the check of config.pbtxt."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import onnx
from google.protobuf.message import DecodeError
from tritonclient.grpc.model_config_pb2 import BatchInput, DataType, ModelConfig

from triton_batching.terminal import Mistake

# onnx element type -> Triton data type
TYPES: dict[int, str] = {
    onnx.TensorProto.BOOL: "TYPE_BOOL",
    onnx.TensorProto.UINT8: "TYPE_UINT8",
    onnx.TensorProto.UINT16: "TYPE_UINT16",
    onnx.TensorProto.UINT32: "TYPE_UINT32",
    onnx.TensorProto.UINT64: "TYPE_UINT64",
    onnx.TensorProto.INT8: "TYPE_INT8",
    onnx.TensorProto.INT16: "TYPE_INT16",
    onnx.TensorProto.INT32: "TYPE_INT32",
    onnx.TensorProto.INT64: "TYPE_INT64",
    onnx.TensorProto.FLOAT16: "TYPE_FP16",
    onnx.TensorProto.FLOAT: "TYPE_FP32",
    onnx.TensorProto.DOUBLE: "TYPE_FP64",
    onnx.TensorProto.BFLOAT16: "TYPE_BF16",
    onnx.TensorProto.STRING: "TYPE_STRING",
}
SWITCHES = {"int32_false_true": "TYPE_INT32", "fp32_false_true": "TYPE_FP32", "bool_false_true": "TYPE_BOOL"}
"""The data type of a sequence control by the field that holds its two values."""

Steps = tuple[str | int, ...]


class SignatureError(Mistake):
    """The file is not a readable ONNX model."""


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """One graph input or output: Triton's `type`, or ONNX's name of one that Triton does not have, and its `shape`.

    The shape has the batch axis, and -1 for an open dimension. It is () if `ranked` is false: its rank is unknown.
    """

    type: str
    shape: tuple[int, ...]
    ranked: bool = True

    @classmethod
    def of(cls, value: onnx.ValueInfoProto) -> Self:
        """Read one `ValueInfoProto`."""
        tensor = value.type.tensor_type
        shape = tuple(dim.dim_value if dim.HasField("dim_value") else -1 for dim in tensor.shape.dim)
        name = TYPES.get(tensor.elem_type) or onnx.TensorProto.DataType.Name(tensor.elem_type)
        return cls(type=name, shape=shape, ranked=tensor.HasField("shape"))


@dataclass(frozen=True, kw_only=True)
class Signature:
    """The inputs and outputs of one ONNX file, by tensor name; `defaults` are inputs that the graph has a value for."""

    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    defaults: Mapping[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, path: Path) -> Self:
        """Read the graph without its external weights; raises `SignatureError`."""
        try:
            return cls.of_graph(onnx.load(path, load_external_data=False).graph)
        except (OSError, DecodeError) as error:
            raise SignatureError(f"{path}: not a readable ONNX file ({error}). Export it again.") from error

    @classmethod
    def of_graph(cls, graph: onnx.GraphProto) -> Self:
        """The signature of a graph."""
        values = {tensor.name for tensor in graph.initializer}
        inputs = {value.name: Tensor.of(value) for value in graph.input}
        return cls(
            inputs={name: tensor for name, tensor in inputs.items() if name not in values},
            outputs={value.name: Tensor.of(value) for value in graph.output},
            defaults={name: tensor for name, tensor in inputs.items() if name in values},
        )


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A difference between config.pbtxt and the graph; `text` says what it means and what to write.

    `code` is the doctor's rule, `steps` are the place in config.pbtxt. `right` is the text of that field as it must be,
    "" if more than the field has to change.
    """

    code: str
    steps: Steps
    text: str
    right: str = ""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, kw_only=True)
class Declared:
    """A tensor that config.pbtxt declares at `steps`, and the `graph` tensors that it may name.

    `dims` are what the graph gets, after `reshape` if `field` says so; None if they do not have to be the graph's.
    """

    kind: str
    steps: Steps
    name: str
    type: str
    dims: Sequence[int] | None
    graph: Mapping[str, Tensor]
    field: str = "dims"
    exact: bool = False

    @property
    def where(self) -> str:
        """How a message calls it."""
        return f'{self.kind} "{self.name}"'


def made_masks(config: ModelConfig) -> Set[str]:
    """The graph's inputs that the backend makes of the lengths of requests (parameter `pad_mask`)."""
    masks = config.parameters["pad_mask"].string_value if "pad_mask" in config.parameters else ""
    return {part.partition("=")[0].strip() for part in masks.split(",")} - {""}


def check(config: ModelConfig, signature: Signature) -> Iterator[Fault]:
    """Every difference between config.pbtxt and the graph that the onnxruntime backend refuses to load.

    The backend has these rules once more, in its contract.py, because it runs alone in the server. A configuration
    without inputs or outputs is completed from the graph, so only what it declares is compared.
    """
    declared = [*_tensors(config, signature), *_of_sequences(config, signature)]
    unknown = [*_unknown(declared), *_batch_inputs(config, signature)]
    yield from unknown
    yield from _optional(config, signature)
    if config.input and not unknown:  # otherwise the right name may be all that is missing
        names = {tensor.name for tensor in declared} | made_masks(config)
        names |= {name for batch in config.batch_input for name in batch.target_name}
        yield from _undeclared(signature, names)
    for tensor in declared:
        if tensor.name in tensor.graph:
            yield from _differences(config, tensor, tensor.graph[tensor.name])


def _tensors(config: ModelConfig, signature: Signature) -> Iterator[Declared]:
    """The inputs and outputs."""
    is_padded = "pad" in config.parameters
    scattered = {name for batch in config.batch_output for name in batch.target_name}
    sides: tuple[tuple[str, Iterable[Any], Mapping[str, Tensor]], ...] = (
        ("input", config.input, {**signature.defaults, **signature.inputs}),
        ("output", config.output, signature.outputs),
    )
    for kind, tensors, graph in sides:
        for index, tensor in enumerate(tensors):
            is_flat = kind == "input" and tensor.allow_ragged_batch and not is_padded
            compared = not is_flat and not (kind == "output" and tensor.name in scattered)
            field = "reshape" if tensor.HasField("reshape") else "dims"
            yield Declared(
                kind=kind,
                steps=(kind, index),
                name=tensor.name,
                type=_type_name(tensor.data_type),
                dims=(tensor.reshape.shape if field == "reshape" else tensor.dims) if compared else None,
                graph=graph,
                field=field,
                exact=kind == "output",
            )


def _of_sequences(config: ModelConfig, signature: Signature) -> Iterator[Declared]:
    """The tensors that Triton adds to requests of sequences: their state, and the controls of the batcher."""
    for index, state in enumerate(config.sequence_batching.state):
        for kind, name, graph in (
            ("state's input", state.input_name, signature.inputs),
            ("state's output", state.output_name, signature.outputs),
        ):
            yield Declared(
                kind=kind,
                steps=("sequence_batching", "state", index),
                name=name,
                type=_type_name(state.data_type),
                dims=state.dims,
                graph=graph,
            )
    for index, tensor in enumerate(config.sequence_batching.control_input):
        for control in tensor.control:
            switch = next((name for name in SWITCHES if getattr(control, name)), None)
            yield Declared(
                kind="control",
                steps=("sequence_batching", "control_input", index),
                name=tensor.name,
                type=SWITCHES[switch] if switch else _type_name(control.data_type),
                dims=(1,),
                graph=signature.inputs,
                exact=True,
            )


def _type_name(data_type: int) -> str:
    return DataType.Name(data_type) if data_type in DataType.values() else f"type {data_type}"


def _unknown(declared: Sequence[Declared]) -> Iterator[Fault]:
    """Names that the graph does not have, and names that are declared twice."""
    times = Counter((tensor.kind, tensor.name) for tensor in declared if tensor.kind in ("input", "output"))
    for tensor in declared:
        if tensor.name not in tensor.graph:
            text = f"is not in the graph, so the model cannot load. The graph has {_listed(tensor.graph)}."
        elif times.pop((tensor.kind, tensor.name), 1) > 1:
            text = "is declared more than once, so every request fails. Declare it once."
        else:
            continue
        yield Fault(code="G102", steps=(*tensor.steps, "name"), text=f"{tensor.where} {text}")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _undeclared(signature: Signature, names: Set[str]) -> Iterator[Fault]:
    for name in sorted(signature.inputs.keys() - names):
        yield Fault(
            code="G101",
            steps=("input",),
            text=f'the graph\'s input "{name}" is not declared, so the model cannot load. Declare it with data_type '
            f"{signature.inputs[name].type}.",
        )


def _optional(config: ModelConfig, signature: Signature) -> Iterator[Fault]:
    """Inputs that a client may leave out must have a default in the graph, and exclude batches."""
    for index, tensor in enumerate(config.input):
        where, steps = f'input "{tensor.name}"', ("input", index, "optional")
        if tensor.optional and (config.max_batch_size > 0 or tensor.allow_ragged_batch):
            reason = "max_batch_size is above 0" if config.max_batch_size > 0 else "it is ragged"
            text = f"is optional, which the onnxruntime backend refuses if {reason}. Make it required."
            yield Fault(code="G109", steps=steps, text=f"{where} {text}")
        elif tensor.optional and tensor.name in signature.inputs:
            text = "is optional and has no default in the graph, so the model cannot load. Make it required."
            yield Fault(code="G101", steps=steps, text=f"{where} {text}")
        elif not tensor.optional and tensor.name in signature.defaults:
            remedy = "Remove it" if config.max_batch_size > 0 else "Write optional: true, or remove it"
            text = f"has a default in the graph and is required here, so the model cannot load. {remedy}."
            yield Fault(code="G101", steps=steps[:2], text=f"{where} {text}")


def _batch_inputs(config: ModelConfig, signature: Signature) -> Iterator[Fault]:
    """The C++ backend does not compare batch inputs: there wrong names and types fail at the first request."""
    seen = {tensor.name for tensor in config.input}
    for index, batch in enumerate(config.batch_input):
        targets, text = list(batch.target_name), ""
        if len(targets) != 1 or targets[0] in seen:
            text = f"has {_listed(targets)} as its target_name. Write one name that no other input has."
        elif targets[0] not in signature.inputs:
            text = f"is not in the graph, which has {_listed(signature.inputs)}. Use one of its names."
        else:
            text = _batch_input_text(batch, signature.inputs[targets[0]])
        seen.update(targets)
        if text:
            name = f'batch input "{targets[0]}"' if targets else "a batch input"
            yield Fault(code="R312", steps=("batch_input", index), text=f"{name} {text}")


def _batch_input_text(batch: BatchInput, tensor: Tensor) -> str:
    """What is wrong with the type or the rank of the graph's tensor; "" if nothing is."""
    declared, kind = _type_name(batch.data_type), BatchInput.Kind.Name(batch.kind)
    rank = 2 if kind == "BATCH_ITEM_SHAPE" else 1
    if declared != tensor.type:
        return (
            f"is {declared} here and the graph takes {tensor.type}, so requests fail. Write the graph's type, or "
            "export the graph with an INT32 input."
        )
    if tensor.shape and (len(tensor.shape) != rank or tensor.shape[0] != -1):
        return (
            f"has shape {list(tensor.shape)} in the graph, and {kind} has {rank} dimensions, of which the first is "
            "open. Export it with that shape, or choose another kind."
        )
    return ""


def _differences(config: ModelConfig, declared: Declared, provided: Tensor) -> Iterator[Fault]:
    """What differs between a tensor of config.pbtxt and the graph's of the same name."""
    if declared.type != provided.type:
        is_known = provided.type in TYPES.values()
        remedy = f"Write {provided.type}." if is_known else "Triton does not have that type: cast inside the graph."
        yield Fault(
            code="G103",
            steps=(*declared.steps, "data_type"),
            text=f"{declared.where} is {declared.type}, the graph has {provided.type}, so the model cannot load. "
            f"{remedy}",
            right=f"data_type: {provided.type}" if is_known else "",
        )
    if declared.dims is not None:
        yield from _shape(config, declared, declared.dims, provided)
    elif declared.kind == "input" and provided.shape != (-1,):
        yield Fault(
            code="R305",
            steps=(*declared.steps, "allow_ragged_batch"),
            text=f"{declared.where} is ragged, so the graph must take shape [-1], but it takes "
            f"{list(provided.shape)}: the model cannot load. Export a graph with a flat input and offsets, remove "
            "allow_ragged_batch, or let the server pad: python -m export.add --variable-length.",
        )


def _shape(config: ModelConfig, declared: Declared, dims: Sequence[int], provided: Tensor) -> Iterator[Fault]:
    shape, is_batched, is_control = provided.shape, config.max_batch_size > 0, declared.kind == "control"
    if is_batched and shape and shape[0] != -1 and not is_control:
        yield Fault(
            code="G104",
            steps=("max_batch_size",),
            text=f"{declared.where} has shape {list(shape)} in the graph, without a dynamic batch axis, and "
            f"max_batch_size is {config.max_batch_size}, so the model cannot load. Export with a dynamic first axis.",
        )
        return
    expected = shape[1:] if is_batched else shape
    # Triton has no scalars: their dims are all 1, as many as one likes.
    is_scalar = not shape and not is_control
    fits = all(dim == 1 for dim in dims) if is_scalar else _fits(dims, expected, exact=declared.exact)
    if fits or not provided.ranked:
        return
    code, why = "G107" if declared.kind == "output" else "G106", f"differ from the graph's {list(expected)}"
    if is_batched and _repeats_batch_axis(config, dims, shape):
        code, why = "G105", "repeat the batch axis, which max_batch_size adds by itself"
    elif not is_batched and len(dims) == len(shape) - 1:
        why = "lack the first axis, which only max_batch_size above 0 would add"
    is_reshape = declared.field == "reshape"
    right = _written(expected if shape else (1,), "shape" if is_reshape else "dims")
    yield Fault(
        code=code,
        steps=(*declared.steps, "reshape", "shape") if is_reshape else (*declared.steps, "dims"),
        text=f"{declared.where}: the {'shape of its reshape' if is_reshape else 'dims'} {list(dims)} {why}, so the "
        f"model cannot load. Write {right}.",
        right="" if is_reshape else right,
    )


def _repeats_batch_axis(config: ModelConfig, dims: Sequence[int], shape: Sequence[int]) -> bool:
    if len(dims) != len(shape) or not shape or dims[0] not in (-1, 1, config.max_batch_size):
        return False
    return all(ours == theirs or -1 in (ours, theirs) for ours, theirs in zip(dims[1:], shape[1:], strict=True))


def _written(shape: Sequence[int], field: str) -> str:
    """The shape as the text of `dims`, or of the `shape` of a reshape; the server refuses empty dims."""
    if not shape and field == "dims":
        return "dims: [ 1 ] reshape { shape: [ ] }"
    return f"{field}: [ {', '.join(map(str, shape))} ]"


def _fits(dims: Sequence[int], expected: Sequence[int], *, exact: bool) -> bool:
    """Whether configured dims fit the graph's: equal, or, unless `exact`, a number for an open dimension."""
    return len(dims) == len(expected) and all(
        configured == dim or (dim == -1 and not exact) for configured, dim in zip(dims, expected, strict=True)
    )
