"""The repositories and models for the paths on a command line."""

from collections.abc import Iterable
from pathlib import Path

from export.repository import BACKEND_FILES
from serve.doctor.folders import entries, is_folder
from serve.doctor.repository import Model, Repository
from serve.doctor.target import Target
from triton_batching.terminal import Mistake

# A folder is a repository if at least one in this many of its folders looks like a model.
FEW = 4
REPOSITORY_NAME = "model_repository"


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
