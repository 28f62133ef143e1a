"""A compiled model that runs here, and what its file says about its tensors; the graph that stands for them."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import onnx
from onnx import TensorProto, helper

from export.graph.input_values import Array, Rows
from export.graph.signature import TYPES, Tensor
from triton_batching.terminal import Mistake

INPUT = re.compile(r"(?P<name>.+)=(?P<type>[A-Z]+\d*)\[(?P<dims>[-\d, ]*)\]")
BATCH = "batch"
# Triton data type -> onnx element type; texts are no tensors here.
ELEMENTS = {
    name: element for element, name in TYPES.items() if element not in (TensorProto.STRING, TensorProto.BFLOAT16)
}


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """A model in its own runtime.

    `inputs` and `outputs` are the names that Triton's backend takes, in order. `tensors` are the inputs whose type and
    shape the file holds; their first axis is the number of rows that it was made with, -1 if it is open. `most_rows` is
    the largest batch that the file allows, None without a limit. `kind` is the only device that it runs on, None if it
    may be any.
    """

    inputs: Sequence[str]
    outputs: Sequence[str]
    call: Callable[[Rows], Sequence[Array]]
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    most_rows: int | None = None
    kind: Literal["cpu", "gpu"] | None = None

    def run(self, output_names: None, input_feed: dict[str, Array], /) -> list[Array]:
        """All outputs for one batch, as an onnxruntime session gives them."""
        return list(self.call(input_feed))

    def get_outputs(self) -> Sequence[Any]:
        """The outputs, as an onnxruntime session names them."""
        return [SimpleNamespace(name=name) for name in self.outputs]


def parse_input(text: str) -> tuple[str, Tensor]:
    """Read `NAME=TYPE[dims]` of one row, as in `tokens=INT64[-1]`; raises `Mistake`."""
    match = INPUT.fullmatch(text)
    dims = [dim.strip() for dim in match["dims"].split(",")] if match and match["dims"].strip() else []
    sizes = [int(dim) for dim in dims if re.fullmatch(r"-1|[1-9]\d{0,9}", dim)]
    if match is None or f"TYPE_{match['type']}" not in ELEMENTS or len(sizes) != len(dims):
        types = ", ".join(name.removeprefix("TYPE_") for name in ELEMENTS)
        raise Mistake(
            f"--input {text}: not the type and shape of an input. Write NAME=TYPE[dims] of one row, for example "
            f"tokens=INT64[-1] or image=FP32[3,224,224], where -1 is an open dimension. Types: {types}."
        )
    return match["name"], Tensor(type=f"TYPE_{match['type']}", shape=(-1, *sizes))


def tensor_of(array: Array) -> Tensor:
    """The type and shape of rows, with an open first axis."""
    element = helper.np_dtype_to_tensor_dtype(array.dtype)
    return Tensor(type=TYPES.get(element, str(array.dtype)), shape=(-1, *array.shape[1:]))


def declared(origin: str, runtime: Runtime, chosen: Mapping[str, Tensor], samples: Path | None) -> onnx.ModelProto:
    """A graph without nodes that has the inputs of the model, for the programs that draw and read rows.

    Types and shapes are the user's (`chosen`), those of the file, or those of the samples; raises `Mistake` if an input
    has none.
    """
    if unknown := chosen.keys() - set(runtime.inputs):
        raise Mistake(
            f"{origin}: --input names {min(unknown)}, which is not an input. The inputs are "
            f"{', '.join(runtime.inputs)}."
        )
    sampled = _sampled(samples) if samples else {}
    tensors = sampled | dict(runtime.tensors) | dict(chosen)
    if missing := [name for name in runtime.inputs if name not in tensors]:
        raise Mistake(
            f"{origin}: the file does not say of what type and shape {', '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'}, and config.pbtxt needs both. Say it with "
            f"{' '.join(f'--input {name}=TYPE[dims]' for name in missing)} (of one row: tokens=INT64[-1], "
            "image=FP32[3,224,224]), or give real rows of every input with --samples FILE.npz."
        )
    return graph_of({name: tensors[name] for name in runtime.inputs}, {})


def graph_of(inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> onnx.ModelProto:
    """A graph without nodes that has these inputs and outputs."""
    takes, gives = ([_value(name, tensor) for name, tensor in side.items()] for side in (inputs, outputs))
    return helper.make_model(helper.make_graph([], "compiled", takes, gives))


def _value(name: str, tensor: Tensor) -> onnx.ValueInfoProto:
    names = [BATCH, *(f"{name}.{axis}" for axis in range(1, len(tensor.shape)))]
    dims = [axis if dim == -1 else dim for axis, dim in zip(names, tensor.shape, strict=False)]
    return helper.make_tensor_value_info(name, ELEMENTS[tensor.type], dims)


def _sampled(path: Path) -> dict[str, Tensor]:
    """What an .npz file says of types and shapes; empty if it cannot be read, which the reader of rows explains."""
    try:
        with np.load(path) as file:
            tensors = {name: tensor_of(file[name]) for name in file.files if file[name].ndim}
    except Exception:  # numpy's, zipfile's and zlib's
        return {}
    return {name: tensor for name, tensor in tensors.items() if tensor.type in ELEMENTS}
