"""Writes a model folder into a repository, complete or not at all."""

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from triton_batching.terminal import Mistake, again


def existing(repository: Path, name: str, *, force: bool) -> None:
    """Raise `Mistake` if `name` cannot be written: a file has it, or a folder that `force` does not replace."""
    folder = repository / name
    if folder.is_dir() and not force:
        raise _exists(folder)
    if folder.exists() and not folder.is_dir():
        raise Mistake(f"{folder}: is a file, so no model folder can have that name. Choose another name.")


def _exists(folder: Path) -> Mistake:
    return Mistake(f"{folder}: exists already, and nothing was changed. To replace it: {again('--force')}")


@contextlib.contextmanager
def draft(repository: Path, name: str) -> Iterator[Path]:
    """An empty folder `name` on the repository's disk, so that it moves there in one step.

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
        (folder / name).mkdir()
        yield folder / name
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Turn errors of a full disk or too little memory into a `Mistake` that says what to do."""
    try:
        yield
    except OSError as error:
        # An error of writing to an open file has no file name.
        where = f"{error.filename}: " if error.filename else ""
        raise Mistake(
            f"{where}the model could not be written ({error.strerror or error}), and nothing was added. Free some "
            f"space there or in {tempfile.gettempdir()}, or name another --repository."
        ) from error
    except MemoryError as error:
        raise Mistake(
            f"the model does not fit into memory ({error}), and nothing was added. Lower --max-batch-size."
        ) from error


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Write text files, named by their path below `folder`."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def move_in(folder: Path, repository: Path, *, force: bool) -> None:
    """Move a complete folder into the repository; `force` replaces a folder of the same name.

    Raises `Mistake` for a folder that exists, also if another program made it a moment ago: a folder that is not empty
    cannot be replaced by a rename.
    """
    target, old = repository / folder.name, folder.with_name(f"{folder.name}.replaced")
    try:
        if force and target.exists():
            target.rename(old)
        folder.rename(target)
    except BaseException as error:
        if old.exists():
            with contextlib.suppress(OSError):
                old.rename(target)
        if isinstance(error, OSError):
            if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
                raise _exists(target) from error
            raise Mistake(
                f"{repository}: cannot be written to ({error.strerror}). Name another --repository."
            ) from error
        raise
