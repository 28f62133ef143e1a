"""A model repository: models, with their versions and configurations."""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from export.graph.signature import SignatureError
from serve.doctor.configuration import Configuration, Source
from serve.doctor.document import Document
from serve.doctor.folders import entries, is_folder, is_stranger
from serve.doctor.graph import Graph
from serve.doctor.target import Target

VERSION = re.compile("0|[1-9][0-9]{0,17}")


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
            if document.trouble is not None:
                continue
            # L001 reports a file that cannot be parsed.
            with suppress(text_format.ParseError, ValueError, RecursionError):
                proto = text_format.Parse(document.text, ModelConfig())
                variant = document.path.stem if index else None
                yield Configuration(model=self, document=document, proto=proto, variant=variant)

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
        if model := next((model for model in self.all_models if model.name == name), None):
            return model
        folder = self.path / name
        return Model(repository=self, folder=folder) if name and is_folder(folder) else None
