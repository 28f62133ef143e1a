"""The signature of an ONNX file: names, types and shapes of its inputs and outputs, and the check of config.pbtxt."""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import onnx
from google.protobuf.message import DecodeError
from tritonclient.grpc.model_config_pb2 import BatchInput, BatchOutput, DataType, ModelConfig, ModelInput

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


class SignatureError(Mistake):
    """The file is not a readable ONNX model."""


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """One graph input or output: Triton's `type`, and `shape` with the batch axis, -1 for an open dimension."""

    type: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, value: onnx.ValueInfoProto) -> Self:
        """Read one `ValueInfoProto`."""
        tensor = value.type.tensor_type
        # Some exporters write a negative number for an open dimension.
        shape = tuple(max(dim.dim_value, -1) if dim.HasField("dim_value") else -1 for dim in tensor.shape.dim)
        return cls(type=TYPES.get(tensor.elem_type, str(tensor.elem_type)), shape=shape)


@dataclass(frozen=True, kw_only=True)
class Signature:
    """The inputs and outputs of one ONNX file, by tensor name."""

    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]

    @classmethod
    def of(cls, path: Path) -> Self:
        """Read the graph without its external weights; raises `SignatureError`."""
        try:
            graph = onnx.load(path, load_external_data=False).graph
        except (OSError, DecodeError) as error:
            raise SignatureError(f"{path}: not a readable ONNX file ({error}). Export it again.") from error
        initialisers = {tensor.name for tensor in graph.initializer}
        return cls(
            inputs={value.name: Tensor.of(value) for value in graph.input if value.name not in initialisers},
            outputs={value.name: Tensor.of(value) for value in graph.output},
        )


def made_masks(config: ModelConfig) -> Set[str]:
    """The graph's inputs that the backend makes of the lengths of requests (parameter `pad_mask`)."""
    masks = config.parameters["pad_mask"].string_value if "pad_mask" in config.parameters else ""
    return {part.partition("=")[0].strip() for part in masks.split(",")}


def check(config: ModelConfig, signature: Signature) -> Iterator[str]:
    """Every difference between config.pbtxt and the graph, each with what to write instead."""
    sources = {tensor.name for tensor in config.input}
    batch_inputs = {name for batch in config.batch_input for name in batch.target_name}
    scattered = {name for batch in config.batch_output for name in batch.target_name}
    padded = config.parameters["pad"].string_value if "pad" in config.parameters else ""
    for name in signature.inputs.keys() - sources - batch_inputs - made_masks(config) - _of_sequences(config):
        yield f'the graph\'s input "{name}" is not declared, so the model cannot load. Add it (or a batch_input).'
    for tensor in config.input:
        if tensor.allow_ragged_batch and not padded:
            yield from _check_ragged(tensor, signature.inputs)
        else:
            yield from _check(config, tensor, signature.inputs, kind="input", exact=False)
    for batch in config.batch_input:
        yield from _check_batch_input(batch, sources, signature.inputs)
    for tensor in config.output:
        if tensor.name not in scattered:
            yield from _check(config, tensor, signature.outputs, kind="output", exact=True)
    for batch in config.batch_output:
        yield from _check_ends("batch_output", batch, sources, signature.outputs)
    for state in config.sequence_batching.state:
        for kind, name, graph in (
            ("input", state.input_name, signature.inputs),
            ("output", state.output_name, signature.outputs),
        ):
            tensor = ModelInput(name=name, data_type=state.data_type, dims=state.dims)
            yield from _check(config, tensor, graph, kind=f"state's {kind}", exact=False)


def _of_sequences(config: ModelConfig) -> Set[str]:
    """The graph's inputs that Triton gives to requests of sequences: controls and states."""
    batching = config.sequence_batching
    return {control.name for control in batching.control_input} | {state.input_name for state in batching.state}


