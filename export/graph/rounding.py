"""How much a graph rounds: the coarsest type on the path to each output, and what each element changes by for noise."""

from collections.abc import Mapping, Sequence
from itertools import chain

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from export.graph import changed
from export.graph.axis_proof import onnxruntime_errors, run, session_of
from export.graph.error_measure import ROUNDINGS, SINGLE, Rounding, coarsest
from export.graph.input_values import Array, Rows
from export.graph.onnx_graph import attribute, graph_inputs, with_all_outputs, with_bodies

# How many times weights and inputs move, and by how many steps of their type.
TIMES, STEPS = 4, 4
FLOATS = {"tensor(float)": TensorProto.FLOAT, "tensor(double)": TensorProto.DOUBLE}
FLOATS |= {"tensor(float16)": TensorProto.FLOAT16, "tensor(bfloat16)": TensorProto.BFLOAT16}


def roundings(model: onnx.ModelProto, tolerance: float | None = None) -> list[Rounding]:
    """The rounding of each output, by the coarsest type of the tensors on the path from the inputs to it.

    A constant is not on the path, so weights that are kept in FP16 and widened before they are used do not count.
    `tolerance` replaces that of the type.
    """
    types = _float_types(model)
    finest = ROUNDINGS[TensorProto.DOUBLE]
    path = {value.name: ROUNDINGS.get(value.type.tensor_type.elem_type, finest) for value in graph_inputs(model)}
    for node in model.graph.node if types else ():
        every = [*with_bodies(node)]
        sources = [path[name] for each in every for name in each.input if name in path]
        if sources:
            sources += [ROUNDINGS.get(attribute(each, "to"), finest) for each in every[1:] if each.op_type == "Cast"]
        if sources and node.op_type not in ("Shape", "Size"):
            for name in node.output:
                path[name] = coarsest([*sources, ROUNDINGS.get(types.get(name, 0), finest)])
    found = []
    for value in model.graph.output:
        own = ROUNDINGS.get(value.type.tensor_type.elem_type, SINGLE)
        rounding = coarsest([path.get(value.name, own), own]) if types else SINGLE
        found.append(Rounding(tolerance=tolerance or rounding.tolerance, share=rounding.share))
    return found


def _float_types(model: onnx.ModelProto) -> Mapping[str, int]:
    """The type of every floating tensor that a node makes; empty if the graph has none but FP32."""
    named = {value.type.tensor_type.elem_type for value in [*model.graph.input, *model.graph.output]}
    named |= {tensor.data_type for tensor in model.graph.initializer}
    named |= {
        attribute(node, "to")
        for node in chain.from_iterable(map(with_bodies, model.graph.node))
        if node.op_type == "Cast"
    }
    if not named & (ROUNDINGS.keys() - {TensorProto.FLOAT}):
        return {}
    try:
        outputs = changed.guarded_session_of(with_all_outputs(model), optimised=False).get_outputs()
    except changed.CrashError:
        return {}
    return {value.name: FLOATS[value.type] for value in outputs if value.type in FLOATS}


def noise(model: onnx.ModelProto, rows: Rows) -> list[Array]:
    """The largest of `changes` over the rows, an array without their axis for each output."""
    return [each.max(axis=0) if each.ndim else each for each in changes(model, [rows])]


def changes(model: onnx.ModelProto, requests: Sequence[Rows], *, optimised: bool = True) -> list[Array]:
    """What each element of each output changes by, over all requests, when weights and inputs move by some steps.

    Whole numbers stay, because they may be sizes, indices or flags. Zeros if the rows of a request do not run together.
    """
    largest = [np.zeros(()) for _ in model.graph.output]
    try:
        session = session_of(model, optimised=optimised)
        expected = [run(session, rows) for rows in requests]
    except onnxruntime_errors():
        return largest
    for seed in range(TIMES):
        rng = np.random.default_rng(seed)
        try:
            session = session_of(_with_moved_weights(model, rng), optimised=optimised)
            moved = [run(session, {name: _moved(rows[name], rng) for name in rows}) for rows in requests]
        except onnxruntime_errors():
            continue
        for pair in zip(moved, expected, strict=True):
            largest = [_larger(before, _change(*each)) for before, *each in zip(largest, *pair, strict=True)]
    return largest


def _larger(before: Array, change: Array) -> Array:
    """The larger of each element; shapes that follow values are left as they were first."""
    fits = before.shape == change.shape or not before.ndim or not change.ndim
    return np.maximum(before, change) if fits else before


def _change(moved: Array, expected: Array) -> Array:
    """The change of each element; 0 where there is none to speak of."""
    if moved.shape != expected.shape or moved.dtype == object or not moved.size:
        return np.zeros(())
    with np.errstate(invalid="ignore"):
        change = np.abs(moved.astype(np.float64) - expected.astype(np.float64))
    return np.asarray(np.where(np.isfinite(change), change, 0.0))


def _with_moved_weights(model: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for tensor in copy.graph.initializer:
        if tensor.data_type in ROUNDINGS:
            tensor.CopyFrom(numpy_helper.from_array(_moved(numpy_helper.to_array(tensor), rng), tensor.name))
    return copy


def _moved(values: Array, rng: np.random.Generator) -> Array:
    """Numbers with a fraction, moved by up to `STEPS` steps of their type (16 bits: by one). Kind V is BF16."""
    if values.dtype.kind not in "fV":
        return values
    wide = values.astype(np.float64)
    step = {8: STEPS * 2.0**-52, 4: STEPS * 2.0**-23, 2: 2.0**-7 if values.dtype.kind == "V" else 2.0**-10}[
        values.dtype.itemsize
    ]
    with np.errstate(invalid="ignore"):
        moved = np.where(wide == np.round(wide), wide, wide * (1 + step * rng.uniform(-1, 1, wide.shape)))
    return moved.astype(values.dtype)
