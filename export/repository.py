"""Reads a model repository: its layout, and config.pbtxt as Triton's own `ModelConfig` protobuf.

`python -m export.repository` checks every configuration and variant against its ONNX graph.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from triton_batching.options import path
from triton_batching.terminal import Mistake, complain, guarded, program_parser, terminal

# These and onnx take 150 ms to import, and the `--help` of the programs that name the repository does not need them.
if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

REPOSITORY = Path(__file__).parents[1] / "model_repository"
NO_BATCHES = (
    "max_batch_size 0, so Triton batches nothing of it. If the first axis of its inputs is the batch, leave that axis "
    "out of dims and set max_batch_size, or add the model with python -m export.add, which proves the axis."
)
NO_MODELS = "{}: there is no model. A repository has a folder for each model."
# What `python -m export` makes; a test holds this to its catalogue.
EXPORTED = (
    "resnet50",
    "text_recognition",
    "text_recognition_512",
    "ranker",
    "text_recognition_ragged",
    "ragged_encoder",
)
# The second name is that of the drop-in backend beside NVIDIA's, for models whose requests are padded.
ONNXRUNTIME = ("onnxruntime", "onnxruntime_padded")
# Triton makes two instances on a CPU for these backends if the configuration has no count.
TWO_ON_CPU = ("onnxruntime", "tensorflow")
# The file that a backend reads if the configuration names none, and the platforms that stand for a backend.
DEFAULT_FILES = {"onnxruntime": "model.onnx", "tensorrt": "model.plan", "pytorch": "model.pt", "python": "model.py"}
# Of an AOTInductor package, which the PyTorch backend reads as well.
AOTI, AOTI_FILE = "torch_aoti", "model.pt2"
# The files from which tritonserver infers the backend, in its order (core, AutoCompleteBackendFields).
BACKEND_FILES = {
    "model.savedmodel": "tensorflow",
    "model.graphdef": "tensorflow",
    "model.plan": "tensorrt",
    "model.onnx": "onnxruntime",
    "model.xml": "openvino",
    "model.pt": "pytorch",
    AOTI_FILE: "pytorch",
    "model.py": "python",
}
PLATFORMS = {
    "tensorflow_savedmodel": "tensorflow",
    "tensorflow_graphdef": "tensorflow",
    "tensorrt_plan": "tensorrt",
    "onnxruntime_onnx": "onnxruntime",
    "pytorch_libtorch": "pytorch",
    AOTI: "pytorch",
    "ensemble": "ensemble",
}


def add_option(options: argparse._ActionsContainer) -> None:
    """Give a program the option --repository: the user's own repository in place of this project's."""
    text = "model repository (default: this project's)"
    options.add_argument("--repository", type=path, default=REPOSITORY, metavar="FOLDER", help=text)


class RepositoryError(Mistake):
    """An error in a model repository that Triton would refuse or misread; the text says where and what to do."""


def models(repository: Path = REPOSITORY) -> list[str]:
    """Names of all models: every directory of the repository, as for Triton; raises `RepositoryError`."""
    if not repository.is_dir():
        raise RepositoryError(f"{repository}: no such directory. Name a model repository.")
    return sorted(path.name for path in repository.iterdir() if path.is_dir())


def repository_option(repository: Path) -> str:
    """The option, with a space before it, that names a repository other than this project's; else ""."""
    return "" if repository.resolve() == REPOSITORY else f" --repository {shlex.quote(str(repository))}"


def model_folder(model: str, repository: Path = REPOSITORY) -> Path:
    """The folder of `model`; raises `RepositoryError` with the names of all models if there is none."""
    names = models(repository)
    if model not in names:
        raise RepositoryError(f"{repository}: no model '{model}' there. It has: {', '.join(names) or 'none'}.")
    return repository / model


def variants(folder: Path) -> list[str]:
    """Names of the files in `configs/`, each a complete configuration for `--model-config-name`."""
    return sorted(path.stem for path in (folder / "configs").glob("*.pbtxt"))