def _check_ragged(tensor: "ModelInput", graph: Mapping[str, Tensor]) -> Iterator[str]:
    """A ragged input arrives as one flat tensor, so the graph's shape must be [-1] for any dims."""
    where = f'input "{tensor.name}"'
    provided = graph.get(tensor.name)
    if provided is None:
        yield f"{where} is not in the graph, which has {', '.join(sorted(graph))}. Use one of its names."
    elif provided.shape != (-1,):
        yield (
            f"{where} has allow_ragged_batch, so Triton gives it to the graph as one flat tensor, but the graph has "
            f"shape {list(provided.shape)}. Export the model with export/models/ragged.py."
        )
    elif DataType.Name(tensor.data_type) != provided.type:
        yield (
            f"{where} has data_type {DataType.Name(tensor.data_type)}, the graph has {provided.type}. "
            f"Write {provided.type}."
        )
    if tensor.optional:
        yield f"{where} is ragged and optional, which Triton refuses. Make it required."


def _check_batch_input(batch: BatchInput, sources: Set[str], graph: Mapping[str, Tensor]) -> Iterator[str]:
    """Triton does not check batch inputs at load; wrong names and types fail at the first request."""
    yield from _check_ends("batch_input", batch, sources, graph)
    declared, kind = DataType.Name(batch.data_type), BatchInput.Kind.Name(batch.kind)
    rank = 2 if kind == "BATCH_ITEM_SHAPE" else 1
    for tensor in (graph[name] for name in batch.target_name if name in graph):
        where = f"batch_input {', '.join(batch.target_name)}"
        if declared not in ("TYPE_INT32", "TYPE_FP32"):
            yield f"{where} has data_type {declared}, Triton has TYPE_INT32 and TYPE_FP32 only. Write TYPE_INT32."
        elif declared != tensor.type:
            yield f"{where} has data_type {declared}, the graph has {tensor.type}. Export with TYPE_INT32 counts."
        if len(tensor.shape) != rank:
            yield f"{where} has shape {list(tensor.shape)} in the graph, {kind} has {rank} dims. Choose another kind."


def _check_ends(
    kind: str, batch: BatchInput | BatchOutput, sources: Set[str], graph: Mapping[str, Tensor]
) -> Iterator[str]:
    where = f"{kind} {', '.join(batch.target_name)}"
    if len(batch.target_name) != 1 or len(batch.source_input) != 1:
        yield f"{where} has {len(batch.target_name)} targets and {len(batch.source_input)} sources. Write one of each."
    for name in set(batch.target_name) - graph.keys():
        yield f"{where}: the graph has no {name}, it has {', '.join(sorted(graph))}. Use one of its names."
    for name in set(batch.source_input) - sources:
        yield f"{where}: source_input {name} is not an input. Name one of {', '.join(sorted(sources))}."


def _check(
    config: ModelConfig,
    tensor: "ModelInput | ModelConfig.ModelOutput",
    graph: Mapping[str, Tensor],
    *,
    kind: str,
    exact: bool,
) -> Iterator[str]:
    where = f'{kind} "{tensor.name}"'
    provided = graph.get(tensor.name)
    if provided is None:
        yield f"{where} is not in the graph, which has {', '.join(sorted(graph))}. Use one of its names."
        return
    declared = DataType.Name(tensor.data_type)
    if declared != provided.type:
        yield f"{where} has data_type {declared}, the graph has {provided.type}. Write {provided.type}."
    dims = list(tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims)
    expected = list(provided.shape)
    if config.max_batch_size > 0:
        if not expected or expected[0] != -1:
            yield (
                f"{where} has shape {expected} in the graph, so its first dimension cannot hold a batch although "
                f"max_batch_size is {config.max_batch_size}. Export with a dynamic first axis."
            )
        expected = expected[1:]
    elif not expected:
        expected = [1]  # Triton has no scalars: the backend takes the one value out of [1]
    if not fits(dims, expected, exact=exact):
        yield f"{where} has dims {dims}, the graph has {expected} after the batch axis. Write dims: {expected}."


def fits(dims: Sequence[int], expected: Sequence[int], *, exact: bool) -> bool:
    """Whether configured dims fit the graph's: equal, or, unless `exact`, a number for an open dimension."""
    return len(dims) == len(expected) and all(
        configured == dim or (dim == -1 and not exact) for configured, dim in zip(dims, expected, strict=True)
    )
