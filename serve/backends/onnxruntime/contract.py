"""The contract between an ONNX graph and its Triton model configuration, checked when the model loads.

The wording is that of Triton's C++ backend (onnxruntime_backend, `ValidateInputs`, `ValidateOutputs`,
`CompareDimsSupported`), so that a search for the message finds its threads; one sentence of what to do follows.
"""

from collections.abc import Sequence
from typing import Any, Protocol

# Triton's data types and what onnxruntime calls them.
ONNX_TYPES = {
    "TYPE_BOOL": "tensor(bool)",
    "TYPE_UINT8": "tensor(uint8)",
    "TYPE_UINT16": "tensor(uint16)",
    "TYPE_UINT32": "tensor(uint32)",
    "TYPE_UINT64": "tensor(uint64)",
    "TYPE_INT8": "tensor(int8)",
    "TYPE_INT16": "tensor(int16)",
    "TYPE_INT32": "tensor(int32)",
    "TYPE_INT64": "tensor(int64)",
    "TYPE_FP16": "tensor(float16)",
    "TYPE_FP32": "tensor(float)",
    "TYPE_FP64": "tensor(double)",
    "TYPE_STRING": "tensor(string)",
}
TRITON_TYPES = {onnx: triton for triton, onnx in ONNX_TYPES.items()}

Config = dict[str, Any]
"""A model configuration as Triton hands it to a Python model: the JSON form of `ModelConfig`."""


class ContractError(ValueError):
    """The graph and the configuration disagree, so the model must not load."""


class GraphTensor(Protocol):
    """What this module needs of an `onnxruntime.NodeArg`."""

    @property
    def name(self) -> str:
        """The tensor's name in the graph."""

    @property
    def shape(self) -> Sequence[int | str | None]:
        """Its dimensions; a name or None where the graph leaves one open."""

    @property
    def type(self) -> str:
        """Its type in onnxruntime's words, for example `tensor(float)`."""


def check(config: Config, inputs: Sequence[GraphTensor], outputs: Sequence[GraphTensor]) -> None:
    """Raise `ContractError` with the first way in which the configuration disagrees with the graph.

    Outputs may be a subset of the graph's; inputs must be all of them.
    """
    model = config["name"]
    declared = config["input"]
    for tensor in declared:
        if tensor.get("allow_ragged_batch"):
            raise ContractError(
                f"unable to load model '{model}', ragged input '{tensor['name']}' needs the C++ onnxruntime "
                "backend: this backend serves dense batches only. Pad in the client and remove "
                "allow_ragged_batch, or serve the repository with NVIDIA's image."
            )
        if tensor.get("optional") and config["max_batch_size"] > 0:
            raise ContractError(
                f"unable to load model '{model}', optional input '{tensor['name']}' is not supported for models "
                "that support batching. Make the input required, or set max_batch_size: 0."
            )
    required = [tensor for tensor in declared if not tensor.get("optional")]
    if len(inputs) != len(required):
        raise ContractError(
            f"unable to load model '{model}', configuration expects {len(required)} inputs, model provides "
            f"{len(inputs)}. The graph's inputs are: {_names(inputs)}; declare each of them once."
        )
    for tensor in declared:
        _check_tensor(config, tensor, inputs, kind="input")
    for tensor in config["output"]:
        _check_tensor(config, tensor, outputs, kind="output")


def _check_tensor(config: Config, tensor: Config, graph: Sequence[GraphTensor], *, kind: str) -> None:
    model, name = config["name"], tensor["name"]
    provided = next((node for node in graph if node.name == name), None)
    if provided is None:
        raise ContractError(
            f"unexpected inference {kind} '{name}', allowed {kind}s are: {_names(graph)}. "
            f"Rename the {kind} in config.pbtxt or export the graph with explicit names."
        )
    if ONNX_TYPES.get(tensor["data_type"]) != provided.type:
        raise ContractError(
            f"unable to load model '{model}', configuration expects datatype {tensor['data_type']} for {kind} "
            f"'{name}', model provides {TRITON_TYPES.get(provided.type, provided.type)}. "
            "Write the graph's type into config.pbtxt or export again."
        )
    dims = [int(dim) for dim in (tensor["reshape"]["shape"] if tensor.get("reshape") else tensor["dims"])]
    shape = [dim if isinstance(dim, int) else -1 for dim in provided.shape]
    if shape:
        _check_dims(config, name, shape, dims, exact=kind == "output")
    elif any(dim != 1 for dim in dims):
        raise ContractError(
            f"unable to load model '{model}', scalar tensor '{name}', should only provide 1 in the model "
            f"configuration when the model doesn't support batching. Model configuration provided: {_shape(dims)}. "
            "Write dims: [ 1 ]."
        )


def _check_dims(config: Config, name: str, shape: list[int], dims: list[int], *, exact: bool) -> None:
    """`shape` is the graph's with -1 for an open dimension; `dims` the configuration's, without the batch axis."""
    where = f"model '{config['name']}', tensor '{name}'"
    batching = config["max_batch_size"] > 0
    if batching and shape[0] != -1:
        raise ContractError(
            f"{where}: for the model to support batching the shape should have at least 1 dimension and the first "
            f"dimension must be -1; but shape expected by the model is {_shape(shape)}. "
            "Export again with a dynamic first axis, or set max_batch_size: 0."
        )
    full = [-1, *dims] if batching else dims
    fits = len(shape) == len(full) and all(
        ours == theirs or (theirs == -1 and not exact) for ours, theirs in zip(full, shape, strict=True)
    )
    if fits:
        return
    explained = (
        "dimensions (an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, "
        f"making complete shape {_shape(full)})"
        if batching
        else f"dimensions (shape {_shape(full)})"
    )
    expected = shape[1:] if batching else shape
    raise ContractError(
        f"{where}: the model expects {len(shape)} dimensions (shape {_shape(shape)}) but the model configuration "
        f"specifies {len(full)} {explained}. Write dims: [ {', '.join(map(str, expected))} ]."
    )


def _names(tensors: Sequence[GraphTensor]) -> str:
    return ", ".join(sorted(tensor.name for tensor in tensors))


def _shape(dims: Sequence[int]) -> str:
    return "[" + ",".join(map(str, dims)) + "]"
