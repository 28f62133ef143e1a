"""Variants of samples that are too few, and on a disk that is full: one sentence, and nothing is left."""

import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.export.test_variant import WIDTH, classifier, made

ROOT = Path(__file__).parents[2]


def samples(folder: Path, count: int) -> list[str]:
    """Options that name random rows."""
    file = folder / f"{count}.npz"
    np.savez(file, x=np.random.default_rng(count).uniform(-1, 1, (count, WIDTH)).astype(np.float32))
    return ["--samples", str(file)]


@pytest.mark.parametrize("precision", ["fp16", "int8-static", "int8-dynamic"])
def test_samples_are_enough_for_both_halves_or_refused_by_their_name(
    tmp_path: Path, precision: str, capsys: pytest.CaptureFixture[str]
) -> None:
    repository = tmp_path / "repository"
    classifier(repository)
    for count in (2, 3):
        made(repository, "classifier", "--precision", precision, *samples(tmp_path, count), code=2)
        assert f"{tmp_path / f'{count}.npz'}: has {count} rows." in " ".join(capsys.readouterr().err.split())
    made(repository, "classifier", "--precision", precision, *samples(tmp_path, 4))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_rows_without_a_range_calibrate_nothing(
    tmp_path: Path, value: float, capsys: pytest.CaptureFixture[str]
) -> None:
    """One such row is enough."""
    repository, file = tmp_path / "repository", tmp_path / "rows.npz"
    classifier(repository)
    rows = np.random.default_rng(1).uniform(-1, 1, (20, WIDTH)).astype(np.float32)
    rows[4, 2] = value
    np.savez(file, x=rows)
    made(repository, "classifier", "--precision", "int8-static", "--samples", str(file), code=2)
    assert 'input "x" is NaN or infinite in rows that calibrate' in " ".join(capsys.readouterr().err.split())
    assert [path.name for path in repository.iterdir()] == ["classifier"]


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    """The largest file that may be written has 1,000 bytes; the variant's graph has more."""
    repository = tmp_path / "repository"
    classifier(repository)
    done = subprocess.run(
        [sys.executable, "-m", "export.variant", "classifier", "--precision", "fp16", "--repository", str(repository)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)),
    )
    said = " ".join(done.stderr.split())
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "the model could not be written (File too large), and nothing was added" in said
    assert [path.name for path in repository.iterdir()] == ["classifier"]
    assert [path.name for path in tmp_path.iterdir()] == ["repository"]
