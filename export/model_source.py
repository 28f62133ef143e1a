"""Where an added model comes from: an ONNX file, a torch.export file or a torch module factory; all become a graph."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx

from export.input_values import Array, Rows
from export.onnx_graph import declare_outputs, graph_inputs, load
from export.signature import TYPES
from export.terminal import Mistake

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
    declare_outputs(source.model)
    return source


def _from_torch(text: str) -> Source:
    try:
        from export import torch_source
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
    if not inputs:
        raise Mistake(f"{source.origin}: the graph has no inputs, so there is nothing to send. Export it with inputs.")
    for kind, values in (("input", inputs), ("output", list(source.model.graph.output))):
        for value in values:
            if value.type.tensor_type.elem_type not in TYPES:
                raise Mistake(
                    f'{source.origin}: {kind} "{value.name}" is not a tensor of a type that Triton has (it is '
                    f"{value.type.WhichOneof('value') or 'untyped'}). Export the model with plain tensors."
                )
