"""S7: the steps of an ensemble, compared with the models that they run, and the tensors between them."""

from collections import defaultdict
from collections.abc import Iterator, Mapping

from tritonclient.grpc.model_config_pb2 import ModelEnsembling

from serve.doctor.configuration import Configuration
from serve.doctor.finding import Problem, Severity
from serve.doctor.rule import PYTHON_MODEL, Example, rule
from serve.doctor.target import Target
from triton_batching.releases import has

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
        if missing:
            yield Problem(
                config.at("ensemble_scheduling", "step", index),
                f'step {index} maps nothing to {", ".join(missing)} of "{step.model_name}": the ensemble cannot load. '
                "Add it to the input_map.",
            )


def _chain(second: str) -> Example:
    """Two steps; the second reads the tensor `second`."""
    tensors = ", ".join(f'{{ name: "{name}" data_type: TYPE_FP32 dims: [ 2 ] }}' for name in ("y", "z"))
    steps = ensemble_text(step_text(), step_text(inputs={"x": second}, outputs={"y": "z"}))
    return Example(f"output [ {tensors} ]\n{steps}", files=STEP_FILES)


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
    steps = config.proto.ensemble_scheduling.step
    known = {tensor.name for tensor in config.proto.input}
    known |= {tensor for step in steps for tensor in step.output_map.values()}
    reported: set[str] = set()
    for index, step in enumerate(steps):
        for tensor in sorted({*step.input_map.values()} - known - reported):
            reported.add(tensor)
            yield Problem(
                config.at("ensemble_scheduling", "step", index, "input_map"),
                f'tensor "{tensor}" is never written: the ensemble cannot load. Correct the name.',
            )


Use = tuple[int | None, str, list[int], list[int]]
"""One use of a tensor: step (None is the ensemble), model, dims, and dims with the batch axis."""


def _uses(config: Configuration) -> dict[str, list[Use]]:
    """The uses of each tensor of the ensemble; the declaration of the ensemble first."""
    uses: defaultdict[str, list[Use]] = defaultdict(list)

    def note(name: str, index: int | None, run: Configuration, dims: list[int]) -> None:
        uses[name].append((index, run.model.name, dims, [-1, *dims] if run.proto.max_batch_size > 0 else dims))

    for _, _, tensor in config.tensors():
        note(tensor.name, None, config, list(tensor.dims))
    for index, step, run in steps_of(config):
        for kind, _, tensor in run.tensors():
            names = step.input_map if kind == "input" else step.output_map
            if tensor.name in names:
                note(names[tensor.name], index, run, list(tensor.dims))
    return uses


def _agree(dims: list[int], other_dims: list[int]) -> bool:
    return len(dims) == len(other_dims) and all(a == b or -1 in (a, b) for a, b in zip(dims, other_dims, strict=True))


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
        for index, model, dims, full in others:
            if index is not None and not _agree(dims, first[2]) and not _agree(full, first[3]):
                yield Problem(
                    config.at("ensemble_scheduling", "step", index),
                    f'tensor "{tensor}" is {first[2]} in "{first[1]}" and {dims} in "{model}": the ensemble cannot '
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


STREAMING = files(f"{STEP_CONFIG}model_transaction_policy {{ decoupled: true }}\n") | {
    "../part/1/model.py": PYTHON_MODEL.replace(
        "return [self.answer(request) for request in requests]",
        "for request in requests:\n            request.get_response_sender().send("
        "self.answer(request), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)",
    )
}
"""The model "part", decoupled."""


@rule(
    "S762",
    Severity.WARNING,
    bad=Example(
        ensemble_text(step_text(outputs={"y": "middle"}), step_text(inputs={"x": "middle"})),
        files=STREAMING,
        target=Target(release=(25, 11)),
    ),
    good=Example(
        ensemble_text(step_text(outputs={"y": "middle"}), step_text(inputs={"x": "middle"})),
        files=STEP_FILES,
        target=Target(release=(25, 11)),
    ),
)
def streams_between_steps_are_limited(config: Configuration) -> Iterator[Problem]:
    """A decoupled step feeds another one without a limit.

    If a step sends responses faster than the next one takes them, the waiting tensors fill the memory. Releases since
    25.11 can limit them; older ones refuse the field.

    Source: server documentation, ensemble_models.md (max_inflight_requests), 25.11.
    Fix: set ensemble_scheduling.max_inflight_requests.
    """
    scheduling = config.proto.ensemble_scheduling
    if not has("inflight_limit", config.target.release) or getattr(scheduling, "max_inflight_requests", None):
        return
    read = {tensor for step in scheduling.step for tensor in step.input_map.values()}
    for index, step, run in steps_of(config):
        if run.proto.model_transaction_policy.decoupled and read & set(step.output_map.values()):
            yield Problem(
                config.at("ensemble_scheduling", "step", index),
                f'"{step.model_name}" is decoupled and feeds another step without a limit to the waiting responses. '
                "Set max_inflight_requests.",
            )


RAGGED = 'input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true } ]'
OPEN = STEP_CONFIG.replace("[ 2 ]", "[ -1 ]")


@rule(
    "S765",
    Severity.WARNING,
    bad=Example(f"{RAGGED}\n{ENSEMBLE}", files=files(OPEN)),
    good=Example(f"{RAGGED.replace(' allow_ragged_batch: true', '')}\n{ENSEMBLE}", files=files(OPEN)),
)
def ensembles_are_not_ragged(config: Configuration) -> Iterator[Problem]:
    """An input of an ensemble is ragged, which has no effect.

    An ensemble does not batch, so the flag does nothing there: its steps batch, and each decides for its own inputs.

    Source: server#8653; core, the ensemble scheduler has no batcher.
    Fix: set allow_ragged_batch in the model of the step that takes this input, if that model can, and remove it here.
    """
    for index, tensor in enumerate(config.proto.input if config.backend == "ensemble" else ()):
        if tensor.allow_ragged_batch:
            yield Problem(
                config.at("input", index, "allow_ragged_batch"),
                f'allow_ragged_batch of "{tensor.name}" has no effect: an ensemble does not batch. Set it in the model '
                "of the step that takes this input.",
            )
