"""Completes a configuration from the graph, as the C++ backend does (`AutoCompleteConfig`).

A configuration with inputs and outputs is not changed, so a model with max_batch_size and no dynamic_batching stays as
written.
"""

from collections.abc import Sequence

from tensor_types import TRITON_TYPES, Config, ContractError, GraphTensor, graph_shape, unsupported


def is_complete(config: Config) -> bool:
    """Whether the configuration has inputs and outputs; batch inputs count as inputs."""
    return bool((config.get("input") or config.get("batch_input")) and config.get("output"))


def complete(
    config: Config, inputs: Sequence[GraphTensor], outputs: Sequence[GraphTensor], *, default_max_batch_size: int
) -> str | None:
    """Add a missing max_batch_size, dynamic_batching, inputs and outputs to `config`.

    Returns a warning for the log, in the C++ backend's words, or None. Raises `ContractError` if the configuration has
    a max_batch_size and the graph has no batch axis.
    """
    if fault := unsupported([*inputs, *outputs]):
        raise ContractError(fault)
    notice = _complete_batching(config, [*inputs, *outputs], default_max_batch_size)
    if not (config.get("input") or config.get("batch_input")):
        config["input"] = [_declared(config, tensor) for tensor in inputs]
    if not config.get("output"):
        config["output"] = [_declared(config, tensor) for tensor in outputs]
    return notice


def _complete_batching(config: Config, tensors: Sequence[GraphTensor], default: int) -> str | None:
    name = config["name"]
    batches = all(graph_shape(tensor)[:1] == [-1] for tensor in tensors)
    if not batches:
        if config["max_batch_size"] != 0:
            fixed = next(tensor for tensor in tensors if graph_shape(tensor)[:1] != [-1])
            raise ContractError(
                f"autofill failed for model '{name}': model does not support batching while non-zero max_batch_size "
                f"is specified. '{fixed.name}' has shape {graph_shape(fixed)}, whose first dimension is not -1: "
                "export with a dynamic batch axis, or set max_batch_size: 0."
            )
        return None
    notice = None
    if config["max_batch_size"] == 0:
        config["max_batch_size"] = default
        notice = (
            f"autofilled max_batch_size to {default} for model '{name}' since batching is supporrted but no "
            "max_batch_size is specified in model configuration. Must specify max_batch_size to utilize autofill with "
            "a larger max batch size"
        )
    if config["max_batch_size"] > 1 and not ("sequence_batching" in config or "dynamic_batching" in config):
        config["dynamic_batching"] = {}
    return notice


def _declared(config: Config, tensor: GraphTensor) -> Config:
    batching = config["max_batch_size"] > 0
    dims = graph_shape(tensor)[1 if batching else 0 :]
    declared: Config = {"name": tensor.name, "data_type": TRITON_TYPES.get(tensor.type, "TYPE_INVALID")}
    if not dims and batching:
        # One value per row: the client sends [rows, 1], the graph takes [rows].
        declared["reshape"] = {"shape": []}
    declared["dims"] = dims or [1]
    return declared
