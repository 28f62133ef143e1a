"""Reads the model that a user names: an ONNX file, a torch.export file or a torch module factory."""

import zipfile
from dataclasses import replace
from pathlib import Path

from export.compiled import TORCH_ENDINGS, platform_of
from export.graph.onnx_graph import load
from export.graph.repairs import repaired
from export.graph.source import INSTALL_TORCH, Source, check
from triton_batching.terminal import Mistake

# One of these is in every archive of torch.export.save, under the archive's own name in newer ones.
MARKS = ("archive_format", "serialized_exported_program.json")
FORMS = "an ONNX file (.onnx), a torch.export file (.pt2) or a torch module factory (package.module:function)"


def read(text: str, *, open_axes: bool = False) -> Source:
    """Read and check the model that `text` names; imports torch only for .pt2 files and factories.

    With `open_axes` torch leaves every axis of a factory's inputs open that the module does not fix.
    Raises `Mistake` for a missing or unreadable file, a factory that fails, and a graph that Triton cannot serve.
    """
    check_name(text)
    path = Path(text)
    source = Source(model=load(path), origin=path.name) if path.suffix == ".onnx" else _from_torch(text, open_axes)
    source = replace(source, user_path=text, changes=repaired(source.model))
    check(source)
    return source


def check_name(text: str) -> None:
    """Raise `Mistake` if `text` names no file, a compiled model or a file of another kind; imports no factory."""
    path = Path(text)
    is_known = path.suffix in (".onnx", ".pt2") or _is_program(path)
    if ":" in text and not is_known and not path.exists():
        if not all(text.rpartition(":")[::2]):
            raise Mistake(f"{text}: names no factory. Write package.module:function.")
        return
    if path.is_dir():
        raise Mistake(f"{path}: is a folder. Name {FORMS}.")
    if not path.is_file():
        raise Mistake(f"{path}: no such file. Name {FORMS}.")
    if platform := platform_of(path):
        raise Mistake(
            f"{path}: is {platform.title}, and only a graph has a proof of its batch axis. Add {platform.instead}."
        )
    if not is_known:
        raise Mistake(f"{path}: {_unreadable(path)} Name {FORMS}.")


def _from_torch(text: str, open_axes: bool) -> Source:
    try:
        from export.graph import torch_source
    except ModuleNotFoundError as error:
        raise Mistake(f"{text}: reading it needs {error.name}. {INSTALL_TORCH}") from error
    if text.endswith(TORCH_ENDINGS):
        return torch_source.from_program(Path(text))
    return torch_source.from_factory(text, open_axes=open_axes)


def _is_program(path: Path) -> bool:
    """Whether torch.export.save wrote the file, whatever its ending."""
    if path.suffix not in TORCH_ENDINGS or not path.is_file() or not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.rpartition("/")[2] in MARKS for name in archive.namelist())


def _unreadable(path: Path) -> str:
    if path.suffix in TORCH_ENDINGS:
        return (
            "holds no module: weights alone, or something that is not known. Save the module with torch.export.save "
            "(under any of these endings), or build it in a factory."
        )
    return "not a kind of model that can be added."
