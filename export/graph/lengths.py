"""Corrects what exporters declare of lengths: one name for those that must be equal, and outputs that follow them."""

from collections.abc import Mapping

import numpy as np
import onnx

from export.graph.axis_proof import onnxruntime_errors, run, session_of
from export.graph.input_values import Array, Range
from export.graph.onnx_graph import dims, graph_inputs
from export.graph.padding_axes import Variation
from triton_batching.terminal import Mistake


def declared(model: onnx.ModelProto, valid: Mapping[str, Range], length: int) -> onnx.ModelProto:
    """A copy with one name for lengths that run only if equal, and open axes where outputs follow a length.

    `length` is one that runs.
    """
    variation = Variation.of(model, {})
    sizes = list(dict.fromkeys(axis.size for axis in variation.fills))
    session = session_of(model)
    copy = onnx.ModelProto()
    copy.CopyFrom(model)

    def outputs(longer: set[str], by: int = 1) -> list[Array] | None:
        """The outputs of a request with these lengths longer than the others; None if it does not run."""
        lengths = {size: length + by * (size in longer) for size in sizes}
        try:
            return run(session, variation.alone(model, valid, lengths, 0))
        except onnxruntime_errors():
            return None

    tried = [outputs({size}) for size in sizes]
    bound = [size for size, answer in zip(sizes, tried, strict=True) if answer is None]
    if len(bound) > 1 and (together := outputs(set(bound))) is not None:
        tried.append(together)
        _rename(copy, bound)
    # One more element may add none to an output with a stride.
    tried += [outputs(set()), outputs({*sizes}, by=length)]
    _open_outputs(copy, [answer for answer in tried if answer is not None])
    return copy


def check_counts(model: onnx.ModelProto, valid: Mapping[str, Range], variation: Variation) -> None:
    """Raise `Mistake` for whole numbers beside the lengths that may be a length or a count, and are only guessed.

    Their values decide which elements are a request's own, so a proof with other values shows nothing.
    """
    varying = {axis.tensor: axis for axis in variation.fills}
    for value in graph_inputs(model):
        bounds = valid.get(value.name)
        whole = np.issubdtype(onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type), np.integer)
        if whole and bounds and bounds.guessed and value.name not in {*varying, *variation.masks}:
            raise Mistake(
                f'input "{value.name}" of shape {[*dims(value)]} holds whole numbers that may be the length of a '
                f"request or a count, so they are not guessed. If it is the length: --range {value.name}="
                f"{next(iter(varying.values()))}. Otherwise name its values: --range {value.name}=lo:hi."
            )


def _rename(model: onnx.ModelProto, names: list[str]) -> None:
    """Give these dimensions the first of their names."""
    for value in [*graph_inputs(model), *model.graph.output, *model.graph.value_info]:
        for index, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.dim_param in names or (not dim.dim_param and f"{value.name}.{index}" in names):
                dim.dim_param = names[0]


def _open_outputs(model: onnx.ModelProto, answers: list[list[Array]]) -> None:
    """Open the axes after the first that are declared with a number and have another size in an answer."""
    for number, value in enumerate(model.graph.output):
        for index, dim in enumerate(value.type.tensor_type.shape.dim):
            sizes = {answer[number].shape[index] for answer in answers if answer[number].ndim > index}
            if index and dim.HasField("dim_value") and sizes - {dim.dim_value}:
                dim.dim_param = f"{value.name}_{index}"
