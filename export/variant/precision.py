"""Converts a graph to FP16 or INT8, with onnxconverter-common and onnxruntime's quantisation.

Inputs and outputs keep their types.
"""

import contextlib
import io
import logging
import re
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from export.graph import changed
from export.graph.axis_proof import session_of, take
from export.graph.input_values import Rows
from export.graph.onnx_graph import attribute, load, save
from export.graph.opset import opset
from export.variant.half_arithmetic import rounding
from triton_batching.terminal import Mistake, again

FP16, STATIC, DYNAMIC = "fp16", "int8-static", "int8-dynamic"
# The smallest and largest numbers of FP16. The library's defaults are 1e-7 and 1e4, which cut larger weights off.
SMALLEST_HALF, LARGEST_HALF = 5.96e-8, 65504.0
# A scale for each channel needs QuantizeLinear with an axis.
PER_CHANNEL_OPSET = 13
# ConvInteger is slower than the FP32 convolution: a third of the rows/s of text_recognition on two cores.
DYNAMIC_OPERATORS = ("MatMul", "Gemm", "Attention", "LSTM", "EmbedLayerNormalization")
CALIBRATED_TOGETHER = 8


@dataclass(frozen=True, kw_only=True)
class Precision:
    """A precision, the difference from FP32 that it may have, and that of a batch from its rows.

    Both are shares of what an element varies by; `share` is that of its own size which is rounding. A `batch_tolerance`
    of None is that of the graph's types.
    """

    name: str
    tolerance: float
    share: float
    batch_tolerance: float | None = None


