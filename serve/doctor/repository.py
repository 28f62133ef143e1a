"""A model repository: models, with their versions and configurations; and those that a command line names."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from export.graph.signature import SignatureError
from export.repository import BACKEND_FILES
from serve.doctor.configuration import Configuration, Source
from serve.doctor.document import Document
from serve.doctor.graph import Graph
from serve.doctor.target import Target
from triton_batching.terminal import Mistake

VERSION = re.compile("0|[1-9][0-9]{0,17}")
# Folders that are models to tritonserver only, besides hidden ones.
STRANGERS = ("__pycache__", "lost+found")
# A folder is a repository if at least one in this many of its folders looks like a model.
FEW = 4
REPOSITORY_NAME = "model_repository"


def entries(folder: Path) -> list[Path]:
    """The paths in a folder, sorted; empty if it cannot be listed."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def is_stranger(path: Path) -> bool:
    """Whether the folder is a model to tritonserver only."""
    return path.name.startswith(".") or path.name in STRANGERS


def is_folder(path: Path) -> bool:
    """Whether the path is a folder, also behind links; False for a loop of links or without permission."""
    try:
        return path.is_dir()
    except OSError:
        return False


@dataclass(frozen=True, kw_only=True)
class Model:
    """One folder of the repository."""

    repository: "Repository"
    folder: Path
    _graphs: dict[Path, Graph | None] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        """The name of the folder."""
        return self.folder.name

    @cached_property
    def version_folders(self) -> dict[int, Path]:
        """Version folders by number, in rising order; Triton skips names with a leading zero."""
        folders = {}
        for path in entries(self.folder):
            if VERSION.fullmatch(path.name) and is_folder(path):
                folders[int(path.name)] = path
        return dict(sorted(folders.items()))

    @property
    def versions(self) -> tuple[int, ...]:
        """Numbers of the versions on disk, in rising order."""
        return tuple(self.version_folders)

    def version_folder(self, number: int) -> Path:
        """The folder of the version `number`, whether or not it exists."""
        return self.version_folders.get(number, self.folder / str(number))

    @cached_property
    def documents(self) -> tuple[Document, ...]:
        """config.pbtxt, which need not exist, and every configs/*.pbtxt, readable or not."""
        variants = (path for path in entries(self.folder / "configs") if path.suffix == ".pbtxt")
        texts = self.repository.texts
        return tuple(
            Document(path=path, text=texts[path]) if path in texts else Document.read(path)
            for path in [self.folder / "config.pbtxt", *variants]
        )

    @cached_property
    def configurations(self) -> tuple[Configuration, ...]:
        """The documents that can be parsed, config.pbtxt first."""
        return tuple(self._configurations())

    def _configurations(self) -> Iterator[Configuration]:
        for index, document in enumerate(self.documents):
            # L001 reports a file that cannot be parsed.
            if document.trouble is None and isinstance(document.proto, ModelConfig):
                variant = document.path.stem if index else None
                yield Configuration(model=self, document=document, proto=document.proto, variant=variant)

    @property
    def config(self) -> Configuration | None:
        """The configuration in config.pbtxt; None if it cannot be parsed."""
        return next((config for config in self.configurations if config.variant is None), None)

    @cached_property
    def steps(self) -> frozenset[str]:
        """The models that it runs as an ensemble, over all its configurations."""
        return frozenset(
            step.model_name for config in self.configurations for step in config.proto.ensemble_scheduling.step
        )

    @cached_property
    def sources(self) -> tuple[Source, ...]:
        """Every model.py of the configurations, each once."""
        sources = {
            source.path: source for config in reversed(self.configurations) if (source := config.source) is not None
        }
        return tuple(sources.values())

    def graph(self, path: Path) -> Graph | None:
        """An ONNX file of this model, read once; None if it cannot be read."""
        if path not in self._graphs:
            try:
                self._graphs[path] = Graph.read(path)
            except SignatureError:
                self._graphs[path] = None
        return self._graphs[path]


