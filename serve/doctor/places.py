"""Which repositories and models the paths on a command line mean."""

from collections.abc import Iterable
from pathlib import Path

from serve.doctor.repository import BACKEND_FILES, Model, Repository, entries, is_folder
from serve.doctor.target import Target
from triton_batching.terminal import Mistake

# A repository with one thing in it that is like a model for every so many folders is still taken as one.
FEW = 4
REPOSITORY_NAME = "model_repository"


def repositories(paths: Iterable[Path], target: Target) -> list[Repository]:
    """Each repository once, limited to those models that were named; raises `Mistake`."""
    found: dict[Path, set[str] | None] = {}
    for path in paths:
        repository, model = _place(path)
        if model is None:
            found[repository] = None
        elif (models := found.setdefault(repository, set())) is not None:
            models.add(model)
    known = [
        Repository(path=path, target=target, only=None if models is None else tuple(sorted(models)))
        for path, models in found.items()
    ]
    for place in known:
        if not place.models and not place.strangers:
            raise Mistake(f"{place.path}: no model is there. A repository has a folder for each model.")
        if place.only is None:
            _check_repository(place)
    return known


def _check_repository(place: Repository) -> None:
    """Refuse a folder of other things: Triton would take each folder in it as a model, which nobody asks about."""
    like = [model for model in place.models if _is_like_a_model(model)]
    if len(like) * FEW >= len(place.models):
        return
    count, meant = f"only {len(like)}" if like else "none", place.path / REPOSITORY_NAME
    raise Mistake(
        f"{place.path}: this is no model repository: {count} of its {len(place.models)} folders has a "
        "config.pbtxt, a version (a folder named by its number) or a model file. "
        + (f"Name {meant}." if is_folder(meant) else "Name the folder that holds the models' folders.")
    )


def _is_like_a_model(model: Model) -> bool:
    """Whether anything in the folder is what a model has; a model may lack any of these by mistake."""
    names = {path.name for path in entries(model.folder)}
    return bool(model.versions) or not names.isdisjoint({"config.pbtxt", *BACKEND_FILES}) or len(model.documents) > 1


def _place(path: Path) -> tuple[Path, str | None]:
    """The repository and, for a model or a file in one, the model's name."""
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
    named = folder if folder.name not in ("", "..") else folder.resolve()
    return named.parent, named.name


def _is_model(folder: Path) -> bool:
    """Whether it is a model's folder and not a repository: it has a configuration or a version."""
    return any(
        path.name == "config.pbtxt" or (path.name.isdecimal() and is_folder(path) and _holds_files(path))
        for path in entries(folder)
    )


def _holds_files(folder: Path) -> bool:
    """A version; a model whose name is a number has folders or a config.pbtxt in its place."""
    inside = entries(folder)
    return any(path.name != "config.pbtxt" and not is_folder(path) for path in inside) and not any(
        path.name == "config.pbtxt" for path in inside
    )
