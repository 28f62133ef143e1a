"""Changes that keep a graph's answers, so that it loads, and Triton can serve it."""

from collections.abc import Iterator

import onnx

from export.graph.onnx_graph import attribute, dims, graph_inputs, label, rename_inputs

# What StringNormalizer takes without an attribute, and which few servers have installed.
ENGLISH, EVERYWHERE = "en_US", "C.UTF-8"
MOST_CLASSES = 20


def repaired(model: onnx.ModelProto) -> tuple[str, ...]:
    """Change `model` in place; a line for each change that its user has to know."""
    _open_negative_dimensions(model)
    return (*_without_dictionaries(model), *_with_any_locale(model), *_unique_names(model))


def _open_negative_dimensions(model: onnx.ModelProto) -> None:
    """Some exporters write an open dimension as -1. onnxruntime takes any negative number so."""
    for value in [*model.graph.input, *model.graph.output, *model.graph.value_info]:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_value < 0:
                dim.ClearField("dim_value")


def _without_dictionaries(model: onnx.ModelProto) -> Iterator[str]:
    """Take off ZipMap, with which skl2onnx and onnxmltools make a dictionary for each row."""
    graph = model.graph
    for node in [node for node in graph.node if node.op_type == "ZipMap"]:
        output = next((value for value in graph.output if value.name == node.output[0]), None)
        if output is None:
            continue
        old, tensor = output.name, node.input[0]
        classes = attribute(node, "classlabels_int64s") or attribute(node, "classlabels_strings") or []
        first = next((dims(value)[0] for value in graph_inputs(model) if dims(value)), "")
        shape = [first or None, len(classes)]
        output.CopyFrom(onnx.helper.make_tensor_value_info(tensor, onnx.TensorProto.FLOAT, shape))
        graph.node.remove(node)
        names = [name.decode() if isinstance(name, bytes) else str(name) for name in classes]
        some = ", ".join([*names[:MOST_CLASSES], *(["..."] if len(names) > MOST_CLASSES else [])])
        yield (
            f'output "{old}" was a dictionary for each row (ZipMap): the tensor before it, "{tensor}", is the output. '
            f"Its columns are the classes {some}"
        )


def _with_any_locale(model: onnx.ModelProto) -> Iterator[str]:
    """Use a locale that every Linux has: onnxruntime refuses the graph where that of StringNormalizer is missing."""
    for node in model.graph.node:
        entry = next((entry for entry in node.attribute if entry.name == "locale"), None)
        old = entry.s.decode() if entry else f"{ENGLISH}.UTF-8"
        if node.op_type != "StringNormalizer" or not old.startswith(ENGLISH):
            continue
        if entry:
            node.attribute.remove(entry)
        node.attribute.append(onnx.helper.make_attribute("locale", EVERYWHERE))
        yield f"{label(node)} changes case by the locale {EVERYWHERE} in place of {old}, to the same letters"


def _unique_names(model: onnx.ModelProto) -> Iterator[str]:
    """Rename the outputs whose name an input, another node or another output has already."""
    graph = model.graph
    defined = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    taken = defined | {name for node in graph.node for name in node.output}
    renamed: dict[str, str] = {}
    for node in graph.node:
        rename_inputs(node, renamed)
        for index, name in enumerate(node.output):
            if name and name in defined:
                renamed[name] = node.output[index] = _free(name, taken)
            defined.add(name)
    served = {value.name for value in graph.input}
    for value in graph.output:
        old = value.name
        value.name = renamed.get(old, old)
        if value.name in served:
            copy = _free(old, taken)
            graph.node.append(onnx.helper.make_node("Identity", [value.name], [copy]))
            value.name = copy
        served.add(value.name)
        if value.name != old:
            yield f'output "{old}" has the name of another tensor of the graph, so it is served as "{value.name}"'


def _free(name: str, taken: set[str]) -> str:
    """A name like `name` that no tensor has; it is taken from then on."""
    free = next(f"{name}_{number}" for number in range(2, len(taken) + 3) if f"{name}_{number}" not in taken)
    taken.add(free)
    return free
