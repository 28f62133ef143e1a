"""Where an added model comes from: an ONNX file, a torch.export file or a torch module factory; all become a graph."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx

from export.graph.input_values import Array, Rows
from export.graph.onnx_graph import declare_outputs, dims, graph_inputs, load
from export.graph.signature import TYPES
from triton_batching.terminal import Mistake

# gRPC and Triton's HTTP front end count bytes in 32 bits.
LARGEST_TENSOR = 2**31
FORMS = "an ONNX file (.onnx), a torch.export file (.pt2) or a torch module factory (package.module:function)"


@dataclass(frozen=True, kw_only=True)
class Source:
    """A graph, where it is from, and what its framework knows: example inputs, and its own answers to any rows.

    `named` is what the person said, for messages.
    """

    model: onnx.ModelProto
    origin: str
    named: str = ""
    examples: Rows = field(default_factory=dict)
    reference: Callable[[Rows], Mapping[str, Array]] | None = None


def read(text: str) -> Source:
    """Read what the command line or a YAML file names; raises `Mistake`. torch is imported only for its own forms."""
    path = Path(text)
    if path.suffix == ".onnx":
        source = Source(model=load(existing(path)), origin=path.name)
    elif path.suffix == ".pt2" or (":" in text and not path.exists()):
        source = _from_torch(text)
    else:
        raise Mistake(f"{text}: {_misread(path)} Name {FORMS}.")
    source = replace(source, named=text)
    _check_inputs(source)
    for value in graph_inputs(source.model):
        _check_shape(source.origin, "input", value)
    declare_outputs(source.model, source.origin)
    for value in source.model.graph.output:
        _check_shape(source.origin, "output", value)
    return source


def _from_torch(text: str) -> Source:
    try:
        from export.graph import torch_source
    except ModuleNotFoundError as error:
        raise Mistake(f"{text}: reading it needs {error.name}. Install it with the command: make export.") from error
    if text.endswith(".pt2"):
        return torch_source.from_program(existing(Path(text)))
    return torch_source.from_factory(text)


def existing(path: Path) -> Path:
    """The path of a file; raises `Mistake` when there is none."""
    if not path.is_file():
        raise Mistake(f"{path}: no such file. Name {FORMS}.")
    return path


def _misread(path: Path) -> str:
    if path.suffix in (".pt", ".pth", ".torchscript"):
        return (
            "holds weights or TorchScript, which know no input shapes, so no graph can be made of it. Save the module "
            "with torch.export.save, or build it in a factory."
        )
    return "not a kind of model that can be added."


def _check_inputs(source: Source) -> None:
    inputs = graph_inputs(source.model)
    if not source.model.graph.output:
        raise Mistake(f"{source.origin}: the graph has no outputs, so there is nothing to answer. Export it with some.")
    if not inputs:
        raise Mistake(f"{source.origin}: the graph has no inputs, so there is nothing to send. Export it with inputs.")
    for kind, values in (("input", inputs), ("output", list(source.model.graph.output))):
        for value in values:
            if value.type.tensor_type.elem_type not in TYPES:
                raise Mistake(
                    f'{source.origin}: {kind} "{value.name}" is not a tensor of a type that Triton has (it is '
                    f"{value.type.WhichOneof('value') or 'untyped'}). Export the model with plain tensors."
                )
    _check_names(source.origin, [*inputs, *source.model.graph.output])


def _check_names(origin: str, values: Sequence[onnx.ValueInfoProto]) -> None:
    names = [value.name for value in values]
    for name in names:
        if not name.strip() or not name.isprintable():
            raise Mistake(f"{origin}: {name!r} is no name for a tensor in a request. Export it with names.")
        if names.count(name) > 1:
            raise Mistake(
                f'{origin}: "{name}" names {names.count(name)} inputs and outputs. Export with different names.'
            )


def _check_shape(origin: str, kind: str, value: onnx.ValueInfoProto) -> None:
    """Refuse a shape that no request or answer can have; raises `Mistake`."""
    where = f'{origin}: {kind} "{value.name}"'
    if not value.type.tensor_type.HasField("shape"):
        raise Mistake(f"{where} has no shape in the graph, and config.pbtxt needs one. Export it with shapes.")
    fixed = [dim for dim in dims(value) if isinstance(dim, int)]
    if any(dim < 0 for dim in fixed) or 0 in dims(value)[1:]:
        raise Mistake(
            f"{where} has shape {list(dims(value))}, which no tensor can have. Export it with a name for each "
            "dimension that is open."
        )
    if (elements := math.prod(filter(None, fixed))) > LARGEST_TENSOR:
        raise Mistake(
            f"{where} has shape {list(dims(value))}, so it has {elements:.3g} elements or more, and Triton takes "
            f"{LARGEST_TENSOR // 2**30} GiB in one request. Correct the shape and export it again."
        )
