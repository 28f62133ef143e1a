"""onnxruntime sessions that never run: they give the optimised graph of a model and its inferred shapes."""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

import onnx
import onnxruntime
from onnx import AttributeProto, helper

from perf.memory.estimate.ort_format import Dims, Layout
from triton_batching.terminal import Mistake

CPU = ["CPUExecutionProvider"]
LEVELS = {
    "disabled": onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
}
ERRORS_ONLY = 3
# Larger weights of a saved model go into a separate file, as a protobuf message has at most 2 GiB.
EXTERNAL_BYTES = "1024"


@dataclass(frozen=True, kw_only=True)
class Optimised:
    """A model after onnxruntime's optimisations, without the data of large weights, and its `Layout`."""

    model: onnx.ModelProto
    layout: Layout


def settings(level: str, *, threads: int = 1) -> onnxruntime.SessionOptions:
    """Session options for estimates: a `level` of LEVELS, no memory pattern, only errors logged."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = LEVELS[level]
    options.enable_mem_pattern = False
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = ERRORS_ONLY
    return options


def opened(model: onnx.ModelProto | Path, options: onnxruntime.SessionOptions) -> onnxruntime.InferenceSession:
    """A session on the CPU; raises `Mistake` with onnxruntime's message if it refuses the model."""
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    try:
        return onnxruntime.InferenceSession(source, options, providers=CPU)
    except Exception as error:  # onnxruntime's exceptions have no common base
        name = model if isinstance(model, Path) else model.graph.name
        raise Mistake(f"{name}: onnxruntime cannot load the model: {str(error).strip().splitlines()[0]}") from error


def optimised(model: Path, level: str) -> Optimised:
    """The model of a file as onnxruntime optimises it at `level`, with a dynamic batch."""
    with tempfile.TemporaryDirectory() as folder:
        as_onnx = Path(folder) / "optimised.onnx"
        options = settings(level)
        options.optimized_model_filepath = str(as_onnx)
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "weights.bin")
        options.add_session_config_entry(
            "session.optimized_model_external_initializers_min_size_in_bytes", EXTERNAL_BYTES
        )
        opened(model, options)
        lean = onnx.load(as_onnx, load_external_data=False)
    return Optimised(model=lean, layout=Layout.of(_ort_format(model, level)))


def inferred(model: onnx.ModelProto) -> dict[str, Dims | None]:
    """The shape of every node's output as onnxruntime infers it, with constants folded; None if the rank is unknown.

    In a copy of the model every tensor is an output, so that none is optimised away. Weights without data become
    inputs: they are too large to decide a shape.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    declared = {value.name for value in [*copy.graph.input, *copy.graph.output]}
    for tensor in _in_bodies(copy.graph):
        _clear(tensor)
    for tensor in [tensor for tensor in copy.graph.initializer if tensor.external_data]:
        copy.graph.initializer.remove(tensor)
        if tensor.name not in declared:
            copy.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    outputs = [name for node in copy.graph.node for name in node.output if name and name not in declared]
    copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
    return {name: value.dims for name, value in Layout.of(_ort_format(copy, "basic")).values.items()}


def _in_bodies(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    bodies = [
        attribute.g for node in graph.node for attribute in node.attribute if attribute.type == AttributeProto.GRAPH
    ]
    for body in bodies:
        yield from body.initializer
        yield from _in_bodies(body)


def _clear(tensor: onnx.TensorProto) -> None:
    """Fill a weight that has no data here with zeros; it is too large to decide a shape."""
    if tensor.external_data:
        tensor.ClearField("external_data")
        tensor.data_location = onnx.TensorProto.DEFAULT
        tensor.raw_data = bytes(prod(tensor.dims) * helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)


def _ort_format(model: onnx.ModelProto | Path, level: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "optimised.ort"
        options = settings(level)
        options.optimized_model_filepath = str(path)
        options.add_session_config_entry("session.save_model_format", "ORT")
        opened(model, options)
        return path.read_bytes()
