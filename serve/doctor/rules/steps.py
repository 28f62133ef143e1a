"""S7: the steps of an ensemble, compared with the models that they run."""

from collections.abc import Iterator, Mapping

from tritonclient.grpc.model_config_pb2 import ModelEnsembling

from serve.doctor.configuration import Configuration
from serve.doctor.finding import Problem, Severity
from serve.doctor.rule import PYTHON_MODEL, Example, rule

PLATFORM = 'platform: "ensemble"'
STEP_CONFIG = """\
backend: "python"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 2 ] } ]
instance_group [ { count: 1 } ]
dynamic_batching { }
"""


def files(config: str = STEP_CONFIG) -> dict[str, str]:
    """The files of the model "part" that the ensembles of the examples run."""
    return {"../part/config.pbtxt": config, "../part/1/model.py": PYTHON_MODEL}


STEP_FILES = files()


def step_text(
    model: str = "part",
    inputs: Mapping[str, str] | None = None,
    outputs: Mapping[str, str] | None = None,
    version: int = -1,
) -> str:
    """One step, by default from x to y."""
    maps = [("input", {"x": "x"} if inputs is None else inputs), ("output", {"y": "y"} if outputs is None else outputs)]
    lines = [f'{kind}_map {{ key: "{a}" value: "{b}" }}' for kind, pairs in maps for a, b in pairs.items()]
    return f'step [ {{ model_name: "{model}" model_version: {version} {" ".join(lines)} }} ]'


def ensemble_text(*steps: str) -> str:
    """The configuration of an ensemble."""
    return "\n".join([PLATFORM, "ensemble_scheduling {", *(f"  {step}" for step in steps), "}"])


ENSEMBLE = ensemble_text(step_text())
GOOD = Example(ENSEMBLE, files=STEP_FILES)


def steps_of(config: Configuration) -> Iterator[tuple[int, "ModelEnsembling.Step", Configuration]]:
    """Index, step and model of every step whose model is in this repository and declares its tensors."""
    for index, step in enumerate(config.proto.ensemble_scheduling.step):
        model = config.model.repository.model(step.model_name) if not step.model_namespace else None
        run = model.config if model is not None else None
        if run is not None and run.proto.input and run.proto.output:
            yield index, step, run


@rule(
    "S751",
    Severity.ERROR,
    bad=Example(ensemble_text(step_text(model="nobody")), files=STEP_FILES),
    good=GOOD,
    refused="contains models that are not available",
)
def models_of_steps_are_there(config: Configuration) -> Iterator[Problem]:
    """A step of an ensemble runs a model that the repository does not have.

    tritonserver refuses the model: "ensemble ... contains models that are not available or ambiguous: nobody". A server
    with several repositories may have it in another one.

    Source: core, model_repository_manager.cc.
    Fix: correct the name, or add the model. `--fix` writes the folder of a model whose `name` is the step's (L003).
    """
    for index, step in enumerate(config.proto.ensemble_scheduling.step):
        if step.model_name and not step.model_namespace and config.model.repository.model(step.model_name) is None:
            place = ("ensemble_scheduling", "step", index, "model_name")
            folder = _folder(config, step.model_name)
            yield Problem(
                config.at(*place),
                f'step {index} runs "{step.model_name}", which is not in this repository: the ensemble cannot load. '
                + (
                    f'Write "{folder}", the folder with that name.' if folder else "Correct the name, or add the model."
                ),
                fix=config.document.replaced(f'"{folder}"', *place) if folder else (),
            )


def _folder(config: Configuration, name: str) -> str | None:
    """The folder of the only model that has `name` in its config.pbtxt; None if there is none, or several."""
    models = config.model.repository.all_models
    folders = [model.name for model in models if model.config is not None and model.config.proto.name == name]
    return folders[0] if len(folders) == 1 and not {'"', "\\"} & set(folders[0]) else None


