"""onnxruntime sessions that are made and never run: the graph that a model is optimised to, and inferred shapes."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnxruntime

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
# A saved model's large weights go into a file of their own; protobuf ends at 2 GiB.
EXTERNAL_BYTES = "1024"


@dataclass(frozen=True, kw_only=True)
class Optimised:
    """A model after onnxruntime's optimisations, without its large weights' data, and what its own format adds."""

    model: onnx.ModelProto
    layout: Layout


def settings(level: str, *, threads: int = 1) -> onnxruntime.SessionOptions:
    """Options of a session for estimates: one `level` of LEVELS, no memory pattern, quiet."""
    made = onnxruntime.SessionOptions()
    made.graph_optimization_level = LEVELS[level]
    made.enable_mem_pattern = False
    made.intra_op_num_threads = threads
    made.inter_op_num_threads = 1
    made.log_severity_level = ERRORS_ONLY
    return made


def opened(model: onnx.ModelProto | Path, options: onnxruntime.SessionOptions) -> onnxruntime.InferenceSession:
    """A session on the CPU; raises `Mistake` with onnxruntime's own words where it refuses the model."""
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    try:
        return onnxruntime.InferenceSession(source, options, providers=CPU)
    except Exception as error:  # onnxruntime raises a dozen kinds without a common base
        name = model if isinstance(model, Path) else model.graph.name
        raise Mistake(
            f"{name}: onnxruntime cannot load the model ({_first_line(error)}), so nothing can be said of its memory. "
            "Export it again."
        ) from error


def optimised(model: Path, level: str) -> Optimised:
    """What onnxruntime makes of the file at `level` when it loads it, batch left dynamic."""
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
    """The shape of every tensor that a node of `model` makes, as onnxruntime infers it, constants folded.

    Every tensor is declared an output in a copy, so that none is optimised away. None where even the rank is unknown.
    Weights without data become
    inputs: no shape depends on a weight of a kilobyte.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    held = {tensor.name: tensor for tensor in copy.graph.initializer}
    known = {value.name for value in [*copy.graph.input, *copy.graph.output]}
    for tensor in [one for one in held.values() if one.external_data]:
        copy.graph.initializer.remove(tensor)
        if tensor.name not in known:
            copy.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    made = [name for node in copy.graph.node for name in node.output if name and name not in known]
    copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in made)
    return {name: value.dims for name, value in Layout.of(_ort_format(copy, "basic")).values.items()}


def _ort_format(model: onnx.ModelProto | Path, level: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "optimised.ort"
        options = settings(level)
        options.optimized_model_filepath = str(path)
        options.add_session_config_entry("session.save_model_format", "ORT")
        opened(model, options)
        return path.read_bytes()


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0]
