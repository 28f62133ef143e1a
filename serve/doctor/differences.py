"""What differs between a configuration and its ONNX graph, as the rules of the doctor report it."""

from collections.abc import Iterator

from tritonclient.grpc.model_config_pb2 import ModelInput

from export.graph.signature import Fault
from serve.doctor.configuration import Configuration
from serve.doctor.finding import Edit, Problem


def differences(config: Configuration, code: str) -> Iterator[Problem]:
    """The differences that this rule reports."""
    for fault in config.differences:
        if fault.code == code:
            yield Problem(config.at(*fault.steps), fault.text, fix=_fix(config, fault))


def _fix(config: Configuration, fault: Fault) -> tuple[Edit, ...]:
    """The edit of the field. It must neither lose a comment nor leave a second list of dims."""
    field, tensor = config.document.field(*fault.steps), config.document.value(*fault.steps[:-1])
    if not fault.right or field is None or tensor is None or "#" in config.document.slice(field):
        return ()
    is_only = sum(other.name == field.name for other in tensor.fields or ()) == 1
    return config.document.rewritten(fault.right, *fault.steps) if is_only else ()


def variable_inputs(config: Configuration) -> Iterator[tuple[int, ModelInput]]:
    """Index and declaration of every input whose rows may differ in shape, without ragged ones.

    A -1 that repeats the batch axis (G105) is not of the rows.
    """
    repeated = {fault.steps[:2] for fault in config.differences if fault.code == "G105"}
    for index, tensor in enumerate(config.proto.input):
        dims = tensor.dims[1:] if ("input", index) in repeated else tensor.dims
        if -1 in dims and not tensor.allow_ragged_batch:
            yield index, tensor
