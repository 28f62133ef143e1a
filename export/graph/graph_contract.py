"""What differs between a model's configuration and its ONNX graph: the rules by which the onnxruntime backend loads it.

Copied beside the drop-in backend (serve/vendor.py), so it imports nothing of this project; `signature.check` asks it
for the tools and the doctor. A refusal has the words of Triton's C++ backend (onnxruntime_backend, `ValidateInputs`,
`ValidateOutputs`, `CompareDimsSupported`), so that a web search finds it.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Config = Mapping[str, Any]
"""A configuration, or a part of it, in the JSON form of `ModelConfig`; fields with their default may be missing."""
Steps = tuple[str | int, ...]

RAGGED = "configuration expects model provides input with shape [-1] "
SWITCHES = {"int32_false_true": "TYPE_INT32", "fp32_false_true": "TYPE_FP32", "bool_false_true": "TYPE_BOOL"}
"""The data type of a sequence control by the field that holds its two values."""


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """One graph input or output: Triton's `type`, or ONNX's name of one that Triton does not have, and its `shape`.

    The shape has the batch axis, and -1 for an open dimension. It is () if `ranked` is false: its rank is unknown.
    """

    type: str
    shape: tuple[int, ...]
    ranked: bool = True


@dataclass(frozen=True, kw_only=True)
class Graph:
    """The inputs and outputs of a graph by name; `defaults` are further inputs, which the graph has a value for."""

    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    defaults: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A difference between config.pbtxt and the graph.

    `code` is the doctor's rule, "" if it has none; `steps` are the place in config.pbtxt. `text` says what differs and
    what to write; `server` is what the C++ backend says, where that takes other words. `right` is the text of the field
    as it must be, "" if more than the field has to change.
    """

    code: str
    steps: Steps
    text: str
    server: str = ""
    right: str = ""

    def __str__(self) -> str:
        return self.text

    @property
    def refusal(self) -> str:
        """What the backend says when it refuses the model."""
        return f"{self.server}. {self.text}" if self.server else self.text


@dataclass(frozen=True, kw_only=True)
class Declared:
    """A tensor that config.pbtxt declares at `steps`, and the tensors of the graph that it may name.

    `dims` are what the graph gets, from the `field` "dims" or the "shape" of a reshape; None if the graph's are others
    by design. With `exact` they may not be narrower than the graph's.
    """

    kind: str
    steps: Steps
    name: str
    type: str
    dims: list[int] | None
    graph: Mapping[str, Tensor]
    field: str = "dims"
    exact: bool = False


def faults(config: Config, graph: Graph) -> Iterator[Fault]:
    """Every difference that the backend refuses to load, and some that it would only meet at the first request.

    A configuration without inputs or outputs is completed from the graph, so only what it declares is compared.
    """
    controls = list(_controls(config))
    declared = [*_tensors(config, graph), *_states(config, graph)]
    wrong = [*_control_faults(config, controls, graph), *_unknown(declared), *_batch_inputs(config, graph)]
    yield from _optional(config, graph)
    yield from wrong
    if config.get("input") and not wrong:  # else the right name may be all that is missing
        names = {tensor.name for tensor in declared} | {name for _, name, _ in controls} | made_masks(config)
        names |= {target for entry in config.get("batch_input", ()) for target in entry.get("target_name", ())}
        yield from _missing(graph, names)
    for tensor in declared:
        if tensor.name in tensor.graph:
            yield from _differences(config, tensor, tensor.graph[tensor.name])
    yield from _batch_outputs(config)


def made_masks(config: Config) -> set[str]:
    """The graph's inputs that the backend makes of the lengths of requests (parameter `pad_mask`)."""
    masks = config.get("parameters", {}).get("pad_mask", {}).get("string_value", "")
    return {part.partition("=")[0].strip() for part in masks.split(",")} - {""}


def shape_text(dims: Iterable[int]) -> str:
    """A shape as Triton writes it: [1,-1]."""
    return "[" + ",".join(map(str, dims)) + "]"


def _max_batch_size(config: Config) -> int:
    return int(config.get("max_batch_size", 0))


def _type(declared: Config) -> str:
    return str(declared.get("data_type", "TYPE_INVALID"))