@dataclass(frozen=True, kw_only=True)
class Repository:
    """A folder of models, and the machine and server that will load them.

    `only` limits it to the models of these names, and the ensembles that run them; `texts` replace the contents of
    files.
    """

    path: Path
    target: Target = field(default_factory=Target)
    only: tuple[str, ...] | None = None
    texts: Mapping[Path, str] = field(default_factory=dict)

    @cached_property
    def all_models(self) -> tuple[Model, ...]:
        """Every model, also those that `only` leaves out, sorted by name, without `strangers`."""
        folders = (path for path in entries(self.path) if is_folder(path) and not is_stranger(path))
        return tuple(Model(repository=self, folder=path) for path in folders)

    @cached_property
    def _by_name(self) -> dict[str, Model]:
        return {model.name: model for model in self.all_models}

    @cached_property
    def models(self) -> tuple[Model, ...]:
        """The models to examine, sorted by name."""
        if self.only is None:
            return self.all_models
        names = self.with_ensembles(self.only)
        return tuple(model for model in self.all_models if model.name in names)

    def with_ensembles(self, names: Iterable[str]) -> set[str]:
        """The names, and those of the ensembles that run one of these models."""
        found = set(names)
        own = [model.config for model in self.all_models if model.name in found]
        more = found | {config.proto.name for config in own if config is not None}  # a step may use that name (L003)
        while more:  # an ensemble may run another one
            more = {model.name for model in self.all_models if model.name not in found and model.steps & more}
            found |= more
        return found

    @property
    def strangers(self) -> list[Path]:
        """Folders that are models to tritonserver only."""
        return [path for path in entries(self.path) if is_folder(path) and is_stranger(path)]

    def model(self, name: str) -> Model | None:
        """The model of this name, even if `only` leaves it out; None if the repository has none."""
        if model := self._by_name.get(name):
            return model
        folder = self.path / name
        return Model(repository=self, folder=folder) if name and is_folder(folder) else None


def repositories(paths: Iterable[Path], target: Target) -> list[Repository]:
    """Each repository once, limited to the named models; raises `Mistake`."""
    names: dict[Path, set[str] | None] = {}
    for path in paths:
        repository, model = _place(path)
        if model is None:
            names[repository] = None
        elif (models := names.setdefault(repository, set())) is not None:
            models.add(model)
    selected = [
        Repository(path=path, target=target, only=None if models is None else tuple(sorted(models)))
        for path, models in names.items()
    ]
    for place in selected:
        if not place.models and not place.strangers:
            raise Mistake(f"{place.path}: there is no model. A repository has a folder for each model.")
        if place.only is None:
            _check_repository(place)
    return selected


def _check_repository(place: Repository) -> None:
    """Raise `Mistake` for a folder of other things, each of which would be reported as a broken model."""
    like = [model for model in place.models if _is_like_a_model(model)]
    if len(like) * FEW >= len(place.models):
        return
    count, nested = f"only {len(like)}" if like else "none", place.path / REPOSITORY_NAME
    raise Mistake(
        f"{place.path}: this is not a model repository: {count} of its {len(place.models)} folders has a "
        "config.pbtxt, a version (a folder named by its number) or a model file. "
        + (f"Name {nested}." if is_folder(nested) else "Name the folder that holds the models' folders.")
    )


def _is_like_a_model(model: Model) -> bool:
    """Whether the folder has at least one of the files of a model."""
    names = {path.name for path in entries(model.folder)}
    return bool(model.versions) or not names.isdisjoint({"config.pbtxt", *BACKEND_FILES}) or len(model.documents) > 1


def _place(path: Path) -> tuple[Path, str | None]:
    """The repository, and the model's name for a model or a file in a model."""
    try:
        is_file, exists = path.is_file(), path.exists()
    except OSError as error:
        raise Mistake(f"{path}: cannot be looked at ({error.strerror}).") from error
    if not exists:
        raise Mistake(f"{path}: no such file or folder. Name a model repository, a model or a config.pbtxt.")
    if not is_file:
        return _split(path) if _is_model(path) else (path, None)
    # config.pbtxt is in the model's folder; configs/x.pbtxt and 1/model.py are one folder further down.
    for folder in list(path.absolute().parents)[:3]:
        if _is_model(folder):
            return _split(folder)
    raise Mistake(f"{path}: not a file of a model. Name a model repository, a model or a config.pbtxt.")


def _split(folder: Path) -> tuple[Path, str]:
    path = folder if folder.name not in ("", "..") else folder.resolve()
    return path.parent, path.name


def _is_model(folder: Path) -> bool:
    """Whether it is a model's folder, with a configuration or a version, and not a repository."""
    return any(
        path.name == "config.pbtxt" or (path.name.isdecimal() and is_folder(path) and _holds_files(path))
        for path in entries(folder)
    )


def _holds_files(folder: Path) -> bool:
    """Whether the folder is a version; a model whose name is a number has folders or a config.pbtxt."""
    inside = entries(folder)
    return any(path.name != "config.pbtxt" and not is_folder(path) for path in inside) and not any(
        path.name == "config.pbtxt" for path in inside
    )
