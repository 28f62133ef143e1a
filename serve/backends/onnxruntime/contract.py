"""Checks the model configuration against the ONNX graph when the model loads.

Order and wording are those of Triton's C++ backend (onnxruntime_backend, `ValidateInputs`, `ValidateOutputs`,
`CompareDimsSupported`), so that a web search finds the message. One more sentence says what to do.
"""

from collections import Counter
from collections.abc import Sequence

import sequences
import states
from batch_contract import check_batch_inputs, check_batch_outputs
from padded_settings import PaddedSettings, check_graph
from tensor_types import (
    ONNX_TYPES,
    Config,
    ContractError,
    GraphTensor,
    configured_dims,
    graph_shape,
    name_list,
    shape_text,
    triton_type,
    unsupported,
)

__all__ = ["ContractError", "check"]


def check(
    config: Config,
    inputs: Sequence[GraphTensor],
    outputs: Sequence[GraphTensor],
    initializers: Sequence[GraphTensor] = (),
) -> None:
    """Raise `ContractError` with the first difference between the configuration and the graph.

    `inputs` and `outputs` are the graph's. `initializers` are its inputs with a default value, which the configuration
    may declare as optional inputs. The configuration may omit outputs, but no inputs.
    """
    if fault := unsupported([*inputs, *outputs]):
        raise ContractError(fault)
    controls = sequences.check_controls(config, inputs)
    padded = PaddedSettings.of(config)
    _check_count(config, inputs, controls + len(padded.masks if padded else ()))
    if padded:
        check_graph(config, padded, inputs)
    for tensor in config["input"]:
        _check_input(config, tensor, [*inputs, *initializers], padded=padded is not None)
        _check_default(config, tensor, initializers)
    batch_outputs = {target for entry in config.get("batch_output", []) for target in entry["target_name"]}
    for tensor in config["output"]:
        provided = _find(config, tensor, outputs, kind="output")
        if tensor["name"] not in batch_outputs:
            _check_shape(config, tensor, provided, exact=True)
    # The following checks are ours. The C++ backend loads such models, and then fails or answers wrongly.
    _check_duplicates(config, "input")
    _check_duplicates(config, "output")
    check_batch_inputs(config, inputs)
    check_batch_outputs(config)
    _check_states(config, inputs, outputs)
    _refuse_decoupled(config)


def _refuse_decoupled(config: Config) -> None:
    """Refuse decoupled models: Triton accepts no returned response from a Python backend for them."""
    if (config.get("model_transaction_policy") or {}).get("decoupled"):
        raise ContractError(
            f"unable to load model '{config['name']}', model_transaction_policy says decoupled, which this backend "
            "does not serve: a graph has one answer for each request. Remove decoupled: true."
        )


def _check_states(config: Config, inputs: Sequence[GraphTensor], outputs: Sequence[GraphTensor]) -> None:
    """Check the input and the output of each state."""
    for name, graph, kind in (("input_name", inputs, "input"), ("output_name", outputs, "output")):
        for tensor in states.tensors_of(config, name):
            _check_shape(config, tensor, _find(config, tensor, graph, kind=kind), exact=False)


def _check_count(config: Config, inputs: Sequence[GraphTensor], made: int) -> None:
    """Compare the numbers of inputs; `made` are those that neither clients send nor the sections below declare."""
    required = [tensor for tensor in config["input"] if not tensor.get("optional")]
    batch_inputs = config.get("batch_input", [])
    expected = len(required) + len(batch_inputs) + made + len(states.configured(config))
    if len(inputs) == expected:
        return
    several = any(len(entry["target_name"]) > 1 for entry in batch_inputs)
    advice = " A batch_input counts once however many target_name it has: write one entry for each." if several else ""
    raise ContractError(
        f"unable to load model '{config['name']}', configuration expects {expected} inputs, model provides "
        f"{len(inputs)}. The graph's inputs are: {name_list(inputs)}; declare each of them once, as an input, a "
        f"batch_input, a mask of pad_mask, a sequence control or a state.{advice}"
    )


