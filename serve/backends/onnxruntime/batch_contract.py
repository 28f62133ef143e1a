"""The contract of `batch_input` and `batch_output`, which the C++ backend does not check.

There a wrong target or type shows at the first request, and a shape that does not fit is read past its end.
"""

from collections.abc import Sequence

from batch_inputs import batch_inputs
from contract_error import ContractError
from tensor_types import (
    ONNX_TYPES,
    Config,
    GraphTensor,
    configured_dims,
    graph_shape,
    name_list,
    shape_text,
    triton_type,
)


def check_batch_inputs(config: Config, inputs: Sequence[GraphTensor]) -> None:
    """Raise `ContractError` unless every batch input is a graph input of its own, of its type and rank."""
    graph = {tensor.name: tensor for tensor in inputs}
    declared = {tensor["name"] for tensor in config["input"]}
    seen: set[str] = set()
    for entry in config.get("batch_input", []):
        if not entry.get("target_name"):
            raise ContractError(
                f"unable to load model '{config['name']}', a batch_input of kind {entry.get('kind')} has no "
                "target_name, so the graph would never get it. Name the graph input that takes it."
            )
    for wanted in batch_inputs(config):
        where = f"unable to load model '{config['name']}', batch input '{wanted.target}' ({wanted.kind})"
        if wanted.target in declared or wanted.target in seen:
            raise ContractError(
                f"{where} is declared twice: a client's input or another batch input has that name. "
                "Remove one; clients must not send batch inputs."
            )
        seen.add(wanted.target)
        if wanted.target not in graph:
            raise ContractError(
                f"{where} is not an input of the graph, so the first request would fail. "
                f"The graph's inputs are: {name_list(inputs)}."
            )
        _check_tensor(where, wanted.data_type, wanted.rank, graph[wanted.target])


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
    """Raise `ContractError` when an open dimension of a batch output has no counterpart in its source input."""
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