def configured_dims(declared: Config) -> list[int]:
    """The dims of an input or output in the graph: its reshape if it has one, else its dims."""
    reshape = declared.get("reshape")
    return [int(dim) for dim in (declared.get("dims", ()) if reshape is None else reshape.get("shape", ()))]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _tensors(config: Config, graph: Graph) -> Iterator[Declared]:
    """The inputs and outputs."""
    flat = "pad" not in config.get("parameters", {})
    scattered = {target for entry in config.get("batch_output", ()) for target in entry.get("target_name", ())}
    for kind, tensors in (("input", {**graph.defaults, **graph.inputs}), ("output", graph.outputs)):
        for index, tensor in enumerate(config.get(kind, ())):
            name, is_input = tensor.get("name", ""), kind == "input"
            free = (tensor.get("allow_ragged_batch") and flat) if is_input else name in scattered
            yield Declared(
                kind=kind,
                steps=(kind, index),
                name=name,
                type=_type(tensor),
                dims=None if free else configured_dims(tensor),
                graph=tensors,
                field="dims" if tensor.get("reshape") is None else "shape",
                exact=not is_input,
            )


def _states(config: Config, graph: Graph) -> Iterator[Declared]:
    """The inputs and outputs of implicit states."""
    for index, state in enumerate((config.get("sequence_batching") or {}).get("state") or ()):
        for kind, tensors in (("input", graph.inputs), ("output", graph.outputs)):
            yield Declared(
                kind=kind,
                steps=("sequence_batching", "state", index),
                name=state.get(f"{kind}_name", ""),
                type=_type(state),
                dims=configured_dims(state),
                graph=tensors,
            )


def _controls(config: Config) -> Iterator[tuple[Steps, str, str]]:
    """The place, the name and the data type of each tensor that the sequence batcher adds to requests."""
    for index, tensor in enumerate((config.get("sequence_batching") or {}).get("control_input") or ()):
        for control in tensor.get("control", ()):
            switch = next((name for name in SWITCHES if control.get(name)), None)
            data_type = SWITCHES[switch] if switch else _type(control)
            yield ("sequence_batching", "control_input", index), tensor.get("name", ""), data_type


def _control_faults(config: Config, controls: Sequence[tuple[Steps, str, str]], graph: Graph) -> Iterator[Fault]:
    for steps, name, data_type in controls:
        where, provided = f"sequence control '{name}'", graph.inputs.get(name)
        if provided is None:
            text = (
                f"configuration specified {where}, but model does not provide that input. The graph's inputs are: "
                f"{_listed(graph.inputs)}."
            )
        elif (shape := provided.shape[1 if _max_batch_size(config) > 0 else 0 :]) != (1,):
            text = f"{where} in model has dims {shape_text(shape)} but dims [1] is expected. Export it with that shape."
        elif data_type != provided.type:
            text = (
                f"{where}, the model expects data-type {provided.type.removeprefix('TYPE_')} but the model "
                f"configuration specifies data-type {data_type}. Write the graph's type."
            )
        else:
            continue
        yield Fault(code="", steps=steps, text=text)


def _unknown(declared: Sequence[Declared]) -> Iterator[Fault]:
    """Names that the graph does not have, and names that are declared twice."""
    times = Counter((tensor.kind, tensor.name) for tensor in declared if tensor.steps[0] == tensor.kind)
    for tensor in declared:
        count = times.pop((tensor.kind, tensor.name), 1)
        if tensor.name not in tensor.graph:
            text = (
                f"unexpected inference {tensor.kind} '{tensor.name}', allowed {tensor.kind}s are: "
                f"{_listed(tensor.graph)}. Use one of these names, or export the graph with explicit names."
            )
        elif count > 1:
            text = (
                f"{tensor.kind} '{tensor.name}' is declared {count} times, so every request would be refused for its "
                "number of inputs. Declare it once."
            )
        else:
            continue
        yield Fault(code="G102", steps=(*tensor.steps, "name"), text=text)


def _missing(graph: Graph, names: set[str]) -> Iterator[Fault]:
    if missing := graph.inputs.keys() - names:
        count = len(graph.inputs)
        yield Fault(
            code="G101",
            steps=("input",),
            text=f"the graph takes {_listed(missing)}, which is not declared. Declare it as an input, a batch_input, a "
            "mask of pad_mask, a sequence control or a state.",
            server=f"configuration expects {count - len(missing)} inputs, model provides {count}",
        )


