"""Checks `batch_input` and `batch_output` against the graph when the model loads.

The C++ backend does not: there the first request shows a wrong target or type, and a wrong shape is read past its end.
"""

from collections.abc import Sequence

from batch_inputs import batch_inputs
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
)


def check_batch_inputs(config: Config, inputs: Sequence[GraphTensor]) -> None:
    """Raise `ContractError` unless every batch input has its own graph input, with the same type and rank."""
    graph = {tensor.name: tensor for tensor in inputs}
    declared = {tensor["name"] for tensor in config["input"]}
    seen: set[str] = set()
    for entry in config.get("batch_input", []):
        if not entry.get("target_name"):
            raise ContractError(
                f"unable to load model '{config['name']}', a batch_input of kind {entry.get('kind')} has no "
                "target_name, so the graph would never get it. Name the graph input that takes it."
            )
    for batch_input in batch_inputs(config):
        where = f"unable to load model '{config['name']}', batch input '{batch_input.target}' ({batch_input.kind})"
        if batch_input.target in declared or batch_input.target in seen:
            raise ContractError(
                f"{where} is declared twice: a client's input or another batch input has that name. "
                "Remove one; clients must not send batch inputs."
            )
        seen.add(batch_input.target)
        if batch_input.target not in graph:
            raise ContractError(
                f"{where} is not an input of the graph, so the first request would fail. "
                f"The graph's inputs are: {name_list(inputs)}."
            )
        _check_tensor(where, batch_input.data_type, batch_input.rank, graph[batch_input.target])


def _check_tensor(where: str, data_type: str, rank: int, provided: GraphTensor) -> None:
    if ONNX_TYPES[data_type] != provided.type:
        raise ContractError(
            f"{where} has datatype {data_type}, model provides {triton_type(provided)}. Triton makes batch inputs "
            "as TYPE_INT32 or TYPE_FP32: let the graph take that type and cast inside it."
        )
    shape = graph_shape(provided)
    if shape and (len(shape) != rank or shape[0] != -1):
        raise ContractError(
            f"{where} has {rank} dimension{'s' if rank > 1 else ''} of which the first is open, model provides shape "
            f"{shape_text(shape)}. Export the graph with a dynamic first axis there."
        )


def check_batch_outputs(config: Config) -> None:
    """Raise `ContractError` if an open dimension of a batch output has no counterpart in its source input."""
    batch = 1 if config["max_batch_size"] > 0 else 0
    inputs = {tensor["name"]: tensor for tensor in config["input"]}
    outputs = {tensor["name"]: tensor for tensor in config["output"]}
    for entry in config.get("batch_output", []):
        source = inputs[entry["source_input"][0]]
        rank = batch + len(configured_dims(source))
        for target in entry["target_name"]:
            dims = [-1] * batch + configured_dims(outputs[target])
            if any(dim == -1 and index >= rank for index, dim in enumerate(dims)):
                raise ContractError(
                    f"unable to load model '{config['name']}', batch output '{target}' has shape {shape_text(dims)} "
                    f"with the batch dimension, and an open dimension takes the size at the same index of "
                    f"'{source['name']}', which has only {rank} dimensions. Fix that dimension of the output."
                )
