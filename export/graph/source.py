"""A model to add: its graph, example inputs and its own framework, and the check that Triton can serve it."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import onnx

from export.graph.input_values import Array, Rows
from export.graph.onnx_graph import declare_outputs, dims, graph_inputs
from export.graph.signature import TYPES
from triton_batching.terminal import Mistake

# gRPC and Triton's HTTP front end count bytes in 32 bits.
LARGEST_TENSOR = 2**31
INSTALL_TORCH = "Install it: make export ARGS=ranker (outside of a clone: pip install 'triton-batching[export]')."


@dataclass(frozen=True, kw_only=True)
class Source:
    """The graph of a model that a user adds.

    `origin` names the file or factory. `user_path` is what the user typed, for messages. `examples` are valid inputs,
    empty for an ONNX file. `reference` runs any rows in the model's own framework, None for an ONNX file. `changes` are
    lines on what was changed so that Triton can serve it.
    """

    model: onnx.ModelProto
    origin: str
    user_path: str = ""
    examples: Rows = field(default_factory=dict)
    reference: Callable[[Rows], Mapping[str, Array]] | None = None
    changes: tuple[str, ...] = ()


def check(source: Source) -> None:
    """Refuse a graph that Triton cannot serve, and add output shapes that its exporter left out; raises `Mistake`."""
    graph, inputs = source.model.graph, graph_inputs(source.model)
    if not graph.output:
        raise Mistake(f"{source.origin}: the graph has no outputs. Export it with at least one.")
    if not inputs:
        raise Mistake(f"{source.origin}: the graph has no inputs. Export it with at least one.")
    _check_types(source.origin, "input", inputs)
    _check_types(source.origin, "output", graph.output)
    _check_names(source.origin, [value.name for value in [*inputs, *graph.output]])
    _check_shapes(source.origin, "input", inputs)
    declare_outputs(source.model, source.origin)
    _check_shapes(source.origin, "output", graph.output)


def _check_types(origin: str, kind: str, values: Iterable[onnx.ValueInfoProto]) -> None:
    for value in values:
        if value.type.tensor_type.elem_type not in TYPES:
            raise Mistake(
                f'{origin}: {kind} "{value.name}" is not a tensor of a type that Triton has (it is '
                f"{value.type.WhichOneof('value') or 'untyped'}). Export the model with plain tensors."
            )


def _check_names(origin: str, names: list[str]) -> None:
    for name in names:
        if not name.strip() or not name.isprintable():
            raise Mistake(f"{origin}: a request cannot name the tensor {name!r}. Export the model with other names.")
        if names.count(name) > 1:
            raise Mistake(f'{origin}: "{name}" names {names.count(name)} inputs. Export with unique names.')


def _check_shapes(origin: str, kind: str, values: Iterable[onnx.ValueInfoProto]) -> None:
    for value in values:
        where = f'{origin}: {kind} "{value.name}"'
        if not value.type.tensor_type.HasField("shape"):
            raise Mistake(f"{where} has no shape in the graph, and config.pbtxt needs one. Export it with shapes.")
        fixed = [dim for dim in dims(value) if isinstance(dim, int)]
        if 0 in dims(value)[1:]:
            raise Mistake(
                f"{where} has shape {list(dims(value))}, so it holds nothing. Export it with a name for each open "
                "dimension."
            )
        if (elements := math.prod(filter(None, fixed))) > LARGEST_TENSOR:
            raise Mistake(
                f"{where} has shape {list(dims(value))}, which is at least {elements:.3g} elements. Triton takes "
                f"{LARGEST_TENSOR // 2**30} GiB in one request. Correct the shape and export the model again."
            )
