"""What has changed since a record was made: its model file, its configuration, the versions of the packages."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from export.graph.recipe import model_digest
from export.repository import config_file, model_file, model_folder, read_config
from perf.report.index import fault
from triton_batching.machine import versions
from triton_batching.terminal import Mistake

# The name of config.pbtxt in records.
DEFAULT = "default"


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """What a record says of its making; empty fields are not on record.

    `same_config` says whether the record is of the configuration in a file.
    """

    model: str = ""
    config_name: str = ""
    model_sha256: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    same_config: Callable[[Path, ModelConfig], bool] | None = None


class Present:
    """The repository and the packages as they are now."""

    def __init__(self, repository: Path) -> None:
        self.repository = repository
        self._digest = cache(model_digest)

    def changes(self, made: Fingerprint) -> tuple[str, ...]:
        """What has changed since, in words; empty if nothing that is on record."""
        try:
            return (*self._of_files(made), *_of_versions(made.versions))
        except Mistake as mistake:
            return (f"cannot be compared with {self.repository}: {mistake}",)
        except OSError as error:
            return (f"cannot be compared with {self.repository}: {fault.unreadable(error)}",)

    def _of_files(self, made: Fingerprint) -> Iterator[str]:
        if not (made.model_sha256 or made.same_config):
            return
        if not (self.repository / made.model).is_dir():
            yield f"the model is not in {self.repository}"
            return
        folder = model_folder(made.model, self.repository)
        path = config_file(folder, None if made.config_name in ("", DEFAULT) else made.config_name)
        config = read_config(path)
        config.name = config.name or folder.name
        if made.same_config and not made.same_config(path, config):
            yield f"{path.name} has changed"
        if made.model_sha256:
            yield from self._of_model_file(model_file(folder, config), made.model_sha256)

    def _of_model_file(self, served: Path, then: str) -> Iterator[str]:
        try:
            now = self._digest(served)
        except OSError as error:
            yield f"{served.name} cannot be read ({error.strerror})"
            return
        if now != then:
            yield f"{served.name} has changed" if now else f"{served.name} is gone"


def _of_versions(then: Mapping[str, str]) -> Iterator[str]:
    now = versions()
    for name, version in sorted(then.items()):
        if name in now and now[name] != version:
            yield f"{name} was {version}, is {now[name]}"