@rule(
    "S752",
    Severity.ERROR,
    bad=Example(ensemble_text(step_text(version=7)), files=STEP_FILES),
    good=GOOD,
    refused="whose required version 7 is not loaded",
)
def versions_of_steps_are_served(config: Configuration) -> Iterator[Problem]:
    """A step of an ensemble needs a version that its model does not serve.

    The model's `version_policy` decides which versions are served, by default the newest.

    Source: core, model_repository_manager.cc.
    Fix: write -1 for the newest, or serve that version.
    """
    for index, step, run in steps_of(config):
        if step.model_version > 0 and run.served_versions and step.model_version not in run.served_versions:
            yield Problem(
                config.at("ensemble_scheduling", "step", index, "model_version"),
                f'step {index} needs version {step.model_version} of "{step.model_name}", which serves '
                f"{', '.join(map(str, run.served_versions))}: the ensemble cannot load. Write -1 for the newest.",
            )


def _unknown_tensors(config: Configuration, kind: str) -> Iterator[Problem]:
    """Keys of the steps' input maps or output maps that are no input or output of the step's model."""
    for index, step, run in steps_of(config):
        names = [tensor.name for tensor in getattr(run.proto, kind)]
        for name in getattr(step, f"{kind}_map"):
            if name not in names:
                yield Problem(
                    config.at("ensemble_scheduling", "step", index, f"{kind}_map"),
                    f'step {index} maps {kind} "{name}", and "{step.model_name}" has {", ".join(names)}: the ensemble '
                    "cannot load. The key is the model's name, the value the ensemble's.",
                )


@rule(
    "S753",
    Severity.ERROR,
    bad=Example(ensemble_text(step_text(inputs={"X": "x"})), files=STEP_FILES),
    good=GOOD,
    refused="ensemble tensor x is mapping to non-existing input X in model part",
)
def inputs_of_steps_exist(config: Configuration) -> Iterator[Problem]:
    """A step maps an input that its model does not have.

    The key of a map is the model's name for the tensor, the value the ensemble's.

    Source: core, ensemble_utils.cc (ValidateTensorMapping).
    Fix: correct the key.
    """
    yield from _unknown_tensors(config, "input")


@rule(
    "S754",
    Severity.ERROR,
    bad=Example(ensemble_text(step_text(outputs={"Y": "y"})), files=STEP_FILES),
    good=GOOD,
    refused="ensemble tensor y is mapped from non-existing output Y in model part",
)
def outputs_of_steps_exist(config: Configuration) -> Iterator[Problem]:
    """A step maps an output that its model does not have.

    Source: core, ensemble_utils.cc (ValidateTensorMapping).
    Fix: correct the key.
    """
    yield from _unknown_tensors(config, "output")


@rule(
    "S755",
    Severity.ERROR,
    bad=Example(
        ENSEMBLE,
        files=files(STEP_CONFIG.replace("input [ {", 'input [ { name: "z" data_type: TYPE_FP32 dims: [ 2 ] }, {')),
    ),
    good=GOOD,
    refused="is not mapped to any ensemble tensors",
)
def inputs_of_models_are_mapped(config: Configuration) -> Iterator[Problem]:
    """A step leaves out an input that its model requires.

    tritonserver refuses the model: "input z in model part is not mapped to any ensemble tensors". Optional inputs may
    be left out.

    Source: core, ensemble_utils.cc (ValidateTensorMapping).
    Fix: add it to the input_map.
    """
    for index, step, run in steps_of(config):
        missing = [
            tensor.name for tensor in run.proto.input if not tensor.optional and tensor.name not in step.input_map
        ]
        names = {tensor.name for tensor in run.proto.input}
        if missing and step.input_map and names.issuperset(step.input_map):  # S753 reports a wrong name
            yield Problem(
                config.at("ensemble_scheduling", "step", index),
                f'step {index} maps nothing to {", ".join(missing)} of "{step.model_name}": the ensemble cannot load. '
                "Add it to the input_map.",
            )
