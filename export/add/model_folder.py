"""Writes model folders into a repository, all of them complete or none."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from triton_batching.terminal import Mistake


def existing(repository: Path, name: str, *, force: bool) -> None:
    """Raise `Mistake` if `name` cannot be written: a file has it, or a folder that `force` does not replace."""
    folder = repository / name
    if folder.is_dir() and not force:
        raise Mistake(
            f"{folder}: exists already, and nothing was changed. Choose another name, or replace it with --force."
        )
    if folder.exists() and not folder.is_dir():
        raise Mistake(f"{folder}: is a file, so no model folder can have that name. Choose another name.")


@contextlib.contextmanager
def drafts(repository: Path) -> Iterator[Path]:
    """A temporary folder for model folders, on the repository's disk so that each of them moves there in one step.

    It lies beside the repository, because tritonserver takes every directory in it as a model, even a hidden one.
    """
    try:
        repository.mkdir(exist_ok=True)
        parent = repository.resolve().parent
        if parent.stat().st_dev != repository.stat().st_dev or not os.access(parent, os.W_OK):
            parent = repository.resolve()  # the repository is a mounted volume
        folder = Path(tempfile.mkdtemp(prefix=f".{repository.resolve().name}-draft-", dir=parent))
    except OSError as error:
        raise Mistake(f"{repository}: cannot be written to ({error.strerror}). Name another --repository.") from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Write text files, named by their path below `folder`."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def move_in(folders: list[Path], repository: Path) -> None:
    """Move complete folders into the repository and replace those of the same name; all of them or none."""
    done: list[tuple[Path, Path | None]] = []
    try:
        for draft in folders:
            target, old = repository / draft.name, None
            if target.exists():
                old = draft.with_name(f"{draft.name}.replaced")
                target.rename(old)
            done.append((target, old))
            draft.rename(target)
    except BaseException as error:
        for target, old in reversed(done):
            shutil.rmtree(target, ignore_errors=True)
            if old is not None:
                old.rename(target)
        if isinstance(error, OSError):
            raise Mistake(
                f"{repository}: cannot be written to ({error.strerror}). Name another --repository."
            ) from error
        raise
