"""S7: the control tensors of the sequence batcher."""

from collections import Counter
from collections.abc import Iterator

from tritonclient.grpc.model_config_pb2 import DataType, ModelSequenceBatching

from serve.doctor.configuration import Configuration
from serve.doctor.finding import Problem, Severity
from serve.doctor.rule import Example, rule

Control = ModelSequenceBatching.Control
SWITCHES = ("int32_false_true", "fp32_false_true", "bool_false_true")
IDENTIFIERS = (
    DataType.TYPE_UINT64,
    DataType.TYPE_INT64,
    DataType.TYPE_UINT32,
    DataType.TYPE_INT32,
    DataType.TYPE_STRING,
)
START = "kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ]"
END = "kind: CONTROL_SEQUENCE_END int32_false_true: [ 0, 1 ]"
IDENTIFIER = "kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64"


def _controlled(control: str = START, name: str = "START", more: str = "") -> Example:
    return Example(
        f'backend: "python"\nsequence_batching {{ control_input [ {{ name: "{name}" control [ {{ {control} }} ] }}'
        f"{more} ] }}"
    )


def _controls(config: Configuration) -> Iterator[tuple[int, int, str, ModelSequenceBatching.Control]]:
    for index, tensor in enumerate(config.proto.sequence_batching.control_input):
        for number, control in enumerate(tensor.control):
            yield index, number, tensor.name, control


def _word(control: ModelSequenceBatching.Control) -> str:
    return str(Control.Kind.Name(control.kind))


@rule(
    "S701",
    Severity.ERROR,
    bad=_controlled("kind: CONTROL_SEQUENCE_START"),
    good=_controlled(),
    refused=(
        "sequence batching must specify either 'int32_false_true', 'fp32_false_true' or "
        "'bool_false_true' for CONTROL_SEQUENCE_START"
    ),
)
def controls_have_values(config: Configuration) -> Iterator[Problem]:
    """A control for start, end or ready has no values for false and true.

    Source: core, model_config_utils.cc (GetBooleanSequenceControlProperties).
    Fix: write the pair in the type that the model takes, for example fp32_false_true: [ 0, 1 ].
    """
    for index, number, name, control in _controls(config):
        if control.kind != Control.CONTROL_SEQUENCE_CORRID and not any(getattr(control, switch) for switch in SWITCHES):
            yield Problem(
                config.at("sequence_batching", "control_input", index, "control", number),
                f'control "{name}" ({_word(control)}) has no values for false and true: the model cannot load. '
                "Add fp32_false_true: [ 0, 1 ], or the pair of another type.",
            )


@rule(
    "S702",
    Severity.ERROR,
    bad=_controlled(f"{START} fp32_false_true: [ 0, 1 ]"),
    good=_controlled(),
    refused=(
        "sequence batching specifies more than one from 'int32_false_true', 'fp32_false_true' and 'bool_false_true'"
    ),
)
def controls_have_one_type(config: Configuration) -> Iterator[Problem]:
    """A control has values for false and true in several types.

    Source: core, model_config_utils.cc (GetBooleanSequenceControlProperties).
    Fix: keep the pair of the type that the model takes.
    """
    for index, number, name, control in _controls(config):
        if sum(bool(getattr(control, switch)) for switch in SWITCHES) > 1:
            yield Problem(
                config.at("sequence_batching", "control_input", index, "control", number),
                f'control "{name}" ({_word(control)}) has values in several types: the model cannot load. Keep one.',
            )


@rule(
    "S703",
    Severity.ERROR,
    bad=_controlled("kind: CONTROL_SEQUENCE_START int32_false_true: [ 1 ]"),
    good=_controlled(),
    refused="sequence batching control 'int32_false_true' must have exactly 2 entries",
)
def controls_have_two_values(config: Configuration) -> Iterator[Problem]:
    """A control does not have exactly two values, one for false and one for true.

    Source: core, model_config_utils.cc (GetBooleanSequenceControlProperties).
    Fix: write both, false first.
    """
    for index, number, name, control in _controls(config):
        for switch in SWITCHES:
            if (values := list(getattr(control, switch))) and len(values) != 2:
                yield Problem(
                    config.at("sequence_batching", "control_input", index, "control", number, switch),
                    f'{switch} of control "{name}" is {values}, but needs two values, for false and true: the model '
                    "cannot load. Write [ 0, 1 ].",
                )


@rule(
    "S704",
    Severity.ERROR,
    bad=_controlled(more=f', {{ name: "AGAIN" control [ {{ {START} }} ] }}'),
    good=_controlled(more=f', {{ name: "END" control [ {{ {END} }} ] }}'),
    refused="sequence batching specifies multiple CONTROL_SEQUENCE_START tensors",
)
def each_control_is_sent_once(config: Configuration) -> Iterator[Problem]:
    """Two control tensors have the same kind.

    A control without `kind` is a start.

    Source: core, model_config_utils.cc (GetBooleanSequenceControlProperties).
    Fix: keep one of them.
    """
    kinds = Counter(control.kind for *_, control in _controls(config))
    seen = set()
    for index, number, name, control in _controls(config):
        if kinds[control.kind] > 1 and control.kind in seen:
            yield Problem(
                config.at("sequence_batching", "control_input", index, "control", number),
                f'control "{name}" is {_word(control)} as another control is: the model cannot load. Remove one of '
                "them.",
            )
        seen.add(control.kind)


