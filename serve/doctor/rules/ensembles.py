"""S7: the fields of an ensemble."""

from collections.abc import Iterator

from serve.doctor.configuration import Configuration
from serve.doctor.finding import Problem, Severity
from serve.doctor.rule import Example, rule
from serve.doctor.rules.steps import ENSEMBLE, PLATFORM, STEP_FILES, ensemble_text, step_text


def _forbidden(text: str) -> Example:
    return Example(f"{ENSEMBLE}\n{text}", files=STEP_FILES)


GOOD = Example(ENSEMBLE, files=STEP_FILES)


@rule(
    "S731",
    Severity.ERROR,
    bad=_forbidden("instance_group [ { count: 1 } ]"),
    good=GOOD,
    refused="instance group should not be specified for ensemble",
)
def ensembles_have_no_instances(config: Configuration) -> Iterator[Problem]:
    """An ensemble has an instance group.

    Only the models of its steps have instances.

    Source: core, model_config_utils.cc (ValidateModelConfig).
    Fix: move it to the models of the steps.
    """
    if config.backend == "ensemble" and config.proto.instance_group:
        yield Problem(
            config.at("instance_group"),
            "the ensemble has instance_group, so it cannot load. Move it to the models of its steps.",
        )


@rule(
    "S732",
    Severity.ERROR,
    bad=_forbidden("optimization { graph { level: 1 } }"),
    good=GOOD,
    refused="optimization should not be specified for ensemble",
)
def ensembles_are_not_optimized(config: Configuration) -> Iterator[Problem]:
    """An ensemble has `optimization`.

    Source: core, model_config_utils.cc (ValidateModelConfig).
    Fix: move it to the models of the steps.
    """
    if config.backend == "ensemble" and config.proto.HasField("optimization"):
        yield Problem(
            config.at("optimization"),
            "the ensemble has optimization, so it cannot load. Move it to the models of its steps.",
        )


@rule(
    "S733",
    Severity.ERROR,
    bad=_forbidden(
        'model_warmup [ { name: "zeros" batch_size: 1 inputs { key: "x" value { data_type: TYPE_FP32 dims: [ 2 ] '
        "zero_data: true } } } ]"
    ),
    good=GOOD,
    refused="model_warmup can not be specified for ensemble",
)
def ensembles_are_not_warmed(config: Configuration) -> Iterator[Problem]:
    """An ensemble has `model_warmup`.

    Source: core, model_config_utils.cc (ValidateModelConfig).
    Fix: move it to the models of the steps.
    """
    if config.backend == "ensemble" and config.proto.model_warmup:
        yield Problem(
            config.at("model_warmup"),
            "the ensemble has model_warmup, so it cannot load. Move it to the models of its steps.",
        )


@rule(
    "S735",
    Severity.ERROR,
    bad=Example(ENSEMBLE.replace(PLATFORM, 'backend: "python"'), files=STEP_FILES),
    good=GOOD,
    refused="whose platform is not ensemble",
)
def schedules_are_for_ensembles(config: Configuration) -> Iterator[Problem]:
    """`ensemble_scheduling` is set and the platform is not "ensemble".

    tritonserver refuses the model: "ensemble scheduling cannot be set for model ... whose platform is not ensemble".

    Source: core, model_config_utils.cc (ValidateModelConfig).
    Fix: write platform: "ensemble".
    """
    proto = config.proto
    if proto.HasField("ensemble_scheduling") and proto.platform != "ensemble":
        yield Problem(
            config.at("ensemble_scheduling"),
            f'ensemble_scheduling is set and the platform is "{proto.platform or proto.backend}": the model cannot '
            'load. Write platform: "ensemble".',
            fix=config.document.appended('platform: "ensemble"') if not proto.platform and not proto.backend else (),
        )


@rule(
    "S763",
    Severity.ERROR,
    bad=PLATFORM,
    good=GOOD,
    refused="ensemble scheduling must be set for ensemble",
)
def ensembles_have_a_schedule(config: Configuration) -> Iterator[Problem]:
    """The platform is "ensemble" and there is no `ensemble_scheduling`.

    Another scheduler, such as `dynamic_batching { }`, takes its place, so an ensemble has none.

    Source: core, model_config_utils.cc (ValidateModelConfig).
    Fix: write ensemble_scheduling with the steps, or name the backend of the model.
    """
    if config.proto.platform == "ensemble" and not config.proto.HasField("ensemble_scheduling"):
        other = f" but {config.scheduler}" if config.scheduler else ""
        yield Problem(
            config.at(config.scheduler or "platform"),
            f'the platform is "ensemble" and there is no ensemble_scheduling{other}: the model cannot load. Write the '
            "steps, or name a backend.",
        )


@rule(
    "S736",
    Severity.ERROR,
    bad=f"{PLATFORM}\nensemble_scheduling {{ }}",
    good=GOOD,
    refused="must specify 'step' for ensemble",
)
def ensembles_have_steps(config: Configuration) -> Iterator[Problem]:
    """An ensemble has no steps.

    Source: core, model_config_utils.cc (ValidateEnsembleSchedulingConfig).
    Fix: add the models that it runs.
    """
    if config.proto.HasField("ensemble_scheduling") and not config.proto.ensemble_scheduling.step:
        yield Problem(
            config.at("ensemble_scheduling"),
            "the ensemble has no steps, so it cannot load. Add a step for each model that it runs.",
        )


@rule(
    "S737",
    Severity.ERROR,
    bad=Example(ensemble_text(step_text(model="")), files=STEP_FILES),
    good=GOOD,
    refused="must specify 'model_name' in step 0 of ensemble",
)
def steps_name_a_model(config: Configuration) -> Iterator[Problem]:
    """A step of an ensemble has no `model_name`.

    Source: core, model_config_utils.cc (ValidateEnsembleSchedulingConfig).
    Fix: name the model that the step runs.
    """
    for index, step in enumerate(config.proto.ensemble_scheduling.step):
        if not step.model_name:
            yield Problem(
                config.at("ensemble_scheduling", "step", index),
                f"step {index} has no model_name: the ensemble cannot load. Name the model that it runs.",
            )


@rule(
    "S738",
    Severity.ERROR,
    bad=Example(ensemble_text(step_text(outputs={})), files=STEP_FILES),
    good=GOOD,
    refused="must specify 'output_map' in step 0 of ensemble",
)
def steps_are_connected(config: Configuration) -> Iterator[Problem]:
    """A step of an ensemble has no `input_map` or no `output_map`.

    Source: core, model_config_utils.cc (ValidateEnsembleSchedulingConfig).
    Fix: map the model's tensor names (keys) to names of the ensemble (values).
    """
    for index, step in enumerate(config.proto.ensemble_scheduling.step):
        for field in ("input_map", "output_map"):
            if not getattr(step, field):
                yield Problem(
                    config.at("ensemble_scheduling", "step", index),
                    f"step {index} has no {field}: the ensemble cannot load. Map the model's tensors.",
                )
