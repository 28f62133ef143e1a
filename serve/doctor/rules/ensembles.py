"""S7: what an ensemble itself says: its fields, its steps and the tensors between them."""

from collections import defaultdict
from collections.abc import Iterator

from serve.doctor.finding import Found, Severity
from serve.doctor.repository import Configuration
from serve.doctor.rule import Example, rule
from serve.doctor.rules.steps import ENSEMBLE, PLATFORM, STEP_FILES, ensemble, step


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
def ensembles_have_no_instances(config: Configuration) -> Iterator[Found]:
    """An ensemble with an instance group.

    tritonserver refuses the model: "instance group should not be specified for ensemble". An ensemble only passes
    tensors on; its steps have the instances.

    Source: core, model_config_utils.cc (ValidateModelConfig).
    Fix: move it to the models of the steps.
    """
    if config.backend == "ensemble" and config.proto.instance_group:
        yield Found(
            config.at("instance_group"),
            "instance_group of an ensemble: it cannot load. Move it to the models of its steps.",
        )


@rule(
    "S732",
    Severity.ERROR,
    bad=_forbidden("optimization { graph { level: 1 } }"),
    good=GOOD,
    refused="optimization should not be specified for ensemble",
)
def ensembles_are_not_optimized(config: Configuration) -> Iterator[Found]:
    """An ensemble with `optimization`.

    tritonserver refuses the model: "optimization should not be specified for ensemble".

    Source: core, model_config_utils.cc (ValidateModelConfig).
    Fix: move it to the models of the steps.
    """
    if config.backend == "ensemble" and config.proto.HasField("optimization"):
        yield Found(
            config.at("optimization"),
            "optimization of an ensemble: it cannot load. Move it to the models of its steps.",
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
def ensembles_are_not_warmed(config: Configuration) -> Iterator[Found]:
    """An ensemble with `model_warmup`.

    tritonserver refuses the model: "model_warmup can not be specified for ensemble".

    Source: core, model_config_utils.cc (ValidateModelConfig).
    Fix: move it to the models of the steps.
    """
    if config.backend == "ensemble" and config.proto.model_warmup:
        yield Found(
            config.at("model_warmup"), "model_warmup of an ensemble: it cannot load. Move it to the models of its
            steps." )


@rule(
    "S734",
    Severity.ERROR,
    bad=Example(f"{PLATFORM}\ndynamic_batching {{ }}", files=STEP_FILES),
    good=GOOD,
    refused="ensemble scheduling must be set for ensemble",
)
def ensembles_have_a_schedule(config: Configuration) -> Iterator[Found]:
    """An ensemble without `ensemble_scheduling`.

    tritonserver refuses the model: "ensemble scheduling must be set for ensemble ... whose platform is ensemble". An
    ensemble has no batcher of its own either; each step batches by its own configuration.

    Source: core, model_config_utils.cc (ValidateModelConfig).
    Fix: add ensemble_scheduling in the place of the other scheduler.
    """
    if config.proto.platform == "ensemble" and not config.proto.HasField("ensemble_scheduling"):
        yield Found(
            config.at(config.scheduler or "platform"),
            'platform "ensemble" without ensemble_scheduling: it cannot load. Add ensemble_scheduling.',
        )


@rule(
    "S735",
    Severity.ERROR,
    bad=Example(ENSEMBLE.replace(PLATFORM, 'backend: "python"'), files=STEP_FILES),
    good=GOOD,
    refused="whose platform is not ensemble",
)
def schedules_are_for_ensembles(config: Configuration) -> Iterator[Found]:
    """`ensemble_scheduling` in a model whose platform is not "ensemble".

    tritonserver refuses the model: "ensemble scheduling cannot be set for model ... whose platform is not ensemble";
    without platform and backend it does not know what the model is.

    Source: core, model_config_utils.cc (ValidateModelConfig).
    Fix: write platform: "ensemble".
    """
    proto = config.proto
    if proto.HasField("ensemble_scheduling") and proto.platform != "ensemble":
        yield Found(
            config.at("ensemble_scheduling"),
            f'ensemble_scheduling, and the platform is "{proto.platform or proto.backend}": the model cannot load. '
            'Write platform: "ensemble".',
            fix=config.document.appended('platform: "ensemble"') if not proto.platform and not proto.backend else (),
        )


@rule(
    "S736",
    Severity.ERROR,
    bad=Example(f"{PLATFORM}\nensemble_scheduling {{ }}"),
    good=GOOD,
    refused="must specify 'step'",
)
def ensembles_have_steps(config: Configuration) -> Iterator[Found]:
    """An ensemble without steps.

    tritonserver refuses the model: "must specify 'step' for ensemble".

    Source: core, model_config_utils.cc (ValidateEnsembleSchedulingConfig).
    Fix: add the models that it runs.
    """
    if config.proto.HasField("ensemble_scheduling") and not config.proto.ensemble_scheduling.step:
        yield Found(
            config.at("ensemble_scheduling"),
            "an ensemble without steps: it cannot load. Add a step for each model that it runs.",
        )


@rule(
    "S737",
    Severity.ERROR,
    bad=Example(ensemble(step(model="")), files=STEP_FILES),
    good=GOOD,
    refused="must specify 'model_name' in step",
)
def steps_name_a_model(config: Configuration) -> Iterator[Found]:
    """A step of an ensemble without `model_name`.

    tritonserver refuses the model: "must specify 'model_name' in step 0 of ensemble".

    Source: core, model_config_utils.cc (ValidateEnsembleSchedulingConfig).
    Fix: name the model that the step runs.
    """
    for index, one in enumerate(config.proto.ensemble_scheduling.step):
        if not one.model_name:
            yield Found(
                config.at("ensemble_scheduling", "step", index),
                f"step {index} has no model_name: the ensemble cannot load. Name the model that it runs.",
            )


@rule(
    "S738",
    Severity.ERROR,
    bad=Example(ensemble(step(outputs={})), files=STEP_FILES),
    good=GOOD,
    refused="must specify 'output_map' in step",
)
def steps_are_connected(config: Configuration) -> Iterator[Found]:
    """A step of an ensemble without `input_map` or without `output_map`.

    tritonserver refuses the model: "must specify 'output_map' in step 0 of ensemble".

    Source: core, model_config_utils.cc (ValidateEnsembleSchedulingConfig).
    Fix: map the model's tensor names (keys) to names of the ensemble (values).
    """
    for index, one in enumerate(config.proto.ensemble_scheduling.step):
        for field in ("input_map", "output_map"):
            if not getattr(one, field):
                yield Found(
                    config.at("ensemble_scheduling", "step", index),
                    f"step {index} has no {field}: the ensemble cannot load. Map the model's tensors.",
                )


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
