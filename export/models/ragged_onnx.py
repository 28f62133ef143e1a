"""Exports a `Ragged` module to ONNX, with dynamic axes for elements, items and the longest item."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from torch.export import Dim

from export.graph import torch_onnx
from export.graph.recipe import Recipe
from export.models.ragged import Item, Ragged

# Lengths of the items that the exporter traces: all different, none of them 0 or 1.
EXAMPLE = (12, 9, 16)


@dataclass(frozen=True, kw_only=True)
class Names:
    """The tensor names of the file, as in config.pbtxt; with item shapes `longest` is not an input."""

    input: str
    counts: str
    output: str
    longest: str = "LONGEST"


def write(module: Ragged, recipe: Recipe, path: Path, *, names: Names, data_type: torch.dtype) -> None:
    """Export to one ONNX file; `data_type` is the flat tensor's."""
    item = module.item
    step = item.before * item.after
    torch_onnx.write_file(
        module,
        recipe,
        path,
        inputs={
            names.input: torch.zeros(sum(EXAMPLE) * step, dtype=data_type),
            names.counts: torch.tensor(_counts(module), dtype=torch.int32),
            names.longest: torch.zeros(max(EXAMPLE) * step, dtype=torch.int32),
        },
        output_name=names.output,
        dynamic_shapes=(
            {0: step * Dim("total")},
            {0: Dim("items") + 1 if module.counts == "offsets" else Dim("items")},
            {0: step * Dim("longest")},
        ),
    )
    if module.counts == "item_shape":
        _compute_longest(path, names, item)


def _counts(module: Ragged) -> list[int] | list[list[int]]:
    item = module.item
    if module.counts == "item_shape":
        return [[length if dim == -1 else dim for dim in item.shape] for length in EXAMPLE]
    return [item.before * item.after * sum(EXAMPLE[:index]) for index in range(len(EXAMPLE) + 1)]


def _compute_longest(path: Path, names: Names, item: Item) -> None:
    """Let the graph compute `longest` from the item shapes.

    torch needs the padded length as a shape, not as a value. BATCH_MAX_ELEMENT_COUNT_AS_SHAPE does not help: it counts
    a request of several items as one item, and would pad to the sum of their lengths.
    """
    model = onnx.load(path)
    graph, name = model.graph, names.longest
    graph.input.remove(next(value for value in graph.input if value.name == name))
    graph.initializer.append(numpy_helper.from_array(np.array(item.axis), f"{name}.axis"))
    graph.initializer.append(numpy_helper.from_array(np.array([item.before * item.after]), f"{name}.step"))
    nodes = [
        helper.make_node("Gather", [names.counts, f"{name}.axis"], [f"{name}.lengths"], axis=1),
        helper.make_node("ReduceMax", [f"{name}.lengths"], [f"{name}.greatest"], keepdims=1),
        helper.make_node("Cast", [f"{name}.greatest"], [f"{name}.wide"], to=onnx.TensorProto.INT64),
        helper.make_node("Mul", [f"{name}.wide", f"{name}.step"], [f"{name}.elements"]),
        helper.make_node("ConstantOfShape", [f"{name}.elements"], [name]),
    ]
    for node in reversed(nodes):
        graph.node.insert(0, node)
    onnx.checker.check_model(model)
    onnx.save(model, path)
