"""S7: the tensors between the steps of an ensemble."""

from collections import defaultdict
from collections.abc import Iterator

from serve.doctor.finding import Found, Severity
from serve.doctor.repository import Configuration
from serve.doctor.rule import Example, rule
from serve.doctor.rules.steps import ENSEMBLE, STEP_FILES, ensemble, step

GOOD = Example(ENSEMBLE, files=STEP_FILES)


def _written(config: Configuration) -> dict[str, list[tuple[int, str]]]:
    """For each tensor of the ensemble the steps, and their outputs, that write it."""
    found = defaultdict(list)
    for index, one in enumerate(config.proto.ensemble_scheduling.step):
        for output, tensor in one.output_map.items():
            found[tensor].append((index, output))
    return found


def _read(config: Configuration) -> dict[str, list[tuple[int, str]]]:
    """For each tensor of the ensemble the steps, and their inputs, that read it."""
    found = defaultdict(list)
    for index, one in enumerate(config.proto.ensemble_scheduling.step):
        for name, tensor in one.input_map.items():
            found[tensor].append((index, name))
    return found


@rule(
    "S741",
    Severity.ERROR,
    bad=Example(ensemble(step(outputs={"y": "z"})), files=STEP_FILES),
    good=GOOD,
    refused="is not used",
)
def inputs_and_outputs_are_used(config: Configuration) -> Iterator[Found]:
    """An input of an ensemble that no step reads, or an output that no step writes.

    tritonserver refuses the model: "ensemble output 'y' for ensemble example' is not used".

    Source: core, model_config_utils.cc (ValidateEnsembleSchedulingConfig).
    Fix: map the tensor in a step, or remove it from the ensemble's inputs and outputs.
    """
    steps = config.proto.ensemble_scheduling.step
    written, read = _written(config), _read(config)
    # A map that is missing as a whole is another rule's.
    for kind, used in (("input", {**read, **written}), ("output", {**written, **read})):
        for index, tensor in enumerate(getattr(config.proto, kind) if steps else ()):
            if tensor.name not in used and all(one.input_map and one.output_map for one in steps):
                yield Found(
                    config.at(kind, index),
                    f'{kind} "{tensor.name}" of the ensemble is in no step\'s '
                    f"{'input_map' if kind == 'input' else 'output_map'}: it cannot load. Map it, or remove it.",
                )


@rule(
    "S742",
    Severity.ERROR,
    bad=Example(
        ensemble(step(outputs={"y": "middle"}), step(outputs={"y": "y"})),
        files=STEP_FILES,
    ),
    good=Example(
        ensemble(step(outputs={"y": "middle"}), step(inputs={"x": "middle"})),
        files=STEP_FILES,
    ),
    refused="is unused in ensemble",
)
def tensors_have_a_writer_and_a_reader(config: Configuration) -> Iterator[Found]:
    """A tensor between the steps of an ensemble is written and never read, or read and never written.

    tritonserver refuses the model: "ensemble tensor 'middle' is unused in ensemble 'example'". Most are misspelt names.

    Source: core, model_config_utils.cc (ValidateEnsembleSchedulingConfig).
    Fix: give both sides one name; an output of the step that nobody needs is left out of the output_map.
    """
    written, read = _written(config), _read(config)
    own_inputs = {tensor.name for tensor in config.proto.input}
    own_outputs = {tensor.name for tensor in config.proto.output}
    for used, other, free, map_name, verb in (
        (written, read, own_outputs, "output_map", "read"),
        (read, written, own_inputs, "input_map", "written"),
    ):
        for tensor, uses in used.items():
            if tensor not in other and tensor not in free:
                yield Found(
                    config.at("ensemble_scheduling", "step", uses[0][0], map_name),
                    f'tensor "{tensor}" is never {verb}: the ensemble cannot load. Correct the name, or leave it out.',
                )


@rule(
    "S743",
    Severity.ERROR,
    bad=Example(ensemble(step(), step()), files=STEP_FILES),
    good=GOOD,
    refused="can appear in an output map only once",
)
def tensors_are_written_once(config: Configuration) -> Iterator[Found]:
    """Two steps of an ensemble write the same tensor.

    tritonserver refuses the model: "ensemble tensor 'y' can appear in an output map only once".

    Source: core, model_config_utils.cc (ValidateEnsembleSchedulingConfig).
    Fix: give each its own name.
    """
    for tensor, uses in _written(config).items():
        for index, _ in uses[1:]:
            yield Found(
                config.at("ensemble_scheduling", "step", index, "output_map"),
                f'tensor "{tensor}" is written by step {uses[0][0]} already: the ensemble cannot load. '
                "Give each its own name.",
            )


@rule(
    "S744",
    Severity.ERROR,
    bad=Example(ensemble(step(outputs={"y": "x"}), step()), files=STEP_FILES),
    good=Example(ensemble(step(outputs={"y": "middle"}), step(inputs={"x": "middle"})), files=STEP_FILES),
)
def inputs_are_not_written(config: Configuration) -> Iterator[Found]:
    """A step of an ensemble writes one of the ensemble's inputs.

    tritonserver loads the model, and no request is ever answered (measured: each one hangs until the client gives up).

    Source: the hang itself, on 2.51; core does not check it (ValidateEnsembleSchedulingConfig).
    Fix: give the step's output a name of its own.
    """
    written = _written(config)
    for tensor in config.proto.input:
        for index, _ in written.get(tensor.name, []):
            yield Found(
                config.at("ensemble_scheduling", "step", index, "output_map"),
                f'step {index} writes "{tensor.name}", an input of the ensemble: requests hang. Give it another name.',
            )