def _check_input(config: Config, tensor: Config, graph: Sequence[GraphTensor], *, padded: bool) -> None:
    model, name = config["name"], tensor["name"]
    ragged, optional = tensor.get("allow_ragged_batch"), tensor.get("optional")
    if optional and config["max_batch_size"] > 0:
        raise ContractError(
            f"unable to load model '{model}', optional input '{name}' is not supported for models "
            "that support batching. Make the input required, or set max_batch_size: 0."
        )
    provided = _find(config, tensor, graph, kind="input")
    if not ragged or (padded and not optional):
        _check_shape(config, tensor, provided, exact=False)
        return
    wanted = f"unable to load model '{model}', configuration expects model provides input with shape [-1] "
    if optional:
        raise ContractError(
            f"{wanted}for ragged input '{name}', which is not supported for optional input. "
            "Remove allow_ragged_batch or make the input required."
        )
    if graph_shape(provided) != [-1]:
        raise ContractError(
            f"{wanted} for ragged input '{name}', model provides {shape_text(graph_shape(provided))}. The graph gets "
            "the elements of all requests as one tensor of rank 1: reshape inside it, remove allow_ragged_batch, or "
            "let the backend pad (parameter pad; python -m export.add --variable-length writes it)."
        )


def _check_default(config: Config, tensor: Config, initializers: Sequence[GraphTensor]) -> None:
    """The C++ backend only counts: there an input too many hides one that is missing, and each request fails."""
    has_default = any(provided.name == tensor["name"] for provided in initializers)
    if has_default != bool(tensor.get("optional")):
        found, remedy = ("a", "Write optional: true") if has_default else ("no", "Make it required")
        raise ContractError(
            f"unable to load model '{config['name']}', input '{tensor['name']}' has {found} default in the graph. "
            f"{remedy}, or remove it."
        )


def _find(config: Config, tensor: Config, graph: Sequence[GraphTensor], *, kind: str) -> GraphTensor:
    """The graph's tensor for a declared tensor, after a check of its name and type."""
    model, name = config["name"], tensor["name"]
    provided = next((node for node in graph if node.name == name), None)
    if provided is None:
        raise ContractError(
            f"unexpected inference {kind} '{name}', allowed {kind}s are: {name_list(graph)}. "
            f"Rename the {kind} in config.pbtxt or export the graph with explicit names."
        )
    if tensor["data_type"] not in ONNX_TYPES:
        raise ContractError(
            f"unsupported datatype {tensor['data_type']} for {kind} '{name}' for model '{model}'. "
            f"The graph says {triton_type(provided)}; write that."
        )
    if ONNX_TYPES[tensor["data_type"]] != provided.type:
        raise ContractError(
            f"unable to load model '{model}', configuration expects datatype {tensor['data_type']} for {kind} "
            f"'{name}', model provides {triton_type(provided)}. "
            "Write the graph's type into config.pbtxt or export again."
        )
    return provided


def _check_shape(config: Config, tensor: Config, provided: GraphTensor, *, exact: bool) -> None:
    dims = configured_dims(tensor)
    if provided.shape:
        _check_dims(config, tensor["name"], graph_shape(provided), dims, exact=exact)
    elif any(dim != 1 for dim in dims):
        raise ContractError(
            f"unable to load model '{config['name']}', scalar tensor '{tensor['name']}', should only provide 1 in the "
            "model configuration when the model doesn't support batching. Model configuration provided: "
            f"{shape_text(dims)}. Write dims: [ 1 ]."
        )


def _check_dims(config: Config, name: str, shape: list[int], dims: list[int], *, exact: bool) -> None:
    """`shape` is the graph's, with -1 for an open dimension; `dims` are the configuration's, without the batch axis."""
    where = f"model '{config['name']}', tensor '{name}'"
    batching = config["max_batch_size"] > 0
    if batching and shape[0] != -1:
        raise ContractError(
            f"{where}: for the model to support batching the shape should have at least 1 dimension and the first "
            f"dimension must be -1; but shape expected by the model is {shape_text(shape)}. "
            "Export again with a dynamic first axis, or set max_batch_size: 0."
        )
    full = [-1, *dims] if batching else dims
    fits = len(shape) == len(full) and all(
        configured == dim or (dim == -1 and not exact) for configured, dim in zip(full, shape, strict=True)
    )
    if fits:
        return
    explained = (
        "dimensions (an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, "
        f"making complete shape {shape_text(full)})"
        if batching
        else f"dimensions (shape {shape_text(full)})"
    )
    expected = shape[1:] if batching else shape
    raise ContractError(
        f"{where}: the model expects {len(shape)} dimensions (shape {shape_text(shape)}) but the model configuration "
        f"specifies {len(full)} {explained}. Write dims: [ {', '.join(map(str, expected))} ]."
    )


def _check_duplicates(config: Config, kind: str) -> None:
    for name, times in Counter(tensor["name"] for tensor in config[kind]).items():
        if times > 1:
            raise ContractError(
                f"unable to load model '{config['name']}', {kind} '{name}' is declared {times} times, so every "
                "request would be refused for its number of inputs. Declare it once."
            )
