"""Turns torch programs and modules into ONNX graphs, with a dynamic batch axis if torch can trace one.

A factory is a function without arguments that returns `(module, examples)`: the `torch.nn.Module`, ready to use, and
valid example inputs as a dict from the names of `forward`'s parameters to tensors, or as a tuple in their order. Every
tensor has the batch as its first axis, of one row or more. Names of outputs may follow as a third item.
"""

import importlib
import inspect
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from export.graph.input_values import Array, Rows
from export.graph.onnx_graph import load
from export.graph.source import Source
from export.graph.torch_onnx import quiet
from triton_batching.terminal import Mistake

CONTRACT = (
    "A factory takes no arguments and returns (module, examples): the torch.nn.Module and a dict from the names of its "
    "inputs to example tensors, the batch first."
)


def from_program(path: Path) -> Source:
    """Read a file of `torch.export.save`; raises `Mistake`."""
    try:
        with quiet():
            program = torch.export.load(path)
    except Exception as error:
        raise Mistake(
            f"{path}: not a torch.export file ({_first_line(error)}). Write it with torch.export.save."
        ) from error
    arguments, keywords = program.example_inputs or ((), {})
    inputs, tensors = [str(name) for name in program.graph_signature.user_inputs], [*arguments, *keywords.values()]
    outputs = _output_names(len(program.graph_signature.user_outputs))
    examples = _named(inputs, tensors)
    module = program.module()
    with quiet():
        model = _graph(program, (), inputs, outputs, None, str(path))
    return Source(model=model, origin=path.name, examples=examples, reference=_reference(module, inputs, outputs))


def from_factory(text: str, *, open_axes: bool = False) -> Source:
    """Call `module:function` and export what it returns, with all axes open that can be; raises `Mistake`."""
    module, inputs, tensors, outputs = _call_factory(text)
    module.eval()
    # Two rows, because the exporter fixes the batch axis to 1 for an example of one row.
    two_rows = tuple(torch.cat([tensor, tensor])[:2] if len(tensor) < 2 else tensor for tensor in tensors)
    try:
        with torch.inference_mode():
            answer = module(*tensors)
    except Exception as error:
        raise Mistake(
            f"{text}: the module does not run on its example inputs ({_first_line(error)}). {CONTRACT}"
        ) from error
    outputs = outputs or _output_names(len(answer) if isinstance(answer, (tuple, list)) else 1)
    with quiet():
        try:
            shapes = tuple(_shapes(tensor, open_axes) for tensor in two_rows)
            model = _graph(module, two_rows, inputs, outputs, shapes, text)
        except Mistake:
            # The trace fixes the batch. The graph may still be rewritten, and the proof then decides.
            model = _graph(module, tuple(tensors), inputs, outputs, None, text)
    examples = _named(inputs, tensors)
    return Source(model=model, origin=text, examples=examples, reference=_reference(module, inputs, outputs))


def _shapes(tensor: torch.Tensor, open_axes: bool) -> dict[int, Any]:
    """The axes of an input that torch leaves open: the batch, and with `open_axes` all that the trace does not fix."""
    others = range(1, tensor.ndim) if open_axes else ()
    return {0: torch.export.Dim("batch", min=1), **dict.fromkeys(others, torch.export.Dim.AUTO)}


def _call_factory(text: str) -> tuple[torch.nn.Module, list[str], list[torch.Tensor], list[str]]:
    """The module, its input names and example tensors in the order of `forward`, and output names (may be empty)."""
    factory = _imported(text)
    try:
        result = factory()
    except Exception as error:
        raise Mistake(f"{text}: the factory raised {type(error).__name__}: {_first_line(error)}. {CONTRACT}") from error
    if not isinstance(result, tuple) or len(result) not in (2, 3) or not isinstance(result[0], torch.nn.Module):
        raise Mistake(f"{text}: the factory returned {type(result).__name__}, not (module, examples). {CONTRACT}")
    module, examples = result[0], result[1]
    names = list(examples) if isinstance(examples, Mapping) else _parameters(module)
    tensors = list(examples.values()) if isinstance(examples, Mapping) else [*examples]
    for label, tensor in zip(names, tensors, strict=False):
        if not isinstance(tensor, torch.Tensor) or tensor.ndim < 1:
            raise Mistake(f"{text}: example input {label} is not a tensor with a batch axis. {CONTRACT}")
    unknown = [label for label in names[: len(tensors)] if label not in _parameters(module)]
    if not tensors or len(names) < len(tensors) or unknown:
        raise Mistake(
            f"{text}: forward takes ({', '.join(_parameters(module))}), the examples are "
            f"{len(tensors)} ({', '.join(unknown) or 'more than that'} unknown). {CONTRACT}"
        )
    ordered = sorted(zip(names, tensors, strict=False), key=lambda pair: _parameters(module).index(pair[0]))
    outputs = [*result[2]] if len(result) == 3 else []
    return module, [label for label, _ in ordered], [tensor for _, tensor in ordered], outputs


def _imported(text: str) -> Callable[[], Any]:
    """The factory that `module:function` names."""
    module, _, name = text.partition(":")
    # As `python -m` does, so that tests and other programs find a factory in the working directory too.
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        factory: Callable[[], Any] | None = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        raise Mistake(f"{text}: no module {error.name} to import. Run from the folder that holds it.") from error
    except Exception as error:
        raise Mistake(
            f"{text}: importing {module} raised {type(error).__name__}: {_first_line(error)}. Correct it there."
        ) from error
    if factory is None:
        raise Mistake(f"{text}: {module} has no function {name}. {CONTRACT}")
    return factory


def _parameters(module: torch.nn.Module) -> list[str]:
    return list(inspect.signature(module.forward).parameters)


def _graph(
    program: Any,
    arguments: tuple[torch.Tensor, ...],
    inputs: Sequence[str],
    outputs: Sequence[str],
    shapes: tuple[Mapping[int, Any], ...] | None,
    text: str,
) -> Any:
    with tempfile.TemporaryDirectory(prefix="triton-batching-") as folder:
        path = Path(folder) / "model.onnx"
        try:
            torch.onnx.export(
                program,
                arguments,
                path,
                input_names=list(inputs),
                output_names=list(outputs),
                dynamic_shapes=shapes,
                dynamo=True,
                verbose=False,
            )
        except Exception as error:
            raise Mistake(f"{text}: torch cannot export it to ONNX ({_first_line(error)}).") from error
        return load(path)


def _reference(
    module: torch.nn.Module, inputs: Sequence[str], outputs: Sequence[str]
) -> Callable[[Rows], Mapping[str, Array]]:
    def answer(rows: Rows) -> Mapping[str, Array]:
        with torch.inference_mode():
            result = module(*(torch.from_numpy(rows[name].copy()) for name in inputs))
        tensors = result if isinstance(result, (tuple, list)) else [result]
        return {name: tensor.numpy() for name, tensor in zip(outputs, tensors, strict=True)}

    return answer


def _named(names: Sequence[str], tensors: Sequence[Any]) -> Rows:
    pairs = zip(names, tensors, strict=False)
    return {name: tensor.detach().numpy() for name, tensor in pairs if isinstance(tensor, torch.Tensor)}


def _output_names(count: int) -> list[str]:
    return ["output"] if count == 1 else [f"output_{number}" for number in range(count)]


def _first_line(error: BaseException) -> str:
    """The first line of a message, at most 300 characters."""
    return str(error).strip().split("\n")[0][:300]
