"""`python -m export.add`: the folder that it writes, what it prints, and that a folder is there whole or not at all."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from added_graphs import linear, mixing, texts

from export.add import hints, model_folder, notes
from export.add.__main__ import main
from export.graph import onnx_graph
from export.repository import faults, read_config
from triton_batching.terminal import Mistake

ROOT = Path(__file__).parents[2]
# Which batch sizes are bit-equal depends on the processor.
ERRORS = {
    r"\d\.\de[+-]\d\d": "_ERROR_",
    r"(\w+: answers in batches of .*\n)+": "ANSWERS IN BATCHES\n",
    r"gets alone: .*": "gets alone: _DIFFERENCE_",
}


def add(path: Path, repository: Path, *arguments: str, name: str = "m") -> int:
    return main([str(path), "--name", name, "--repository", str(repository), *arguments])


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_folder_holds_what_was_asked_for(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    golden: Callable[..., None],
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ("--batching", "dynamic", "--max-batch-size", "16", "--batch-timeout-us", "2000", "--instances", "2")
    assert add(linear(Path("scores.onnx")), Path("models"), *options, "--kind", "cpu") == 0
    folder = Path("models") / "m"
    files = "\n".join(f"-- {name}\n{(folder / name).read_text()}" for name in ("config.pbtxt", "README.md"))
    golden("export_add", f"{capsys.readouterr().out}\n{files}", masks=ERRORS)
    variants = {path.stem: read_config(path) for path in folder.glob("configs/*.pbtxt")}
    assert set(variants) == {"baseline", "dynamic", "dynamic_2_instances"}
    assert not variants["baseline"].HasField("dynamic_batching")
    assert variants["dynamic"] == read_config(folder / "config.pbtxt")
    assert list(faults(Path("models"))) == []
    assert {path.name for path in Path().iterdir()} == {"scores.onnx", "models"}


def test_a_model_file_that_git_ignores_is_said_in_this_project(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = tmp_path / "model_repository"
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    shutil.copy(ROOT / ".gitignore", tmp_path)
    monkeypatch.setattr(hints, "REPOSITORY", repository.resolve())
    assert add(linear(tmp_path / "scores.onnx"), repository) == 0
    assert (
        "git ignores that file in this project. To keep a model in git: --repository FOLDER" in capsys.readouterr().out
    )


def test_a_graph_is_converted_to_an_older_opset(tmp_path: Path) -> None:
    assert add(linear(tmp_path / "scores.onnx"), tmp_path / "models", "--opset", "15") == 0
    made = onnx.load(tmp_path / "models" / "m" / "1" / "model.onnx")
    assert [(entry.domain, entry.version) for entry in made.opset_import] == [("", 15)]


def test_by_default_batches_form_without_delay_and_with_a_limit_of_the_queue(tmp_path: Path) -> None:
    assert main([str(linear(tmp_path / "scores.onnx")), "--repository", str(tmp_path / "models")]) == 0
    folder = tmp_path / "models" / "scores"
    config = read_config(folder / "config.pbtxt")
    assert config.name == "scores"
    assert config.HasField("dynamic_batching")
    assert config.dynamic_batching.max_queue_delay_microseconds == 0
    paths = (folder / "config.pbtxt", *folder.glob("configs/*.pbtxt"))
    limits = {path.stem: "queue_limit_ms" in read_config(path).parameters for path in paths}
    assert limits == {"config": True, "baseline": False, "dynamic": True, "dynamic_2_instances": True}


def test_without_batching_requests_stay_apart(tmp_path: Path) -> None:
    assert add(linear(tmp_path / "m.onnx"), tmp_path / "models", "--batching", "none", "--max-batch-size", "4") == 0
    config = read_config(tmp_path / "models" / "m" / "config.pbtxt")
    assert config.max_batch_size == 4
    assert not config.HasField("dynamic_batching")


def test_a_model_without_a_batch_axis_is_served_whole_or_not_at_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Callable[..., None]
) -> None:
    path = mixing(tmp_path / "m.onnx", "Softmax")
    assert add(path, tmp_path / "models") == 1
    refused = capsys.readouterr().err
    assert not (tmp_path / "models" / "m").exists()
    assert add(path, tmp_path / "models", "--batching", "none") == 0
    text = (tmp_path / "models" / "m" / "config.pbtxt").read_text()
    golden("export_add_no_batch_axis", f"{refused}\n{capsys.readouterr().out}\n-- config.pbtxt\n{text}", masks=ERRORS)


def test_weights_beside_the_file_come_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = onnx.load(linear(tmp_path / "m.onnx"))
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.bin", size_threshold=0)
    assert add(tmp_path / "m.onnx", tmp_path / "merged") == 0
    assert [path.name for path in (tmp_path / "merged" / "m" / "1").iterdir()] == ["model.onnx"]
    # As if they were too large for one file.
    monkeypatch.setattr(onnx_graph, "SINGLE_FILE_BYTES", 0)
    monkeypatch.setattr(onnx_graph, "SMALLEST_EXTERNAL_BYTES", 0)
    assert add(tmp_path / "m.onnx", tmp_path / "beside") == 0
    assert {path.name for path in (tmp_path / "beside" / "m" / "1").iterdir()} == {"model.onnx", "model.onnx.data"}
    (tmp_path / "m.bin").unlink()
    assert add(tmp_path / "m.onnx", tmp_path / "again") == 2


def test_an_existing_model_is_replaced_only_by_force(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert add(linear(tmp_path / "m.onnx"), tmp_path / "models") == 0
    before = contents(tmp_path / "models")
    assert add(texts(tmp_path / "other.onnx"), tmp_path / "models") == 2
    assert "exists already, and nothing was changed" in capsys.readouterr().err
    assert contents(tmp_path / "models") == before
    assert add(texts(tmp_path / "other.onnx"), tmp_path / "models", "--force") == 0
    assert read_config(tmp_path / "models" / "m" / "config.pbtxt").input[0].name == "tokens"
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["m"]


def test_a_move_that_fails_half_way_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model_folder.write(tmp_path / "models" / "m", {"old": ""})
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if self.name == "m" and self.parent != tmp_path / "models":
            raise OSError(28, "No space left on device")
        return rename(self, target)

    with model_folder.draft(tmp_path / "models", "m") as draft:
        monkeypatch.setattr(Path, "rename", failing)
        with pytest.raises(Mistake, match="No space left on device"):
            model_folder.move_in(draft, tmp_path / "models", force=True)
        monkeypatch.undo()
    assert contents(tmp_path / "models") == {"m/old": b""}
    assert [path.name for path in tmp_path.iterdir()] == ["models"]


def test_a_model_that_appears_during_the_proof_stays(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    with model_folder.draft(repository, "m") as draft:
        model_folder.write(draft, {"config.pbtxt": "mine"})
        model_folder.existing(repository, "m", force=False)
        model_folder.write(repository / "m", {"config.pbtxt": "of another program"})
        with pytest.raises(Mistake, match="m: exists already, and nothing was changed"):
            model_folder.move_in(draft, repository, force=False)
    assert contents(repository) == {"m/config.pbtxt": b"of another program"}


@pytest.mark.slow
def test_an_onnx_file_needs_no_torch(tmp_path: Path) -> None:
    linear(tmp_path / "m.onnx")
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from export.add.__main__ import main\n"
        f"options = ['--name', 'm', '--repository', {str(tmp_path / 'models')!r}, '--force']\n"
        f"assert main([{str(tmp_path / 'm.onnx')!r}, *options]) == 0\n"
        "assert main(['a:b', *options]) == 2\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "a:b: reading it needs torch. Install it: make export ARGS=ranker (" in done.stderr


def test_samples_of_one_input_cover_every_row(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", x=np.random.default_rng(1).standard_normal((20, 4)).astype(np.float32))
    path = linear(tmp_path / "m.onnx")
    assert add(path, tmp_path / "models", "--samples", str(tmp_path / "rows.npz")) == 0
    assert "proved for" not in (tmp_path / "models" / "m" / "config.pbtxt").read_text()


def test_a_reader_without_a_terminal_gets_progress(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if a line took five seconds."""
    monkeypatch.setattr(notes, "SILENT_S", 0.0)
    assert add(texts(tmp_path / "texts.onnx"), tmp_path / "models", "--variable-length", name="texts") == 0
    said = capsys.readouterr().err
    assert "texts: requests of 1 elements have answered alone" in said
    assert re.search(r"texts: comparing \d+ requests padded to \d+ elements", said)
