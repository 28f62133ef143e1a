"""Checks the model configuration against the ONNX graph when the model loads, by the rules of graph_contract.py."""

from collections.abc import Sequence

from graph_contract import Graph, Tensor, faults
from padded_settings import PaddedSettings, check_graph
from tensor_types import Config, ContractError, GraphTensor, graph_shape, triton_type, unsupported

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
    if padded := PaddedSettings.of(config):
        check_graph(config, padded, inputs)
    graph = Graph(inputs=_tensors(inputs), outputs=_tensors(outputs), defaults=_tensors(initializers))
    where = f"unable to load model '{config['name']}', "
    for difference in faults(config, graph):
        raise ContractError(where + difference.refusal)
    if (config.get("model_transaction_policy") or {}).get("decoupled"):
        # Triton accepts no returned response from a Python backend for them.
        raise ContractError(
            f"{where}model_transaction_policy says decoupled, which this backend does not serve: a graph has one "
            "answer for each request. Remove decoupled: true."
        )


def _tensors(tensors: Sequence[GraphTensor]) -> dict[str, Tensor]:
    return {tensor.name: Tensor(type=triton_type(tensor), shape=tuple(graph_shape(tensor))) for tensor in tensors}