PRECISIONS = {
    # 11 bits: half a step is 5e-4 of a value. A hundred layers that each round once, at random, add ten of them.
    FP16: Precision(name=FP16, tolerance=0.01, share=4 * 2.0**-10),
    # 255 steps over the range of a tensor: half a step is 2e-3 of its largest value, and the largest of thousands of
    # outputs gets many times that. The models here have 0.05 to 0.17, and the recogniser reads the same words. A batch
    # that sums in another order may round to another step.
    STATIC: Precision(name=STATIC, tolerance=0.2, share=2.0**-7, batch_tolerance=0.01),
    # Its rows share scales, so a batch differs from its rows by as much as the variant from the original.
    DYNAMIC: Precision(name=DYNAMIC, tolerance=0.2, share=2.0**-7),
}


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """What to convert: the graph, its precision, the rows for `int8-static`, and whether TensorRT will run it."""

    model: onnx.ModelProto
    precision: str
    calibration: Rows
    for_tensorrt: bool = False

    def converted(self, keep: Sequence[str] = ()) -> onnx.ModelProto:
        """The graph in its precision, without the nodes in `keep`; raises `Mistake` if there is none that loads."""
        if self.precision == STATIC:
            _check_finite(self.calibration)
        try:
            return self._converted(keep)
        except Exception as error:
            said = str(error).removeprefix("it: ").rstrip(".")
        first, kept = said, list(keep)
        # What is advised has been tried.
        while (node := named(self.model, said)) and node not in kept:
            kept.append(node)
            try:
                self._converted(kept)
            except Exception as error:
                said = str(error)
                continue
            advice = f"Leave in FP32 what cannot be: {again('--keep', *kept[len(keep) :], repeatable=True)}"
            break
        else:
            advice = "Choose another --precision."
        raise Mistake(f"the graph cannot be converted to {self.precision}: {' '.join(first.split())[:400]}. {advice}")

    def _converted(self, keep: Sequence[str]) -> onnx.ModelProto:
        """Raises any exception: the two libraries and onnxruntime have no common one."""
        with _quiet():
            made = _half(self.model, keep) if self.precision == FP16 else self._quantised(keep)
        changed.guarded_session_of(made, optimised=False, user_path="it")
        return made

    def computed(self, made: onnx.ModelProto) -> onnx.ModelProto:
        """A graph that this CPU computes as a GPU computes `made`; itself for INT8, or if there is none."""
        if self.precision != FP16:
            return made
        try:
            return rounding(made)
        except (changed.CrashError, Mistake):
            return made

    def session(self, made: onnx.ModelProto) -> onnxruntime.InferenceSession:
        """What answers as the variant does where it is served.

        Not fused, QDQ nodes compute in FP32 what TensorRT's INT8 kernels do; a CPU's kernels overflow with its 8 bits.
        """
        return session_of(self.computed(made), optimised=self.precision != FP16 and not self.for_tensorrt)

    def _quantised(self, keep: Sequence[str]) -> onnx.ModelProto:
        with tempfile.TemporaryDirectory(prefix="triton-batching-") as folder:
            source, target = Path(folder) / "model.onnx", Path(folder) / "quantised.onnx"
            save(self.model, source)
            if self.precision == STATIC:
                self._static(source, target, keep)
            else:
                _dynamic(source, target, keep)
            return load(target)

    def _static(self, source: Path, target: Path, keep: Sequence[str]) -> None:
        from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

        batches = _batches(self.calibration)

        class Reader(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime has no types
            def get_next(self) -> Rows | None:
                return next(batches, None)

        # Without VNNI a processor adds pairs of products in 16 bits, which 8-bit weights overflow: words read fell from
        # 63 of 64 to 58. 7 bits never do. TensorRT needs 8 bits with zero in the middle.
        symmetric = {"ActivationSymmetric": True, "WeightSymmetric": True} if self.for_tensorrt else {}
        quantize_static(
            source,
            target,
            Reader(),
            quant_format=QuantFormat.QDQ,
            per_channel=opset(self.model) >= PER_CHANNEL_OPSET,
            reduce_range=not self.for_tensorrt,
            activation_type=QuantType.QInt8 if self.for_tensorrt else QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            nodes_to_exclude=list(keep),
            extra_options=symmetric,
        )


def prepared(model: onnx.ModelProto, precision: str | None) -> onnx.ModelProto:
    """A copy in which every node has a name of its own; for INT8 with its shapes and without what folds away."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    if precision in (STATIC, DYNAMIC):
        copy = _without_shapes_of_weights(_preprocessed(copy))
    named: set[str] = set()
    for node in copy.graph.node:
        if not node.name or node.name in named:
            node.name = next(name for name in node.output if name)
        named.add(node.name)
    return copy


def converted_already(model: onnx.ModelProto, precision: str) -> str:
    """What keeps the graph from being converted: that it was converted before; "" if nothing does."""
    if precision == DYNAMIC:
        return ""
    if any(node.op_type in ("QuantizeLinear", "DequantizeLinear") for node in model.graph.node):
        return "is quantised already"
    is_half = any(tensor.data_type == onnx.TensorProto.FLOAT16 for tensor in model.graph.initializer)
    return "has weights in FP16 already" if is_half and precision == FP16 else ""


def kept(model: onnx.ModelProto, names: Sequence[str]) -> list[str]:
    """The names of the nodes that the user named, by themselves or by an output; raises `Mistake`."""
    found = []
    for wanted in names:
        node = next((node for node in model.graph.node if wanted == node.name or wanted in node.output), None)
        if node is None:
            some = ", ".join(node.name for node in model.graph.node[:5])
            raise Mistake(f"--keep {wanted}: no such node. The first nodes of the graph are {some}.")
        found.append(node.name)
    return found


def _preprocessed(model: onnx.ModelProto) -> onnx.ModelProto:
    from onnxruntime.quantization.shape_inference import quant_pre_process

    with tempfile.TemporaryDirectory(prefix="triton-batching-") as folder, _quiet():
        source, target = Path(folder) / "model.onnx", Path(folder) / "prepared.onnx"
        save(model, source)
        try:
            quant_pre_process(source, target, skip_symbolic_shape=True)
        except Exception:  # as in `converted`; preparing is an improvement, not a condition
            return model
        return load(target)


def named(model: onnx.ModelProto, said: str) -> str | None:
    """The node that an error of onnx or onnxruntime names, as in `node name: N`, `Node (N)` and `Node:N`."""
    for node in model.graph.node:
        if re.search(rf"[Nn]ode(?: name)?[ :('\"]+{re.escape(node.name)}(?![\w/.])", said):
            return node.name
    return None


def _without_shapes_of_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """The graph without value_info of initializers, which torch writes.

    onnxruntime transposes the weights of Gemm under their own names, and then refuses the shape that they had.
    """
    graph = model.graph
    weights = {tensor.name for tensor in graph.initializer}
    others = [value for value in graph.value_info if value.name not in weights]
    del graph.value_info[:]
    graph.value_info.extend(others)
    return model


def _half(model: onnx.ModelProto, keep: Sequence[str]) -> onnx.ModelProto:
    from onnxconverter_common.float16 import convert_float_to_float16

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    # The converter takes the output of every node for FP16, also of one whose attribute says FP32.
    typed = [
        node.name
        for node in model.graph.node
        if onnx.TensorProto.FLOAT in (attribute(node, "to"), attribute(node, "dtype"))
    ]
    half: onnx.ModelProto = convert_float_to_float16(
        copy,
        min_positive_val=SMALLEST_HALF,
        max_finite_val=LARGEST_HALF,
        keep_io_types=True,
        node_block_list=[*keep, *typed],
    )
    for value in half.graph.output:
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT16:
            _widen_output(half.graph, value)
    return half


def _widen_output(graph: onnx.GraphProto, value: onnx.ValueInfoProto) -> None:
    """Make an output FP32: the converter leaves that of a node in FP32 rounded to FP16."""
    maker = next(node for node in graph.node if value.name in node.output)
    inner = f"{value.name}/half"
    for node in graph.node:
        node.input[:] = [inner if name == value.name else name for name in node.input]
    maker.output[:] = [inner if name == value.name else name for name in maker.output]
    source = maker.input[0] if maker.op_type == "Cast" else inner
    graph.node.append(onnx.helper.make_node("Cast", [source], [value.name], to=onnx.TensorProto.FLOAT))
    value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT


def _dynamic(source: Path, target: Path, keep: Sequence[str]) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(
        source,
        target,
        op_types_to_quantize=list(DYNAMIC_OPERATORS),
        weight_type=QuantType.QInt8,
        reduce_range=True,
        nodes_to_exclude=list(keep),
        extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
    )


def _check_finite(rows: Rows) -> None:
    """Raise `Mistake` for rows without a range."""
    for name, array in rows.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise Mistake(
                f'input "{name}" is NaN or infinite in rows that calibrate, so int8-static finds no range for it. '
                "Leave those rows out of --calibrate, or of --samples without it."
            )


def _batches(rows: Rows) -> Iterator[dict[str, Any]]:
    count = len(next(iter(rows.values())))
    for start in range(0, count, CALIBRATED_TOGETHER):
        yield dict(take(rows, start, start + CALIBRATED_TOGETHER))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The libraries print, log and warn about every weight that FP16 rounds to its smallest number."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
