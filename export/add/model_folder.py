"""One model's folder in a repository, written whole or not at all: graph, configuration, variants and README."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from triton_batching.terminal import Mistake


def existing(repository: Path, name: str, *, force: bool) -> None:
    """Raise `Mistake` when `name` is taken and `force` does not say to replace it."""
    folder = repository / name
    if folder.is_dir() and not force:
        raise Mistake(
            f"{folder}: is there already, and nothing was changed. Choose another name, or replace it: --force."
        )
    if folder.exists() and not folder.is_dir():
        raise Mistake(f"{folder}: is a file, so no model folder can have that name. Choose another name.")


@contextlib.contextmanager
def drafts(repository: Path) -> Iterator[Path]:
    """A folder to build model folders in, on the disk of the repository, so that each moves there in one step.

    It lies beside the repository: tritonserver takes every directory in it, hidden or not, as a model. Gone at the end.
    """
    try:
        repository.mkdir(exist_ok=True)
        beside = repository.resolve().parent
        if beside.stat().st_dev != repository.stat().st_dev or not os.access(beside, os.W_OK):
            beside = repository.resolve()  # a mounted volume: nothing beside it is on the same disk
        folder = Path(tempfile.mkdtemp(prefix=f".{repository.resolve().name}-draft-", dir=beside))
    except OSError as error:
        raise Mistake(f"{repository}: cannot be written to ({error.strerror}). Name another --repository.") from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Write text files, by their path below `folder`."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def move_in(drafted: list[Path], repository: Path) -> None:
    """Move finished folders into the repository, in place of those of the same name; all of them or none."""
    done: list[tuple[Path, Path | None]] = []
    try:
        for draft in drafted:
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
