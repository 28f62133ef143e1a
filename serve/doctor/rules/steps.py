"""S7: the steps of an ensemble against the models that they run."""

from collections.abc import Iterator, Mapping

from tritonclient.grpc.model_config_pb2 import ModelEnsembling

from serve.doctor.finding import Problem, Severity
from serve.doctor.repository import Configuration
from serve.doctor.rule import Example, rule

PLATFORM = 'platform: "ensemble"'
STEP_MODEL = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("y", x)])
"""
STEP_CONFIG = """\
backend: "python"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 2 ] } ]
instance_group [ { count: 1 } ]
dynamic_batching { }
"""


def files(config: str = STEP_CONFIG) -> dict[str, str]:
    """The model "part" that the ensembles of the examples run."""
    return {"../part/config.pbtxt": config, "../part/1/model.py": STEP_MODEL}


STEP_FILES = files()


def step(
    model: str = "part",
    inputs: Mapping[str, str] | None = None,
    outputs: Mapping[str, str] | None = None,
    version: int = -1,
) -> str:
    """One step, by default of the whole work: x to y."""
    maps = [("input", {"x": "x"} if inputs is None else inputs), ("output", {"y": "y"} if outputs is None else outputs)]
    lines = [f'{kind}_map {{ key: "{a}" value: "{b}" }}' for kind, pairs in maps for a, b in pairs.items()]
    return f'step [ {{ model_name: "{model}" model_version: {version} {" ".join(lines)} }} ]'


def ensemble(*steps: str) -> str:
    """The configuration of an ensemble."""
    return "\n".join([PLATFORM, "ensemble_scheduling {", *(f"  {one}" for one in steps), "}"])


ENSEMBLE = ensemble(step())
GOOD = Example(ENSEMBLE, files=STEP_FILES)


def steps_of(config: Configuration) -> Iterator[tuple[int, "ModelEnsembling.Step", Configuration]]:
    """Every step whose model is in this repository and says what it takes and gives."""
    for index, one in enumerate(config.proto.ensemble_scheduling.step):
        model = config.model.repository.model(one.model_name) if not one.model_namespace else None
        run = model.config if model is not None else None
        if run is not None and run.proto.input and run.proto.output:
            yield index, one, run


@rule(
    "S751",
    Severity.ERROR,
    bad=Example(ensemble(step(model="nobody")), files=STEP_FILES),
    good=GOOD,
    refused="contains models that are not available",
)
def models_of_steps_are_there(config: Configuration) -> Iterator[Problem]:
    """A step of an ensemble runs a model that the repository does not have.

    tritonserver refuses the model: "ensemble ... contains models that are not available or ambiguous: nobody". A server
    with several repositories may have it elsewhere.

    Source: core, model_repository_manager.cc.
    Fix: correct the name, or add the model.
    """
    for index, one in enumerate(config.proto.ensemble_scheduling.step):
        if one.model_name and not one.model_namespace and config.model.repository.model(one.model_name) is None:
            yield Problem(
                config.at("ensemble_scheduling", "step", index, "model_name"),
                f'step {index} runs "{one.model_name}", which is not in this repository: the ensemble cannot load. '
                "Correct the name, or add the model.",
            )


@rule(
    "S752",
    Severity.ERROR,
    bad=Example(ensemble(step(version=7)), files=STEP_FILES),
    good=GOOD,
    refused="whose required version",
)
def versions_of_steps_are_served(config: Configuration) -> Iterator[Problem]:
    """A step of an ensemble wants a version that its model does not serve.

    tritonserver refuses the model: "depends on 'part' whose required version 7 is not loaded". Which versions are
    served is the model's `version_policy`, by default the newest.

    Source: core, model_repository_manager.cc.
    Fix: write -1 for the newest, or serve that version.
    """
    for index, one, run in steps_of(config):
        if one.model_version > 0 and run.served_versions and one.model_version not in run.served_versions:
            yield Problem(
                config.at("ensemble_scheduling", "step", index, "model_version"),
                f'step {index} wants version {one.model_version} of "{one.model_name}", which serves '
                f"{', '.join(map(str, run.served_versions))}: the ensemble cannot load. Write -1 for the newest.",
            )


@rule(
    "S753",
    Severity.ERROR,
    bad=Example(ensemble(step(inputs={"X": "x"})), files=STEP_FILES),
    good=GOOD,
    refused="is mapping to non-existing input",
)
def inputs_of_steps_exist(config: Configuration) -> Iterator[Problem]:
    """A step maps an input that its model does not have.

    tritonserver refuses the model: "ensemble tensor x is mapping to non-existing input X in model part". The key of a
    map is the model's name for the tensor, the value the ensemble's.

    Source: core, ensemble_utils.cc (ValidateTensorMapping).
    Fix: correct the key.
    """
    for index, one, run in steps_of(config):
        known = [tensor.name for tensor in run.proto.input]
        for name in one.input_map:
            if name not in known:
                yield Problem(
                    config.at("ensemble_scheduling", "step", index, "input_map"),
                    f'step {index} maps input "{name}", and "{one.model_name}" has {", ".join(known)}: the ensemble '
                    "cannot load. The key is the model's name, the value the ensemble's.",
                )


@rule(
    "S754",
    Severity.ERROR,
    bad=Example(ensemble(step(outputs={"Y": "y"})), files=STEP_FILES),
    good=GOOD,
    refused="is mapped from non-existing output",
)
def outputs_of_steps_exist(config: Configuration) -> Iterator[Problem]:
    """A step maps an output that its model does not have.

    tritonserver refuses the model: "ensemble tensor y is mapped from non-existing output Y in model part".

    Source: core, ensemble_utils.cc (ValidateTensorMapping).
    Fix: correct the key.
    """
    for index, one, run in steps_of(config):
        known = [tensor.name for tensor in run.proto.output]
        for name in one.output_map:
            if name not in known:
                yield Problem(
                    config.at("ensemble_scheduling", "step", index, "output_map"),
                    f'step {index} maps output "{name}", and "{one.model_name}" has {", ".join(known)}: the ensemble '
                    "cannot load. The key is the model's name, the value the ensemble's.",
                )


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
    for index, one, run in steps_of(config):
        missing = [
            tensor.name for tensor in run.proto.input if not tensor.optional and tensor.name not in one.input_map
        ]
        known = {tensor.name for tensor in run.proto.input}
        if missing and one.input_map and known.issuperset(one.input_map):  # S753 reports a wrong name
            yield Problem(
                config.at("ensemble_scheduling", "step", index),
                f'step {index} maps nothing to {", ".join(missing)} of "{one.model_name}": the ensemble cannot load. '
                "Add it to the input_map.",
            )