def config_file(folder: Path, variant: str | None) -> Path:
    """The file that tritonserver reads for `--model-config-name=variant`.

    Raises `RepositoryError` for a missing variant, because tritonserver would silently load config.pbtxt.
    """
    if variant is None:
        return folder / "config.pbtxt"
    path = folder / "configs" / f"{variant}.pbtxt"
    # Unlike Path.is_file(), this is False for a name that is too long.
    if not os.path.isfile(path):  # noqa: PTH113
        raise RepositoryError(
            f"{path}: no such file, and tritonserver would silently load config.pbtxt instead. "
            f"'{folder.name}' has: {', '.join(variants(folder)) or 'no variants'}."
        )
    return path


def read_config(path: Path) -> ModelConfig:
    """Parse one configuration; raises `RepositoryError` with line and column of a mistake."""
    from google.protobuf import text_format
    from tritonclient.grpc.model_config_pb2 import ModelConfig

    try:
        config = text_format.Parse(path.read_text(), ModelConfig())
    except OSError as error:
        raise RepositoryError(f"{path}: cannot be read ({error.strerror}). Each model folder needs one.") from error
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise RepositoryError(f"{path}: not a model configuration, at {error}. Correct it there.") from error
    return config


def model_file(folder: Path, config: ModelConfig) -> Path:
    """The file that the newest version serves: `default_model_filename`, or what its backend reads without.

    For an ensemble, which has no file, the version's folder: Triton requires that.
    """
    versions = [int(path.name) for path in folder.iterdir() if path.is_dir() and path.name.isdecimal()]
    version = folder / str(max(versions, default=1))
    if config.HasField("ensemble_scheduling"):
        return version
    return version / (config.default_model_filename or default_file(config) or "model.onnx")


def default_file(config: ModelConfig) -> str:
    """The file that the backend of the configuration reads if none is named; "" if only the backend knows."""
    return AOTI_FILE if is_package(config) else DEFAULT_FILES.get(_backend(config), "")


def is_package(config: ModelConfig) -> bool:
    """Whether the configuration names an AOTInductor package (platform torch_aoti)."""
    return config.platform == AOTI and _backend(config) == "pytorch"


def _backend(config: ModelConfig) -> str:
    return config.backend or PLATFORMS.get(config.platform, "")


def remedy(model: str, path: Path) -> str:
    """What to do about the missing file of a model: the file of one of ours is exported, another is its owner's."""
    if model in EXPORTED:
        return f"Export it: make export ARGS={model}."
    if path.suffix == ".onnx":
        return f"Copy the ONNX file there, or have it proved: triton-batching add FILE.onnx --name {model} --force."
    return "Copy the file there, or name another in default_model_filename."


def steps(config: ModelConfig) -> list[str]:
    """The models that this one calls: an ensemble's steps, or the parameter `steps` of a Python model."""
    parameter = config.parameters["steps"].string_value if "steps" in config.parameters else ""
    ensemble = [step.model_name for step in config.ensemble_scheduling.step]
    return list(dict.fromkeys([*ensemble, *filter(None, (name.strip() for name in parameter.split(",")))]))


def with_steps(model_names: Sequence[str], variant: str | None = None, repository: Path = REPOSITORY) -> list[str]:
    """The models, each followed by all models that it calls; raises `RepositoryError` for a missing model."""
    ordered: dict[str, None] = {}
    waiting = list(model_names)
    while waiting:
        model = waiting.pop(0)
        if model not in ordered:
            ordered[model] = None
            folder = model_folder(model, repository)
            waiting = steps(read_config(config_file(folder, variant))) + waiting
    return list(ordered)


