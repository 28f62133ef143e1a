"""The model repository on disk: its layout and config.pbtxt, read as Triton's own `ModelConfig` protobuf.

`python -m export.repository` checks every configuration and variant against its ONNX graph.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from export.graph.signature import Signature, SignatureError, check
from triton_batching.terminal import Mistake, complain, guarded, program_parser, terminal

REPOSITORY = Path(__file__).parents[1] / "model_repository"


class RepositoryError(Mistake):
    """Something in a model repository that Triton would refuse or misread; the text says where and what to do."""


def models(repository: Path = REPOSITORY) -> list[str]:
    """Names of all models: Triton takes every directory of the repository as one."""
    if not repository.is_dir():
        raise RepositoryError(f"{repository}: no such directory. Name a model repository.")
    return sorted(path.name for path in repository.iterdir() if path.is_dir())


def model_folder(model: str, repository: Path = REPOSITORY) -> Path:
    """The folder of `model`; an unknown name raises `RepositoryError` that lists the known ones."""
    known = models(repository)
    if model not in known:
        raise RepositoryError(f"{repository}: no model '{model}' there. It has: {', '.join(known) or 'none'}.")
    return repository / model


def variants(folder: Path) -> list[str]:
    """Names of the files under `configs/`, each a whole configuration for `--model-config-name`."""
    return sorted(path.stem for path in (folder / "configs").glob("*.pbtxt"))


def config_file(folder: Path, variant: str | None) -> Path:
    """The file that tritonserver reads for `--model-config-name=variant`.

    A missing variant raises: tritonserver itself would silently use config.pbtxt.
    """
    if variant is None:
        return folder / "config.pbtxt"
    path = folder / "configs" / f"{variant}.pbtxt"
    if not path.is_file():
        raise RepositoryError(
            f"{path}: no such file, and tritonserver would silently load config.pbtxt instead. "
            f"'{folder.name}' has: {', '.join(variants(folder)) or 'no variants'}."
        )
    return path


def read_config(path: Path) -> ModelConfig:
    """Parse one text protobuf; a mistake raises `RepositoryError` with its line and column."""
    try:
        config = text_format.Parse(path.read_text(), ModelConfig())
    except OSError as error:
        raise RepositoryError(f"{path}: cannot be read ({error.strerror}). Each model folder needs one.") from error
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise RepositoryError(f"{path}: not a model configuration, at {error}. Correct it there.") from error
    return config


def model_file(folder: Path, config: ModelConfig) -> Path:
    """The file that the newest version serves: model.onnx, model.py or `default_model_filename`.

    An ensemble has none: it gives the version's folder, which Triton wants all the same.
    """
    versions = [int(path.name) for path in folder.iterdir() if path.is_dir() and path.name.isdecimal()]
    version = folder / str(max(versions, default=1))
    if config.HasField("ensemble_scheduling"):
        return version
    default = "model.py" if config.backend == "python" else "model.onnx"
    return version / (config.default_model_filename or default)


def steps(config: ModelConfig) -> list[str]:
    """The models that this one calls: an ensemble's steps, or those that a Python model names in `steps`."""
    named = config.parameters["steps"].string_value if "steps" in config.parameters else ""
    called = [step.model_name for step in config.ensemble_scheduling.step]
    return list(dict.fromkeys([*called, *filter(None, (name.strip() for name in named.split(",")))]))


def with_steps(model_names: Sequence[str], variant: str | None = None, repository: Path = REPOSITORY) -> list[str]:
    """The models and, behind each, all that it calls; raises `RepositoryError` for one that is not there."""
    found: dict[str, None] = {}
    waiting = list(model_names)
    while waiting:
        model = waiting.pop(0)
        if model not in found:
            found[model] = None
            folder = model_folder(model, repository)
            waiting = steps(read_config(config_file(folder, variant))) + waiting
    return list(found)


def served_file(model: str, repository: Path = REPOSITORY) -> Path:
    """The file that `model` serves with its config.pbtxt; it need not exist yet."""
    folder = model_folder(model, repository)
    return model_file(folder, read_config(config_file(folder, None)))


def faults(repository: Path = REPOSITORY) -> Iterator[str]:
    """Every disagreement between a model's folder, its configurations and its graph, one line each."""
    for model in models(repository):
        folder = repository / model
        for variant in [None, *variants(folder)]:
            path = config_file(folder, variant)
            try:
                yield from _faults(path, folder, read_config(path))
            except (RepositoryError, SignatureError) as error:
                yield str(error)


def _faults(path: Path, folder: Path, config: ModelConfig) -> Iterator[str]:
    if config.name != folder.name:
        yield f'{path}: name is "{config.name}", Triton wants the folder\'s, "{folder.name}". Correct the name.'
    served = model_file(folder, config)
    if served.suffix == ".onnx" and served.is_file():
        yield from (f"{path}: {fault}" for fault in check(config, Signature.of(served)))
    elif not served.exists() and served.suffix != ".onnx":
        yield f"{path}: the model file {served} does not exist, so the model cannot load. Add it."
    known = models(folder.parent)
    for step in steps(config):
        if step not in known:
            yield f"{path}: calls '{step}', which is not among {', '.join(known)}. Correct the name, or add the model."


def report(repository: Path) -> int:
    """Print what was checked; 1 when there is a fault."""
    console = terminal()
    found = list(dict.fromkeys(faults(repository)))
    for model in models(repository):
        folder = repository / model
        missing = [path for path in [_served(folder)] if path is not None and not path.exists()]
        state = f" (not exported yet: make export ARGS={model})" if missing else ""
        console.print(f"{model}: config.pbtxt + {len(variants(folder))} variants{state}", markup=False)
    for fault in found:
        complain(fault)
    console.print("no faults" if not found else f"{len(found)} faults")
    return 1 if found else 0


def _served(folder: Path) -> Path | None:
    try:
        return model_file(folder, read_config(folder / "config.pbtxt"))
    except RepositoryError:
        return None  # it is among the faults


def main(argv: list[str] | None = None) -> int:
    """Check a repository; exit code 1 when there is a fault, 2 when there is no repository."""
    parser = program_parser("python -m export.repository", __doc__, example="model_repository")
    parser.add_argument("repository", nargs="?", type=Path, default=REPOSITORY)
    repository = parser.parse_args(argv).repository
    return guarded(lambda: report(repository))


if __name__ == "__main__":
    sys.exit(main())
