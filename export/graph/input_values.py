"""Chooses valid values for the inputs of any graph: the user's, indices into a table of the graph, or a guess."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from export.graph.onnx_graph import Net, attribute, dims, graph_inputs
from export.graph.samples import draw
from export.graph.signature import TYPES
from triton_batching.terminal import Mistake

Array = NDArray[Any]
Rows = Mapping[str, Array]
"""Inputs by name; the first axis of each is the row."""

# Nodes that keep the values of indices and change their shape or type.
CARRIERS = {"Cast", "Identity", "Reshape", "Unsqueeze", "Squeeze", "Flatten", "Transpose", "Expand", "Slice"}
CARRIERS |= {"Gather", "GatherND", "GatherElements", "Concat"}
# Sizes to try for open dimensions, in this order: models for pictures refuse small ones, other models large ones, and
# those for sound need a window of samples.
OPEN_SIZES, SOUND_SIZES = (16, 32, 64, 128, 224, 8, 1), (512, 4096)
# What onnxruntime says of values that are no index, count or size.
OF_A_VALUE = re.compile(r"\b(index|indices|idx|bounds|negative)\b")
# Random values are drawn as float64 or int64; more bytes would leave no memory for the model on a common machine.
BYTES_DRAWN, MOST_BYTES = 8, 4 * 2**30
AXIS = re.compile(r".+\[\d+\]")


@dataclass(frozen=True, kw_only=True)
class Range:
    """Values from `low` to `high`, both included, and why they are valid.

    `guessed`: nothing says that they are, or that no others are. `follows` is the axis of an input, as `speech[1]`: the
    only value is its size, the length of the request.
    """

    low: float
    high: float
    why: str
    guessed: bool = False
    follows: str = ""

    def __str__(self) -> str:
        return self.why if self.follows else f"{self.low:g} to {self.high:g} ({self.why})"

    def draw(self, rng: np.random.Generator, shape: Sequence[int], dtype: "np.dtype[Any]") -> Array:
        """Random values of a whole or floating type."""
        if np.issubdtype(dtype, np.integer):
            return np.asarray(rng.integers(int(self.low), int(self.high), shape, endpoint=True)).astype(dtype)
        return np.asarray(rng.uniform(self.low, self.high, shape)).astype(dtype)


def parse_range(text: str) -> tuple[str, Range]:
    """Read `NAME=lo:hi` or `NAME=INPUT[AXIS]`; raises `Mistake`."""
    name, _, bounds_text = text.rpartition("=")
    bounds = read_bounds(bounds_text)
    if AXIS.fullmatch(bounds_text):
        bounds = Range(low=1, high=1, why=f"the length of the request, {bounds_text}", follows=bounds_text)
    if not name or bounds is None:
        raise Mistake(
            f"--range {text}: not a range of values. Write NAME=lo:hi with lo <= hi, for example tokens=0:999, or for "
            "the length of a request NAME=INPUT[AXIS], for example lengths=tokens[1]."
        )
    return name, bounds


def read_bounds(text: str) -> Range | None:
    """Read `lo:hi`; None for anything else."""
    low, _, high = text.partition(":")
    try:
        bounds = Range(low=float(low), high=float(high), why="your range")
    except ValueError:
        return None
    return bounds if bounds.low <= bounds.high and np.isfinite([bounds.low, bounds.high]).all() else None


def ranges(model: onnx.ModelProto, chosen: Mapping[str, Range], examples: Rows) -> dict[str, Range]:
    """The range of every numeric input: the user's in `chosen`, of the table it indexes, of its examples, or a guess.

    Raises `Mistake` for a range that the input's type cannot hold, or that follows no open axis.
    """
    net, bounds = Net.of(model), {}
    _check_followed(model, chosen)
    for value in graph_inputs(model):
        data_type = TYPES.get(value.type.tensor_type.elem_type, "")
        if data_type not in ("TYPE_STRING", "TYPE_BOOL"):
            bounds[value.name] = (
                chosen.get(value.name)
                or _indexed(net, value.name)
                or _of_example(examples.get(value.name))
                or _guess(data_type)
            )
            _check_bounds(value.name, bounds[value.name], data_type)
    return bounds


def _check_followed(model: onnx.ModelProto, chosen: Mapping[str, Range]) -> None:
    axes = [
        f"{value.name}[{axis}]"
        for value in graph_inputs(model)
        for axis, dim in enumerate(inner_dims(value), 1)
        if isinstance(dim, str)
    ]
    for name, bounds in chosen.items():
        if bounds.follows and bounds.follows not in axes:
            raise Mistake(
                f"--range {name}={bounds.follows}: no input has an open axis of that name. These are open: "
                f"{', '.join(axes) or 'none'}."
            )


def _check_bounds(name: str, bounds: Range, data_type: str) -> None:
    if "INT" not in data_type:
        return
    info = np.iinfo(data_type.removeprefix("TYPE_").lower())
    if int(bounds.low) < info.min or int(bounds.high) > info.max:
        raise Mistake(
            f"input {name} is {data_type.removeprefix('TYPE_')}, which holds {info.min} to {info.max}, so its values "
            f"cannot be {bounds}. Name valid values with --range {name}=lo:hi."
        )


def _guess(data_type: str) -> Range:
    if data_type in ("TYPE_UINT8", "TYPE_INT8"):
        info = np.iinfo(data_type.removeprefix("TYPE_").lower())
        return Range(low=info.min, high=info.max, why="all values of the type")
    if "INT" in data_type:
        return Range(low=0, high=1, why="a guess: valid in masks, flags and every table", guessed=True)
    return Range(low=-1, high=1, why="a guess; 0.01, 10 and 1000 times that too, where it runs", guessed=True)


def _of_example(example: Array | None) -> Range | None:
    if example is None or example.dtype.kind not in "iuf" or not example.size or example.min() == example.max():
        return None
    return Range(low=float(example.min()), high=float(example.max()), why="as in the example inputs", guessed=True)


def _indexed(net: Net, name: str) -> Range | None:
    """Indices that are valid for every table that the input looks up; None if it looks up none."""
    tables = sorted(_tables(net, name))
    if not tables:
        return None
    rows, table = tables[0]
    return Range(low=0, high=rows - 1, why=f'an index into "{table}" of {rows} rows')


def _tables(net: Net, name: str) -> Iterator[tuple[int, str]]:
    """The tables that input `name` indexes: row count and name of each."""
    waiting, seen = list(net.takers.get(name, ())), {name}
    while waiting:
        node, index = waiting.pop()
        if node.op_type in CARRIERS and (index == 0 or node.op_type == "Concat"):
            if node.output[0] not in seen:
                waiting += net.takers.get(node.output[0], ())
            seen.add(node.output[0])
        elif node.op_type == "Gather" and index == 1 and node.input[0] in net.constants:
            size = net.constants[node.input[0]].dims
            if size:
                yield size[attribute(node, "axis", 0)], node.input[0]
        elif node.op_type == "OneHot" and index == 0 and (depth := net.constant(node.input[1])) is not None:
            yield int(np.atleast_1d(depth)[0]), node.input[1]
        elif node.op_type == "EmbedLayerNormalization" and index < 2 and len(node.input) > 4:
            table = node.input[2 if index == 0 else 4]
            if table in net.constants:
                yield net.constants[table].dims[0], table


def open_dims(model: onnx.ModelProto) -> list[str]:
    """Names of the open dimensions after the first axis."""
    return sorted({dim for value in graph_inputs(model) for dim in inner_dims(value) if isinstance(dim, str)})


def open_sizes(model: onnx.ModelProto) -> Sequence[int]:
    """The sizes to try for open dimensions; one for a graph without."""
    opened = [sum(isinstance(dim, str) for dim in inner_dims(value)) for value in graph_inputs(model)]
    if not any(opened):
        return OPEN_SIZES[:1]
    return OPEN_SIZES if max(opened) > 1 else (*OPEN_SIZES, *SOUND_SIZES)


def inner_dims(value: onnx.ValueInfoProto) -> list[int | str]:
    """Dimensions after the first axis; an open one without a name gets a unique one."""
    return [f"{value.name}.{axis}" if dim == "" else dim for axis, dim in enumerate(dims(value))][1:]


def remedy(problem: object, model: onnx.ModelProto) -> str:
    """How to find rows that run, by what onnxruntime said of those tried: another range helps against a wrong index."""
    if OF_A_VALUE.search(str(problem)):
        return "Name valid values with --range NAME=lo:hi, or give real ones with --samples FILE.npz."
    if open_dims(model):
        sizes = ", ".join(map(str, open_sizes(model)))
        return f"Open dimensions had {sizes} elements. Give rows of a length that runs with --samples FILE.npz."
    return "Give rows that run with --samples FILE.npz."


def random_rows(model: onnx.ModelProto, valid: Mapping[str, Range], *, rows: int, open_dim: int, seed: int = 0) -> Rows:
    """`rows` seeded rows for every input, with `open_dim` elements in each open dimension; raises `Mistake`."""
    rng = np.random.default_rng(seed)
    arrays: dict[str, Array] = {}
    for value in graph_inputs(model):
        shape = [rows, *(open_dim if isinstance(dim, str) else dim for dim in inner_dims(value))]
        data_type = TYPES[value.type.tensor_type.elem_type]
        if math.prod(shape) * BYTES_DRAWN > MOST_BYTES:
            raise Mistake(
                f'input "{value.name}" of shape {shape[1:]} cannot be tried: random values for {rows} rows of it take '
                f"{math.prod(shape) * BYTES_DRAWN / 2**30:.3g} GiB, and the limit is {MOST_BYTES // 2**30}. Correct "
                "the shape and export again, or give --samples FILE.npz."
            )
        if value.name not in valid:
            arrays[value.name] = draw(data_type)(rng, shape)
            continue
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        bounds = valid[value.name]
        drawn = bounds.draw(rng, shape, dtype)
        arrays[value.name] = np.full_like(drawn, open_dim) if bounds.follows else drawn
    return arrays


def read_samples(path: Path, model: onnx.ModelProto) -> Rows:
    """Rows of real inputs from an .npz file with one array for each input; raises `Mistake`."""
    try:
        file = np.load(path)
        if isinstance(file, np.ndarray):
            raise ValueError("it is an .npy file, which holds one array and no name")
        with file:
            arrays = {name: file[name] for name in file.files}
    except Exception as error:  # numpy's, zipfile's and zlib's
        why = getattr(error, "strerror", None) or error
        raise Mistake(
            f"{path}: not a readable .npz file ({why}). Write one with numpy.savez(path, NAME=rows)."
        ) from error
    rows, counts = {}, set()
    for value in graph_inputs(model):
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        wanted = ["rows", *dims(value)[1:]]
        array = arrays.get(value.name)
        if array is None:
            raise Mistake(
                f'{path}: has no array "{value.name}", it has {", ".join(arrays) or "none"}. Add one of shape {wanted}.'
            )
        if array.dtype != dtype and dtype != np.dtype(object):
            raise Mistake(f'{path}: "{value.name}" is {array.dtype}, the model takes {dtype}. Convert it with astype.')
        fixed = [(axis, dim) for axis, dim in enumerate(wanted) if isinstance(dim, int)]
        if array.ndim != len(wanted) or any(array.shape[axis] != dim for axis, dim in fixed):
            raise Mistake(
                f'{path}: "{value.name}" has shape {list(array.shape)}, the model takes {wanted}. Bring its '
                "axes into that order: numpy.moveaxis."
            )
        rows[value.name] = array
        counts.add(len(array))
    if len(counts) != 1 or min(counts) < 2:
        raise Mistake(f"{path}: has {sorted(counts)} rows. A proof needs the same number for each input, 2 or more.")
    return rows
