"""Checks the control tensors of a sequence batcher against the graph."""

from collections.abc import Sequence

from tensor_types import ONNX_TYPES, Config, ContractError, GraphTensor, graph_shape, name_list, shape_text

CONTROLS = ("CONTROL_SEQUENCE_START", "CONTROL_SEQUENCE_END", "CONTROL_SEQUENCE_READY", "CONTROL_SEQUENCE_CORRID")
SWITCHES = {
    "int32_false_true": "TYPE_INT32",
    "fp32_false_true": "TYPE_FP32",
    "bool_false_true": "TYPE_BOOL",
}


def check_controls(config: Config, inputs: Sequence[GraphTensor]) -> int:
    """The number of control tensors that Triton adds to each request.

    Raises `ContractError` for a control tensor that the graph does not have.
    """
    controls = _controls(config)
    for name, data_type in controls.values():
        _check_control(config, name, data_type, inputs)
    return len(controls)


def _controls(config: Config) -> dict[str, tuple[str, str]]:
    """Tensor name and data type by kind of control."""
    controls = {}
    for tensor in config.get("sequence_batching", {}).get("control_input", []):
        for control in tensor.get("control", []):
            switch = next((kind for kind in SWITCHES if control.get(kind)), None)
            kind = control.get("kind", CONTROLS[0])
            data_type = SWITCHES[switch] if switch else control.get("data_type", "TYPE_INVALID")
            controls[kind] = (tensor["name"], data_type)
    return controls


def _check_control(config: Config, name: str, data_type: str, inputs: Sequence[GraphTensor]) -> None:
    where = f"unable to load model '{config['name']}', sequence control '{name}'"
    provided = next((tensor for tensor in inputs if tensor.name == name), None)
    if provided is None:
        raise ContractError(
            f"configuration specified sequence control '{name}', but model does not provide that input. "
            f"The graph's inputs are: {name_list(inputs)}."
        )
    shape = graph_shape(provided)[1 if config["max_batch_size"] > 0 else 0 :]
    if shape != [1]:
        raise ContractError(
            f"{where} in model has dims {shape_text(shape)} but dims [1] is expected. Export the graph with that shape."
        )
    if ONNX_TYPES.get(data_type) != provided.type:
        raise ContractError(
            f"{where}, the model expects data-type {provided.type.removeprefix('tensor(').removesuffix(')').upper()} "
            f"but the model configuration specifies data-type {data_type}. Write the graph's type."
        )