@rule(
    "S705",
    Severity.ERROR,
    bad=_controlled(more=f', {{ name: "START" control [ {{ {END} }} ] }}'),
    good=_controlled(more=f', {{ name: "END" control [ {{ {END} }} ] }}'),
    refused="sequence batching control tensor 'START' is specified for multiple control kinds",
)
def each_control_has_its_tensor(config: Configuration) -> Iterator[Problem]:
    """One tensor has two kinds of control.

    Two controls under one `control_input` load (measured), and then the tensor is sent twice.

    Source: core, model_config_utils.cc (GetBooleanSequenceControlProperties).
    Fix: give each control a tensor of its own.
    """
    seen: dict[str, str] = {}
    for index, number, name, control in _controls(config):
        if name and name in seen:
            yield Problem(
                config.at("sequence_batching", "control_input", index, "control", number),
                f'tensor "{name}" is {seen[name]} and {_word(control)}. Give each control a tensor of its own.',
            )
        seen.setdefault(name, _word(control))


@rule(
    "S706",
    Severity.ERROR,
    bad=_controlled(name=""),
    good=_controlled(),
    refused="sequence batching control tensor must have a name",
)
def controls_have_a_name(config: Configuration) -> Iterator[Problem]:
    """A control tensor has no name.

    Source: core, model_config_utils.cc (GetBooleanSequenceControlProperties).
    Fix: write the name of the model's input that takes it.
    """
    for index, tensor in enumerate(config.proto.sequence_batching.control_input):
        if not tensor.name and tensor.control:
            yield Problem(
                config.at("sequence_batching", "control_input", index),
                "a control tensor has no name: the model cannot load. Name the input that takes it.",
            )


@rule(
    "S707",
    Severity.ERROR,
    bad=_controlled("kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_FP32", "ID"),
    good=_controlled("kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64", "ID"),
    refused="Allowed data types are TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING",
)
def identifiers_have_an_integer_type(config: Configuration) -> Iterator[Problem]:
    """The control with the sequence's identifier has a wrong data type, or none.

    Source: core, model_config_utils.cc (GetTypedSequenceControlProperties).
    Fix: write TYPE_UINT64, or TYPE_STRING if clients send text.
    """
    for index, number, name, control in _controls(config):
        if control.kind == Control.CONTROL_SEQUENCE_CORRID and control.data_type not in IDENTIFIERS:
            yield Problem(
                config.at("sequence_batching", "control_input", index, "control", number),
                f'control "{name}" is the sequence\'s identifier with data type {DataType.Name(control.data_type)}: '
                "the model cannot load. Write data_type: TYPE_UINT64.",
            )


@rule(
    "S708",
    Severity.ERROR,
    bad=_controlled("kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 int32_false_true: [ 0, 1 ]", "ID"),
    good=_controlled("kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64", "ID"),
    refused=(
        "sequence batching must not specify either 'int32_false_true', 'fp32_false_true' or "
        "'bool_false_true' for CONTROL_SEQUENCE_CORRID"
    ),
)
def identifiers_are_not_switches(config: Configuration) -> Iterator[Problem]:
    """The control with the sequence's identifier has values for false and true.

    Source: core, model_config_utils.cc (GetTypedSequenceControlProperties).
    Fix: remove the pair.
    """
    for index, number, name, control in _controls(config):
        switched = any(getattr(control, switch) for switch in SWITCHES)
        if control.kind == Control.CONTROL_SEQUENCE_CORRID and switched:
            yield Problem(
                config.at("sequence_batching", "control_input", index, "control", number),
                f'control "{name}" is the sequence\'s identifier and has values for false and true: the model cannot '
                "load. Remove them.",
            )


@rule("S709", Severity.WARNING, bad=_controlled(name="x"), good=_controlled())
def controls_are_not_inputs(config: Configuration) -> Iterator[Problem]:
    """A control tensor has the name of an input of the model.

    The model loads, clients still have to send the input (measured), and the model gets two tensors of one name.

    Source: core does not compare the names.
    Fix: remove it from `input`: clients do not send controls.
    """
    inputs = [tensor.name for tensor in config.proto.input]
    for index, tensor in enumerate(config.proto.sequence_batching.control_input):
        if tensor.name and tensor.name in inputs:
            yield Problem(
                config.at("sequence_batching", "control_input", index, "name"),
                f'control "{tensor.name}" is also declared as an input, so the model gets two tensors of that name. '
                "Remove it from input: clients do not send controls.",
            )
