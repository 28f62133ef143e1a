"""Inputs without an axis for rows, beside inputs that have one: all rows of an execution share their values."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import numpy_helper

from export.graph import changed
from export.graph.batched import BatchAxisError, ProofSettings, batched
from export.graph.changed import CrashError
from export.graph.input_values import Array, Range, ranges
from export.graph.onnx_graph import dims, graph_inputs, shape_text
from export.graph.rows_first import rows_first
from export.graph.source import Source
from triton_batching.terminal import Mistake


@dataclass(frozen=True, kw_only=True)
class Shared:
    """The inputs that all rows share; `batches` are the row counts whose rows answered as alone with equal values.

    `left_out` is why that was not tried; "" if it was.
    """

    inputs: Sequence[str] = ()
    shapes: Sequence[str] = ()
    batches: Sequence[int] = ()
    left_out: str = ""

    @property
    def reason(self) -> str:
        """Why requests do not share an execution; empty if no input is shared."""
        if not self.inputs:
            return ""
        named = " and ".join(f'"{name}" {shape}' for name, shape in zip(self.inputs, self.shapes, strict=True))
        has, it = ("has", "it") if len(self.inputs) == 1 else ("have", "them")
        return (
            f"Input {named} {has} no axis for rows, so requests with different values of {it} cannot share an "
            f"execution. To batch requests, export {it} with a first axis of rows, or as a constant of the graph."
        )

    @property
    def rows(self) -> str:
        """What a request may hold."""
        tried = ", ".join(map(str, self.batches))
        return f"a request may hold many rows, which share {' and '.join(self.inputs)}: {tried} rows answered as alone"


def without_rows(source: Source, settings: ProofSettings) -> Shared:
    """The inputs of `source` without an axis for rows; none unless another input has one.

    They are scalars, and inputs whose first dimension is a number while that of another input is open.
    """
    source = replace(source, model=rows_first(source.model)[0])
    inputs = graph_inputs(source.model)
    shared = [value for value in inputs if not dims(value) or isinstance(dims(value)[0], int)]
    if not shared or len(shared) == len(inputs):
        return Shared()
    names = [value.name for value in shared]
    shapes = [f"of shape {shape_text(dims(value))}" if dims(value) else "(a scalar)" for value in shared]
    try:
        frozen = _frozen(source, shared, settings)
        changed.guarded_session_of(frozen, user_path=source.user_path)
        proved = batched(replace(source, model=frozen, examples={}, reference=None), _other_names(settings, names))
    except CrashError as crash:
        return Shared(inputs=names, shapes=shapes, left_out=str(crash))
    except (BatchAxisError, Mistake):
        return Shared(inputs=names, shapes=shapes)
    return Shared(inputs=names, shapes=shapes, batches=() if proved.changes else proved.proof.batches)


def _frozen(source: Source, shared: Sequence[onnx.ValueInfoProto], settings: ProofSettings) -> onnx.ModelProto:
    """The graph with constants in place of the shared inputs, so that the rows of the others can be proved."""
    valid, rng = ranges(source.model, settings.ranges, source.examples), np.random.default_rng(0)
    model = onnx.ModelProto()
    model.CopyFrom(source.model)
    for value in shared:
        array = source.examples.get(value.name)
        if array is None:
            array = _drawn(value, valid.get(value.name), rng)
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), value.name))
        model.graph.input.remove(next(other for other in model.graph.input if other.name == value.name))
    return model


def _drawn(value: onnx.ValueInfoProto, bounds: Range | None, rng: np.random.Generator) -> Array:
    dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
    shape = [dim if isinstance(dim, int) else 1 for dim in dims(value)]
    if bounds is None:
        raise Mistake(f"{value.name}: texts and flags are not drawn here.")
    return bounds.draw(rng, shape, dtype)


def _other_names(settings: ProofSettings, names: Sequence[str]) -> ProofSettings:
    """The settings without ranges of the shared inputs, and without samples, which hold rows of every input."""
    chosen = {name: bounds for name, bounds in settings.ranges.items() if name not in names}
    return replace(settings, ranges=chosen, samples=None)