def instance_count(config: ModelConfig, *, gpus: int = 0) -> int:
    """Instances that Triton makes of `config` on a server with `gpus` GPUs.

    Leaves out passive instances, which take no requests. Source: core, `NormalizeInstanceGroup`.
    """
    from tritonclient.grpc.model_config_pb2 import ModelInstanceGroup

    groups = config.instance_group or [ModelInstanceGroup()]
    return sum(group_instances(group, config.backend, gpus) for group in groups if not group.passive)


def batch_policy(config: ModelConfig) -> str:
    """The parameter `batch_policy`; `all` without it: Triton's dynamic batcher decides alone."""
    return config.parameters["batch_policy"].string_value if "batch_policy" in config.parameters else "all"


def group_instances(group: ModelInstanceGroup, backend: str, gpus: int = 0) -> int:
    """Instances of one group on a server with `gpus` GPUs; a count holds for each GPU of the group."""
    on_gpu = group.kind == group.KIND_GPU or (group.kind == group.KIND_AUTO and gpus > 0)
    if on_gpu:
        return max(int(group.count), 1) * (len(group.gpus) or max(gpus, 1))
    default = 2 if backend in TWO_ON_CPU else 1
    return int(group.count) if group.count > 0 else default


def served_file(model: str, repository: Path = REPOSITORY) -> Path:
    """The file that `model` serves with config.pbtxt; it may not exist yet."""
    folder = model_folder(model, repository)
    return model_file(folder, read_config(config_file(folder, None)))


def faults(repository: Path = REPOSITORY) -> Iterator[str]:
    """Every difference between a model's folder, its configurations and its graph, one line each."""
    from export.graph.signature import SignatureError

    for model in models(repository):
        folder = repository / model
        for variant in [None, *variants(folder)]:
            path = config_file(folder, variant)
            try:
                yield from _faults(path, folder, read_config(path))
            except (RepositoryError, SignatureError) as error:
                yield str(error)


def _faults(path: Path, folder: Path, config: ModelConfig) -> Iterator[str]:
    from export.graph.signature import Signature, check

    if config.name and config.name != folder.name:
        yield f'{path}: name is "{config.name}", but Triton requires the folder\'s name "{folder.name}". Correct it.'
    served = model_file(folder, config)
    if served.suffix == ".onnx" and served.is_file():
        yield from (f"{path}: {fault}" for fault in check(config, Signature.of(served)))
    elif not served.exists() and served.suffix != ".onnx":
        yield f"{path}: the model file {served} does not exist, so the model cannot load. Add it."
    names = models(folder.parent)
    for step in steps(config):
        if step not in names:
            yield f"{path}: calls '{step}', which is not among {', '.join(names)}. Correct the name, or add the model."


def report(repository: Path) -> int:
    """Print every model and every fault; returns 1 if there is a fault, else 0."""
    console = terminal()
    if not models(repository):
        raise RepositoryError(NO_MODELS.format(repository))
    lines = list(dict.fromkeys(faults(repository)))
    for model in models(repository):
        made = f": make export ARGS={model}" if model in EXPORTED else ""
        state = "" if _is_exported(repository / model) else f" (its file is missing{made})"
        console.print(f"{model}: config.pbtxt + {len(variants(repository / model))} variants{state}", markup=False)
    for line in lines:
        complain(line)
    console.print("no faults" if not lines else f"{len(lines)} faults")
    return 1 if lines else 0


def _is_exported(folder: Path) -> bool:
    """Whether the model's file exists; True also for an unreadable configuration, which is a fault of its own."""
    try:
        return model_file(folder, read_config(folder / "config.pbtxt")).exists()
    except RepositoryError:
        return True


def main(argv: list[str] | None = None) -> int:
    """Run the program; exit code 1 if there is a fault, 2 if there is no repository."""
    parser = program_parser("python -m export.repository", __doc__, example="model_repository")
    parser.add_argument("repository", nargs="?", type=path, default=REPOSITORY)
    repository = parser.parse_args(argv).repository
    return guarded(lambda: report(repository))


if __name__ == "__main__":
    sys.exit(main())
