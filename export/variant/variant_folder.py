"""The folder of a variant: the original's files under another name, and a record of what was made."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

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
    """Write what the variant was made of."""
    (folder / RECORD).write_text(json.dumps(about, indent=2) + "\n")


def original(folder: Path) -> str:
    """The model that a variant was made of; "" if this program did not make it."""
    try:
        return str(json.loads((folder / RECORD).read_text())["model"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def keep_configs(folder: Path, draft: Path) -> None:
    """Copy the configurations that were added to an older variant, as `tune` does, into its successor."""
    for path in folder.glob("configs/*.pbtxt"):
        if not (draft / "configs" / path.name).exists():
            (draft / "configs").mkdir(exist_ok=True)
            shutil.copy2(path, draft / "configs")