def _optional(config: Config, graph: Graph) -> Iterator[Fault]:
    """Inputs that a client may leave out have a default in the graph, and exclude batches.

    The C++ backend only counts: there an input too many hides one that is missing, and each request fails.
    """
    for index, tensor in enumerate(config.get("input", ())):
        name, optional, text = tensor.get("name", ""), bool(tensor.get("optional")), ""
        never = optional and (_max_batch_size(config) > 0 or tensor.get("allow_ragged_batch"))
        if never and _max_batch_size(config) > 0:
            text = f"optional input '{name}' is not supported for models that support batching. Make it required."
        elif never:
            text = f"{RAGGED}for ragged input '{name}', which is not supported for optional input. Make it required."
        elif optional and name in graph.inputs:
            text = f"input '{name}' is optional, and the graph has no default for it. Make it required."
        elif not optional and name in graph.defaults:
            remedy = "Remove it" if _max_batch_size(config) > 0 else "Write optional: true, or remove it"
            text = f"input '{name}' has a default in the graph, so it is not one that has to be sent. {remedy}."
        if text:
            yield Fault(code="G109" if never else "G101", steps=("input", index, "optional"), text=text)


def _batch_inputs(config: Config, graph: Graph) -> Iterator[Fault]:
    """The C++ backend does not compare them: there the first request shows a wrong target, type or rank."""
    inputs = {tensor.get("name", "") for tensor in config.get("input", ())}
    seen = set(inputs)
    for index, entry in enumerate(config.get("batch_input", ())):
        sources = list(entry.get("source_input", ()))
        targets, kind = list(entry.get("target_name", ())), entry.get("kind", "BATCH_ELEMENT_COUNT")
        where = f"batch input '{_listed(targets)}' ({kind})"
        if len(targets) != 1:
            text = f"{where} has {len(targets)} names as its target_name, and needs one. Write one entry for each."
        elif targets[0] in seen:
            text = f"{where} is declared twice: another input has that name. Clients must not send it; remove one."
        elif targets[0] not in graph.inputs:
            text = f"{where} is not an input of the graph. The graph's inputs are: {_listed(graph.inputs)}."
        elif len(sources) != 1 or sources[0] not in inputs:
            text = f"{where} needs one source_input that is an input. It has {_listed(sources)}."
        else:
            text = _batch_input_text(where, entry, graph.inputs[targets[0]])
        seen.update(targets)
        if text:
            yield Fault(code="R312", steps=("batch_input", index), text=text)


def _batch_input_text(where: str, entry: Config, provided: Tensor) -> str:
    """What is wrong with the type or the rank; "" if nothing is."""
    rank = 2 if entry.get("kind") == "BATCH_ITEM_SHAPE" else 1
    if _type(entry) != provided.type:
        return (
            f"{where} has datatype {_type(entry)}, model provides {provided.type}. Triton makes batch inputs as "
            "TYPE_INT32 or TYPE_FP32: let the graph take that type and cast inside it."
        )
    if provided.shape and (len(provided.shape) != rank or provided.shape[0] != -1):
        return (
            f"{where} has {rank} dimension{'s' if rank > 1 else ''} of which the first is open, model provides shape "
            f"{shape_text(provided.shape)}. Export the graph with a dynamic first axis there."
        )
    return ""


def _batch_outputs(config: Config) -> Iterator[Fault]:
    """An open dimension of a batch output takes the size at the same index of its source input, which must have it."""
    batch = 1 if _max_batch_size(config) > 0 else 0
    inputs, outputs = ({t.get("name", ""): t for t in config.get(kind, ())} for kind in ("input", "output"))
    for index, entry in enumerate(config.get("batch_output", ())):
        sources = list(entry.get("source_input", ()))
        for target in entry.get("target_name", ()):
            if target not in outputs or len(sources) != 1 or sources[0] not in inputs:
                text = f"needs the name of an output, and one source_input that is an input. It has {_listed(sources)}."
            else:
                rank = batch + len(configured_dims(inputs[sources[0]]))
                dims = [-1] * batch + configured_dims(outputs[target])
                if -1 not in dims[rank:]:
                    continue
                text = (
                    f"has shape {shape_text(dims)} with the batch dimension, and an open dimension takes the size at "
                    f"the same index of '{sources[0]}', which has only {rank} dimensions. Fix it in the output."
                )
            yield Fault(code="", steps=("batch_output", index), text=f"batch output '{target}' {text}")


