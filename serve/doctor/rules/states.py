"""S7: implicit state of sequences."""

from collections.abc import Iterator
from typing import Any

from tritonclient.grpc.model_config_pb2 import ModelSequenceBatching

from serve.doctor.configuration import Configuration
from serve.doctor.finding import Problem, Severity
from serve.doctor.rule import Example, rule

Steps = tuple[str | int, ...]
INITIAL = 'name: "zeros" data_type: TYPE_FP32 dims: [ 1 ] zero_data: true'


def _example(*initial: str, outputs: str = "NEXT", dims: str = "1", rest: str = "", files: str = "") -> Example:
    state = f'input_name: "STATE" output_name: "{outputs}" data_type: TYPE_FP32 dims: [ {dims} ]'
    values = "".join(f" initial_state {{ {text} }}" for text in initial)
    return Example(
        f'backend: "python"\nsequence_batching {{ state [ {{ {state}{values} }}{rest} ] }}',
        files={files: "zero"} if files else {},
    )


def _states(config: Configuration) -> Iterator[tuple[int, ModelSequenceBatching.State]]:
    yield from enumerate(config.proto.sequence_batching.state)


def _initial_states(config: Configuration) -> Iterator[tuple[Steps, ModelSequenceBatching.State, Any]]:
    """Path, state and initial value of every initial state."""
    for index, state in _states(config):
        for number, initial in enumerate(state.initial_state):
            yield ("sequence_batching", "state", index, "initial_state", number), state, initial


@rule("S721", Severity.WARNING, bad=_example(), good='backend: "python"\nsequence_batching { }')
def python_models_keep_their_own_state(config: Configuration) -> Iterator[Problem]:
    """A Python model has implicit state, which is never stored.

    The model loads, but the Python backend cannot return a state: in every request of a sequence the state input has
    its initial value (measured), and without an `initial_state` undefined values.

    Source: python_backend does not use the state functions of tritonbackend.h.
    Fix: keep the state in the model, by request.correlation_id(), and drop it at the end of the sequence.
    """
    if config.backend == "python" and config.proto.sequence_batching.state:
        yield Problem(
            config.at("sequence_batching", "state"),
            "the Python backend never stores implicit state, so every request gets the initial one. Keep the state "
            "in the model, by correlation id.",
        )


@rule(
    "S722",
    Severity.ERROR,
    bad=_example(INITIAL, INITIAL.replace("zeros", "more")),
    good=_example(INITIAL),
    refused="initial_state field for state input 'STATE' must contain exactly one or zero element",
)
def there_is_one_initial_state(config: Configuration) -> Iterator[Problem]:
    """A state has several initial values.

    Source: core, sequence_batch_scheduler.cc (GenerateInitialStateData).
    Fix: keep one.
    """
    for index, state in _states(config):
        if len(state.initial_state) > 1:
            yield Problem(
                config.at("sequence_batching", "state", index, "initial_state"),
                f'state "{state.input_name}" has {len(state.initial_state)} initial states: the model cannot load. '
                "Keep one.",
            )


@rule(
    "S723",
    Severity.ERROR,
    bad=_example(INITIAL.replace('name: "zeros"', "")),
    good=_example(INITIAL),
    refused="Field 'name' must be set when using initial_state for state input 'STATE'",
)
def initial_states_have_a_name(config: Configuration) -> Iterator[Problem]:
    """An initial state has no name.

    Source: core, sequence_batch_scheduler.cc (GenerateInitialStateData).
    Fix: add name, any text.
    """
    for steps, state, initial in _initial_states(config):
        if not initial.name:
            yield Problem(
                config.at(*steps),
                f'the initial state of "{state.input_name}" has no name: the model cannot load. Add a name.',
            )


@rule(
    "S724",
    Severity.ERROR,
    bad=_example(INITIAL.replace("dims: [ 1 ]", "dims: [ -1 ]"), dims="-1"),
    good=_example(INITIAL, dims="-1"),
    refused="'initial_state' field for state input name 'STATE' contains variable dimensions",
)
def initial_states_have_a_size(config: Configuration) -> Iterator[Problem]:
    """An initial state has a -1 in its dims.

    Source: core, sequence_batch_scheduler.cc (GenerateInitialStateData).
    Fix: write the size with which a sequence begins.
    """
    for steps, state, initial in _initial_states(config):
        if any(dim < 0 for dim in initial.dims):
            yield Problem(
                config.at(*steps, "dims"),
                f'the initial state of "{state.input_name}" has dims {list(initial.dims)}: the model cannot load. '
                "Write the size with which a sequence begins.",
            )


@rule(
    "S725",
    Severity.ERROR,
    bad=_example(INITIAL.replace("FP32", "INT32")),
    good=_example(INITIAL),
    refused="The data type used for 'initial_state' field of state 'STATE' does not match the state data type",
)
def initial_states_have_the_states_type(config: Configuration) -> Iterator[Problem]:
    """An initial state and its state have different data types.

    Source: core, sequence_batch_scheduler.cc (GenerateInitialStateData).
    Fix: write the state's type.
    """
    for steps, state, initial in _initial_states(config):
        if initial.data_type != state.data_type:
            yield Problem(
                config.at(*steps),
                f'the initial state of "{state.input_name}" and the state have different data types: the model '
                "cannot load. Write that of the state.",
            )


@rule(
    "S726",
    Severity.ERROR,
    bad=_example(INITIAL.replace("zero_data: true", 'data_file: "begin"')),
    good=_example(INITIAL.replace("zero_data: true", 'data_file: "begin"'), files="initial_state/begin"),
    refused="failed to open text file for read",
)
def initial_state_files_are_there(config: Configuration) -> Iterator[Problem]:
    """The file of an initial state is missing.

    Source: core, sequence_batch_scheduler.cc (GenerateInitialStateData).
    Fix: put the raw bytes into the folder `initial_state` of the model.
    """
    for steps, state, initial in _initial_states(config):
        path = config.model.folder / "initial_state" / initial.data_file
        if initial.data_file and not path.is_file():
            yield Problem(
                config.at(*steps, "data_file"),
                f'the initial state of "{state.input_name}" reads initial_state/{initial.data_file}, which does '
                "not exist: the model cannot load. Put the raw bytes there.",
            )


@rule(
    "S727",
    Severity.WARNING,
    bad=_example(rest=', { input_name: "STATE" output_name: "OTHER" data_type: TYPE_FP32 dims: [ 1 ] }'),
    good=_example(rest=', { input_name: "SECOND" output_name: "OTHER" data_type: TYPE_FP32 dims: [ 1 ] }'),
)
def states_have_their_own_tensors(config: Configuration) -> Iterator[Problem]:
    """Two states share an input or an output, or a state has the name of an ordinary input.

    The model loads (measured), and one of the two values is lost.

    Source: core does not check the names of states.
    Fix: give each state an input and an output of its own.
    """
    inputs = {tensor.name for tensor in config.proto.input}
    outputs: set[str] = set()
    for index, state in _states(config):
        for field, name, taken in (
            ("input_name", state.input_name, inputs),
            ("output_name", state.output_name, outputs),
        ):
            if name in taken:
                yield Problem(
                    config.at("sequence_batching", "state", index, field),
                    f'{field} "{name}" is used twice, so one of the values is lost. Give each state tensors of its '
                    "own.",
                )
            taken.add(name)
