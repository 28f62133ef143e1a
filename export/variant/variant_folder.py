"""The folder of a variant: the original's files under another name, and a record of what was made."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from export.add.model_folder import existing
from export.graph.recipe import digest
from export.repository import model_file, read_config
from triton_batching.terminal import Mistake

# Triton ignores files in a model's folder.
RECORD = "variant.json"
NAME_FIELD = re.compile(r'^(?P<before>\s*name\s*:\s*)"[^"\n]*"', re.MULTILINE)
CONFIGURATIONS = ("config.pbtxt", "configs/*.pbtxt")
# Gives the lines to append to a configuration.
Appended = Callable[[ModelConfig], Iterator[str]]


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The model that a variant is made of: its folder, configuration and served file."""

    folder: Path
    config: ModelConfig
    served: Path

    @classmethod
    def of(cls, folder: Path) -> "Origin":
        """Read the model in `folder`; raises `RepositoryError`."""
        config = read_config(folder / "config.pbtxt")
        return cls(folder=folder, config=config, served=model_file(folder, config))

    @property
    def configurations(self) -> list[Path]:
        """config.pbtxt, and the variants that serve the same file."""
        named = [path for pattern in CONFIGURATIONS for path in sorted(self.folder.glob(pattern))]
        return [path for path in named if model_file(self.folder, read_config(path)) == self.served]

    @property
    def left_out(self) -> list[str]:
        """Names of the configurations that serve another file, which the variant does not have."""
        named = {path.stem for path in self.folder.glob(CONFIGURATIONS[1])}
        return sorted(named - {path.stem for path in self.configurations})


def write_configs(origin: Origin, folder: Path, appended: Appended, made_by: str) -> None:
    """Write every configuration under the name of `folder`, and copy other files, except versions and README.md."""
    for path in origin.configurations:
        target = folder / path.relative_to(origin.folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(_renamed(path, folder.name, appended, made_by))
    for path in sorted(origin.folder.iterdir()):
        if path.name.isdecimal() or path.name in ("config.pbtxt", "configs", "README.md", RECORD):
            continue
        copy = shutil.copytree if path.is_dir() else shutil.copy2
        copy(path, folder / path.name)


def _renamed(path: Path, name: str, appended: Appended, made_by: str) -> str:
    """The text of a configuration with another name, and lines at its end; comments stay."""
    wanted = read_config(path)
    lines = list(appended(wanted))
    text = NAME_FIELD.sub(lambda match: f'{match["before"]}"{name}"', path.read_text(), count=1)
    renamed = ModelConfig()
    text_format.Parse(text, renamed)
    wanted.name = name if wanted.name else ""
    if renamed != wanted:
        raise Mistake(f'{path}: its name cannot be found in the text. Write it on a line of its own: name: "...".')
    end = "\n".join(["", *lines]) + "\n" if lines else ""
    return f"# {made_by}\n{text.rstrip()}\n{end}"


def record(folder: Path, about: dict[str, object]) -> None:
    """Write which files were made, with their digests, so that a later run knows them; the last file to write."""
    files = {name: digest(path) for name, path in _files(folder).items()}
    (folder / RECORD).write_text(json.dumps({**about, "files": files}, indent=2) + "\n")


def original(folder: Path) -> str:
    """The model that a variant was made of; "" if this program did not make it."""
    try:
        return str(json.loads((folder / RECORD).read_text())["model"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def check_replaceable(folder: Path, *, force: bool) -> None:
    """Raise `Mistake` if what is there must not be replaced: it was not made by this program, or changed since.

    With `force` any folder is replaced.
    """
    existing(folder.parent, folder.name, force=True)
    if force or not folder.exists():
        return
    made = _made(folder)
    if made is None:
        raise Mistake(
            f"{folder}: exists already, and this program did not make it. Rename it, or replace it with --force."
        )
    changed = [name for name, path in _files(folder).items() if name in made and digest(path) != made[name]]
    if changed:
        raise Mistake(
            f"{folder}: {', '.join(changed)} changed since this program made it, and would be lost. Move your changes "
            "to the original, or replace everything with --force."
        )


def keep_added(folder: Path, draft: Path, *, force: bool) -> None:
    """Copy what was added to an older variant since it was made into its successor; raises as `check_replaceable`."""
    check_replaceable(folder, force=force)
    if force or not folder.exists():
        return
    made = _made(folder) or {}
    for name, path in _files(folder).items():
        target = draft / name
        if name not in made and name != RECORD and not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)


def _files(folder: Path) -> dict[str, Path]:
    return {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}


def _made(folder: Path) -> dict[str, str] | None:
    """The digests of the files that this program made; None if it made none here."""
    try:
        files = json.loads((folder / RECORD).read_text())["files"]
        return {str(name): str(value) for name, value in files.items()}
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return None
