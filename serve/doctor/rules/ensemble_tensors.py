"""S7: the tensors between the steps of an ensemble."""

from collections import defaultdict
from collections.abc import Iterator

from serve.doctor.configuration import Configuration
from serve.doctor.finding import Problem, Severity
from serve.doctor.rule import Example, rule
from serve.doctor.rules.steps import ENSEMBLE, STEP_FILES, ensemble_text, step_text

GOOD = Example(ENSEMBLE, files=STEP_FILES)


def _chain(second: str) -> Example:
    """Two steps; the second reads the tensor `second`."""
    tensors = ", ".join(f'{{ name: "{name}" data_type: TYPE_FP32 dims: [ 2 ] }}' for name in ("y", "z"))
    steps = ensemble_text(step_text(), step_text(inputs={"x": second}, outputs={"y": "z"}))
    return Example(f"output [ {tensors} ]\n{steps}", files=STEP_FILES)


def _written(config: Configuration) -> dict[str, list[tuple[int, str]]]:
    """The steps, with their outputs, that write each tensor of the ensemble."""
    uses = defaultdict(list)
    for index, step in enumerate(config.proto.ensemble_scheduling.step):
        for output, tensor in step.output_map.items():
            uses[tensor].append((index, output))
    return uses


def _read(config: Configuration) -> dict[str, list[tuple[int, str]]]:
    """The steps, with their inputs, that read each tensor of the ensemble."""
    uses = defaultdict(list)
    for index, step in enumerate(config.proto.ensemble_scheduling.step):
        for name, tensor in step.input_map.items():
            uses[tensor].append((index, name))
    return uses


@rule(
    "S741",
    Severity.ERROR,
    bad=Example(ensemble_text(step_text(outputs={"y": "z"})), files=STEP_FILES),
    good=GOOD,
    refused="ensemble output 'y' for ensemble example' is not used",
)
def inputs_and_outputs_are_used(config: Configuration) -> Iterator[Problem]:
    """No step reads an input of the ensemble, or no step writes an output.

    Source: core, model_config_utils.cc (ValidateEnsembleSchedulingConfig).
    Fix: map the tensor in a step, or remove it from the ensemble's inputs and outputs.
    """
    steps = config.proto.ensemble_scheduling.step
    written, read = _written(config), _read(config)
    # S738 reports a missing map.
    for kind, used in (("input", {**read, **written}), ("output", {**written, **read})):
        for index, tensor in enumerate(getattr(config.proto, kind) if steps else ()):
            if tensor.name not in used and all(step.input_map and step.output_map for step in steps):
                yield Problem(
                    config.at(kind, index),
                    f'{kind} "{tensor.name}" of the ensemble is in no step\'s '
                    f"{'input_map' if kind == 'input' else 'output_map'}: it cannot load. Map it, or remove it.",
                )


@rule(
    "S742",
    Severity.ERROR,
    bad=Example(ensemble_text(step_text(outputs={"y": "middle"}), step_text(outputs={"y": "y"})), files=STEP_FILES),
    good=Example(
        ensemble_text(step_text(outputs={"y": "middle"}), step_text(inputs={"x": "middle"})), files=STEP_FILES
    ),
    refused="ensemble tensor 'middle' is unused in ensemble 'example'",
)
def tensors_are_read(config: Configuration) -> Iterator[Problem]:
    """A tensor between the steps of an ensemble is written and never read.

    Most often a name is misspelt.

    Source: core, model_config_utils.cc (ValidateEnsembleSchedulingConfig).
    Fix: use the same name on both sides, or remove an output that is not needed from the output_map.
    """
    if not config.proto.input or not config.proto.output:
        return
    read, written = _read(config), _written(config)
    outer = {tensor.name for tensor in (*config.proto.input, *config.proto.output)}
    if not all(tensor.name in written for tensor in config.proto.output):
        return  # most likely this tensor should be the output that S741 reports
    for tensor, uses in written.items():
        if tensor not in read and tensor not in outer:
            yield Problem(
                config.at("ensemble_scheduling", "step", uses[0][0], "output_map"),
                f'tensor "{tensor}" is never read: the ensemble cannot load. Correct the name, or remove it.',
            )


@rule(
    "S745",
    Severity.ERROR,
    bad=_chain("middel"),
    good=_chain("y"),
    refused=(
        "output 'z' for ensemble 'example' is not written: at least one of its depending tensors, "
        "'middel', is not connected"
    ),
)
def tensors_are_written(config: Configuration) -> Iterator[Problem]:
    """A step of an ensemble reads a tensor that no step writes.

    Most often a name is misspelt.

    Source: core, ensemble_utils.cc.
    Fix: use the same name on both sides, or declare the tensor as an input of the ensemble.
    """
    if not config.proto.input or not config.proto.output:
        return
    written = _written(config)
    outer = {tensor.name for tensor in config.proto.input}
    for tensor, uses in _read(config).items():
        if tensor not in written and tensor not in outer:
            yield Problem(
                config.at("ensemble_scheduling", "step", uses[0][0], "input_map"),
                f'tensor "{tensor}" is never written: the ensemble cannot load. Correct the name.',
            )


@rule(
    "S743",
    Severity.ERROR,
    bad=Example(ensemble_text(step_text(), step_text()), files=STEP_FILES),
    good=GOOD,
    refused="ensemble tensor 'y' can appear in an output map only once",
)
def tensors_are_written_once(config: Configuration) -> Iterator[Problem]:
    """Two steps of an ensemble write the same tensor.

    Source: core, model_config_utils.cc (ValidateEnsembleSchedulingConfig).
    Fix: use a name for each.
    """
    for tensor, uses in _written(config).items():
        for index, _ in uses[1:]:
            yield Problem(
                config.at("ensemble_scheduling", "step", index, "output_map"),
                f'tensor "{tensor}" is written by step {uses[0][0]} already: the ensemble cannot load. '
                "Use a name for each.",
            )


@rule(
    "S744",
    Severity.ERROR,
    bad=Example(ensemble_text(step_text(outputs={"y": "x"}), step_text()), files=STEP_FILES),
    good=Example(
        ensemble_text(step_text(outputs={"y": "middle"}), step_text(inputs={"x": "middle"})), files=STEP_FILES
    ),
)
def inputs_are_not_written(config: Configuration) -> Iterator[Problem]:
    """A step of an ensemble writes one of the ensemble's inputs.

    tritonserver loads the model, and no request is ever answered (measured: each one hangs until the client gives up).

    Source: measured on 2.51; core does not check it (ValidateEnsembleSchedulingConfig).
    Fix: give the step's output a name of its own.
    """
    written = _written(config)
    for tensor in config.proto.input:
        for index, _ in written.get(tensor.name, []):
            yield Problem(
                config.at("ensemble_scheduling", "step", index, "output_map"),
                f'step {index} writes "{tensor.name}", an input of the ensemble: requests hang. Give it another name.',
            )