def _differences(config: Config, declared: Declared, provided: Tensor) -> Iterator[Fault]:
    """What differs between a tensor of config.pbtxt and the graph's of the same name."""
    if declared.type != provided.type:
        is_known = provided.type.startswith("TYPE_")
        found = "unsupported datatype" if declared.type == "TYPE_INVALID" else "configuration expects datatype"
        remedy = f"Write {provided.type}, or export again." if is_known else "Triton does not have that type."
        yield Fault(
            code="G103",
            steps=(*declared.steps, "data_type"),
            text=f"{found} {declared.type} for {declared.kind} '{declared.name}', model provides {provided.type}. "
            f"{remedy}",
            right=f"data_type: {provided.type}" if is_known else "",
        )
    if declared.dims is not None:
        yield from _shape(_max_batch_size(config), declared, declared.dims, provided)
    elif declared.kind == "input" and provided.shape != (-1,):
        yield Fault(
            code="R305",
            steps=(*declared.steps, "allow_ragged_batch"),
            text=f"input '{declared.name}' is ragged, so the graph gets the elements of all requests as one tensor of "
            f"rank 1, and it takes {shape_text(provided.shape)}. Reshape inside the graph, remove allow_ragged_batch, "
            "or let the backend pad (parameter pad; python -m export.add --variable-length writes it).",
            server=f"{RAGGED} for ragged input '{declared.name}', model provides {shape_text(provided.shape)}",
        )


def _shape(size: int, declared: Declared, dims: list[int], provided: Tensor) -> Iterator[Fault]:
    """What differs between the dims and the graph's shape, of a model with this max_batch_size."""
    shape, where = list(provided.shape), f"{declared.kind} '{declared.name}'"
    if size > 0 and shape and shape[0] != -1:
        yield Fault(
            code="G104",
            steps=("max_batch_size",),
            text=f"{where} has shape {shape_text(shape)} in the graph, without a dynamic batch axis, and "
            f"max_batch_size is {size}. Export with a dynamic first axis, or set max_batch_size: 0.",
            server=f"tensor '{declared.name}': for the model to support batching the shape should have at least 1 "
            f"dimension and the first dimension must be -1; but shape expected by the model is {shape_text(shape)}",
        )
        return
    expected = shape[1:] if size > 0 else shape
    # Triton has no scalars: their dims are all 1, as many as one likes.
    fits = _fits(dims, expected, exact=declared.exact) if shape else all(dim == 1 for dim in dims)
    if fits or not provided.ranked:
        return
    code, why = "G107" if declared.kind == "output" else "G106", f"differ from the graph's {shape_text(expected)}"
    if size > 0 and len(dims) == len(shape) and dims[0] in (-1, 1, size) and _alike(dims[1:], shape[1:]):
        code, why = "G105", "repeat the batch axis, which max_batch_size adds by itself"
    elif size == 0 and len(dims) == len(shape) - 1:
        why = "lack the first axis, which only max_batch_size above 0 would add"
    right, name = _written(expected if shape else [1], declared.field), declared.field
    yield Fault(
        code=code,
        steps=(*declared.steps, *(["reshape"] if name == "shape" else []), name),
        text=f"{where}: the {name} {shape_text(dims)} {why}. Write {right}.",
        server=_shape_refusal(size, declared.name, dims, shape),
        right=right if name == "dims" else "",
    )


def _shape_refusal(size: int, name: str, dims: list[int], shape: list[int]) -> str:
    if not shape:
        return (
            f"scalar tensor '{name}', should only provide 1 in the model configuration when the model doesn't support "
            f"batching. Model configuration provided: {shape_text(dims)}"
        )
    full = [-1, *dims] if size > 0 else dims
    batch = "an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, making "
    specified = f"({batch}complete shape {shape_text(full)})" if size > 0 else f"(shape {shape_text(full)})"
    return (
        f"tensor '{name}': the model expects {len(shape)} dimensions (shape {shape_text(shape)}) but the model "
        f"configuration specifies {len(full)} dimensions {specified}"
    )


def _written(shape: list[int], name: str) -> str:
    """The shape as the text of `dims`, or of the `shape` of a reshape; the server refuses empty dims."""
    if not shape and name == "dims":
        return "dims: [ 1 ] reshape { shape: [ ] }"
    return f"{name}: [ {', '.join(map(str, shape))} ]"


def _fits(dims: list[int], expected: list[int], *, exact: bool) -> bool:
    """Whether configured dims fit the graph's: equal, or, unless `exact`, a number for an open dimension."""
    return len(dims) == len(expected) and all(
        configured == dim or (dim == -1 and not exact) for configured, dim in zip(dims, expected, strict=True)
    )


def _alike(dims: list[int], shape: list[int]) -> bool:
    return all(ours == theirs or -1 in (ours, theirs) for ours, theirs in zip(dims, shape, strict=True))
