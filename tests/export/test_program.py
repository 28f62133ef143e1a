"""`python -m export` and the proofs behind it, on real exports."""

import dataclasses
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from tiny_models import mixing

from export import verify
from export.__main__ import main
from export.command import export
from export.graph.recipe import Recipe
from export.models.catalogue import CATALOGUE, TRAINED, Exporter
from export.models.ranker import Reference
from export.repository import REPOSITORY, RepositoryError
from export.verify import ProofError, prove
from triton_batching.terminal import Mistake

NO_REFERENCE = Exporter(
    seeded=Recipe(model="m"),
    write=lambda recipe, weights, path: None,
    reference=lambda recipe, weights: Reference(0),
)


def ruined(mistake: str, path: Path) -> None:
    """Change one thing in an exported file."""
    model = onnx.load(path)
    if mistake == "weights":
        first = next(tensor for tensor in model.graph.initializer if tensor.name == "w0")
        first.CopyFrom(onnx.numpy_helper.from_array(np.ones((256, 4096), dtype=np.float32), "w0"))
    elif mistake == "fixed batch":
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    else:
        model.graph.input[0].name = mistake
        model.graph.node[0].input[0] = mistake
    onnx.save(model, path)


def test_a_second_export_has_nothing_to_do(ranker: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = ranker.stat().st_mtime_ns
    assert main(["ranker"]) == 0
    assert "ranker: up to date" in capsys.readouterr().out
    assert ranker.stat().st_mtime_ns == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ("weights", "differs from its reference"),
        ("fixed batch", "without a dynamic batch axis, and max_batch_size is 64"),
        ("renamed", "unexpected inference input 'features'"),
    ],
)
def test_a_wrong_file_is_not_proved(ranker: Path, tmp_path: Path, mistake: str, message: str) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(ranker.read_bytes())
    ruined(mistake, path)
    with pytest.raises((ProofError, RepositoryError), match=message):
        prove("ranker", path, CATALOGUE["ranker"])


def test_a_batch_that_mixes_its_rows_is_not_proved(tmp_path: Path) -> None:
    folder = mixing(tmp_path)
    with pytest.raises(ProofError, match=r"differs from the rows alone by .* So the first axis is not a batch axis"):
        prove("mixing", folder / "1" / "model.onnx", NO_REFERENCE, repository=tmp_path)


@pytest.mark.slow
def test_the_committed_recogniser_is_its_weights() -> None:
    """The committed file answers as torch does with the committed weights."""
    exporter = CATALOGUE["text_recognition"]
    committed = REPOSITORY / "text_recognition" / "1" / "model.onnx"
    assert exporter.recipe == Recipe.of(committed)
    proof = prove("text_recognition", committed, exporter)
    assert proof.reference is not None
    assert proof.reference.error <= 1e-4


def test_a_failed_proof_keeps_the_old_file(ranker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = mixing(tmp_path)
    path = folder / "1" / "model.onnx"
    before = path.read_bytes()

    def write(_: Recipe, __: Path | None, draft: Path) -> None:
        draft.write_bytes(before)

    bad = dataclasses.replace(NO_REFERENCE, write=write)
    with pytest.raises(ProofError):
        export("mixing", bad, repository=tmp_path)
    assert path.read_bytes() == before
    assert [entry.name for entry in path.parent.iterdir()] == ["model.onnx"]


@pytest.mark.slow
def test_a_config_that_disagrees_ends_with_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    variant = "configs/dynamic.pbtxt"
    folder = tmp_path / "ranker"
    shutil.copytree(REPOSITORY / "ranker", folder, ignore=shutil.ignore_patterns("*.onnx"))
    path = folder / variant
    path.write_text(path.read_text().replace("dims: [ 2, 256 ]", "dims: [ 2, 128 ]"))
    assert main(["ranker", "--repository", str(tmp_path)]) == 2
    assert f"{variant}: input 'features': the dims [2,128] differ from the graph's [2,256]" in capsys.readouterr().err
    assert not list((folder / "1").iterdir())


def without_torch(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program as if torch were not installed."""
    code = f"import sys; sys.modules['torch'] = None; from {program} import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=REPOSITORY.parent, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_without_torch_the_ranker_is_exported_and_nothing_else_is_called_proved() -> None:
    assert without_torch("export.__main__", "ranker").returncode == 0
    done = without_torch("export.verify", "text_recognition")
    assert done.returncode == 1
    assert "comparing it with its reference needs torch" in done.stderr
    assert without_torch("export.verify", "text_recognition", "--without-reference").returncode == 0


def test_weights_are_known_by_their_digest_and_not_by_their_folder(tmp_path: Path) -> None:
    exporter = CATALOGUE["text_recognition"]
    elsewhere = tmp_path / TRAINED.name
    elsewhere.write_bytes(TRAINED.read_bytes())
    moved = dataclasses.replace(exporter, weights=elsewhere)
    assert moved.recipe == exporter.recipe
    assert moved.recipe.weights == TRAINED.name
    assert moved.weights_of(exporter.recipe) == elsewhere
    elsewhere.write_bytes(b"other")
    assert moved.recipe != exporter.recipe
    with pytest.raises(Mistake, match=r"exported from, text_recognition\.pth, which are not here.*--weights"):
        moved.weights_of(exporter.recipe)


@pytest.mark.slow
def test_verify_program(ranker: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify.main(["ranker"]) == 0
    assert "26,226,689" in capsys.readouterr().out
    assert verify.main(["nothing"]) == 2


WRONG = (
    *("nothing", "ranker --weights w.pth", "ranker --width 64", "--width 64", "resnet50 --weights absent.pth"),
    *(f"resnet50 --weights {TRAINED}", f"text_recognition --width 128 --weights {TRAINED}"),
    "ranker --repository nowhere",
)


def test_mistakes_end_with_one_line_and_code_2(capsys: pytest.CaptureFixture[str], golden: Callable[..., None]) -> None:
    said = ""
    for arguments in WRONG:
        assert main(arguments.split()) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert len(printed.err.strip().splitlines()) == 1
        said += f"$ {arguments}\n{printed.err}\n"
    golden("export_mistakes", said)
