"""S7: types and shapes of the tensors of an ensemble, and the batches of its steps."""

from collections.abc import Iterator

from tritonclient.grpc.model_config_pb2 import DataType

from serve.doctor.configuration import Configuration
from serve.doctor.finding import Problem, Severity
from serve.doctor.rule import Example, rule
from serve.doctor.rules.steps import (
    ENSEMBLE,
    STEP_CONFIG,
    STEP_FILES,
    ensemble_text,
    files,
    step_text,
    steps_of,
)

GOOD = Example(ENSEMBLE, files=STEP_FILES)

Use = tuple[int | None, str, int, list[int], list[int]]
"""One use of a tensor: step (None is the ensemble), model, data type, dims, and dims with the batch axis."""


def _uses(config: Configuration) -> dict[str, list[Use]]:
    """The uses of each tensor of the ensemble; the declaration of the ensemble first."""

    def use(index: int | None, run: Configuration, tensor: object) -> Use:
        dims = list(tensor.dims)  # type: ignore[attr-defined]
        full = [-1, *dims] if run.proto.max_batch_size > 0 else dims
        return index, run.model.name, tensor.data_type, dims, full  # type: ignore[attr-defined]

    uses_by_tensor: dict[str, list[Use]] = {}
    for tensor in (*config.proto.input, *config.proto.output):
        uses_by_tensor.setdefault(tensor.name, []).append(use(None, config, tensor))
    for index, step, run in steps_of(config):
        for pairs, tensors in ((step.input_map, run.proto.input), (step.output_map, run.proto.output)):
            by_name = {tensor.name: tensor for tensor in tensors}
            for name, outer in pairs.items():
                if name in by_name:
                    uses_by_tensor.setdefault(outer, []).append(use(index, run, by_name[name]))
    return uses_by_tensor


def _agree(dims: list[int], other_dims: list[int]) -> bool:
    return len(dims) == len(other_dims) and all(a == b or -1 in (a, b) for a, b in zip(dims, other_dims, strict=True))


@rule(
    "S756",
    Severity.ERROR,
    bad=Example(ENSEMBLE, files=files(STEP_CONFIG.replace("FP32", "INT32"))),
    good=GOOD,
    refused=(
        "ensemble tensor x: inconsistent data type: TYPE_FP32 is inferred from model example while "
        "TYPE_INT32 is inferred from model part"
    ),
)
def tensors_have_one_type(config: Configuration) -> Iterator[Problem]:
    """The two ends of a tensor of an ensemble have different data types.

    Source: core, ensemble_utils.cc (ValidateTensorConsistency).
    Fix: correct one of the configurations; tensors are not converted between steps.
    """
    for tensor, (first, *others) in _uses(config).items():
        for index, model, kind, _, _ in others:
            if kind != first[2] and index is not None:
                yield Problem(
                    config.at("ensemble_scheduling", "step", index),
                    f'tensor "{tensor}" is {DataType.Name(first[2])} in "{first[1]}" and {DataType.Name(kind)} in '
                    f'"{model}": the ensemble cannot load. Correct one of them.',
                )


@rule(
    "S757",
    Severity.ERROR,
    bad=Example(ENSEMBLE, files=files(STEP_CONFIG.replace("dims: [ 2 ]", "dims: [ 3 ]"))),
    good=GOOD,
    refused=(
        "ensemble tensor x: inconsistent shape: [-1,2] is inferred from model example while [-1,3] "
        "is inferred from model part"
    ),
)
def tensors_have_one_shape(config: Configuration) -> Iterator[Problem]:
    """The two ends of a tensor of an ensemble have different dims.

    A -1 agrees with any size.

    Source: core, ensemble_utils.cc (ValidateTensorConsistency).
    Fix: correct one of the configurations.
    """
    for tensor, (first, *others) in _uses(config).items():
        for index, model, _, dims, full in others:
            if index is not None and not _agree(dims, first[3]) and not _agree(full, first[4]):
                yield Problem(
                    config.at("ensemble_scheduling", "step", index),
                    f'tensor "{tensor}" is {first[3]} in "{first[1]}" and {dims} in "{model}": the ensemble cannot '
                    "load. Correct one of them.",
                )


@rule(
    "S758",
    Severity.ERROR,
    bad=Example(f"max_batch_size: 16\n{ENSEMBLE}", files=STEP_FILES),
    good=Example(f"max_batch_size: 8\n{ENSEMBLE}", files=STEP_FILES),
    refused="which only allows maximum batch size to be",
)
def steps_take_the_ensembles_batches(config: Configuration) -> Iterator[Problem]:
    """An ensemble allows larger requests than one of its steps.

    tritonserver refuses the model: "allows maximum batch size 16, but it contains model part which only allows maximum
    batch size to be 8". This is about the rows of one request: an ensemble does not batch.

    Source: core, ensemble_utils.cc.
    Fix: lower the ensemble's max_batch_size to the smallest of its steps.
    """
    most = config.proto.max_batch_size
    for index, step, run in steps_of(config):
        if 0 < run.proto.max_batch_size < most:
            yield Problem(
                config.at("max_batch_size"),
                f'max_batch_size {most} is more than {run.proto.max_batch_size} of "{step.model_name}" (step {index}): '
                f"the ensemble cannot load. Write {run.proto.max_batch_size}.",
            )


@rule(
    "S759",
    Severity.ERROR,
    bad=ensemble_text(step_text(model="example")),
    good=GOOD,
    refused="circular dependency between ensembles",
)
def ensembles_do_not_run_themselves(config: Configuration) -> Iterator[Problem]:
    """An ensemble runs itself, directly or through another ensemble.

    Source: core, ensemble_utils.cc.
    Fix: remove the step.
    """
    for index, step in enumerate(config.proto.ensemble_scheduling.step):
        if _reaches(config, step.model_name, config.model.name, set()):
            yield Problem(
                config.at("ensemble_scheduling", "step", index, "model_name"),
                f'step {index} runs "{step.model_name}", which leads back to this ensemble: it cannot load. '
                "Remove the step.",
            )


def _reaches(config: Configuration, model: str, goal: str, seen: set[str]) -> bool:
    if model == goal:
        return True
    called = config.model.repository.model(model) if model not in seen else None
    seen.add(model)
    if called is None or called.config is None:
        return False
    return any(_reaches(config, step.model_name, goal, seen) for step in called.config.proto.ensemble_scheduling.step)
