"""`python -m export.add`: the folder that it writes, and what it refuses."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from added_graphs import graph, linear, mixing, texts
from onnx import helper

from export.add import hints, model_folder
from export.add.__main__ import main
from export.graph import onnx_graph
from export.repository import faults, read_config
from triton_batching.terminal import Mistake

ROOT = Path(__file__).parents[2]


def add(path: Path, repository: Path, *arguments: str, name: str = "m") -> int:
    return main([str(path), "--name", name, "--repository", str(repository), *arguments])


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_folder_holds_what_was_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--batching", "dynamic", "--max-batch-size", "16", "--batch-timeout-us", "2000", "--instances", "2")
    assert add(linear(tmp_path / "scores.onnx"), tmp_path / "models", *options, "--kind", "cpu") == 0
    folder = tmp_path / "models" / "m"
    config = read_config(folder / "config.pbtxt")
    assert (config.name, config.backend, config.max_batch_size) == ("m", "onnxruntime", 16)
    assert config.dynamic_batching.max_queue_delay_microseconds == 2000
    assert [(group.count, group.kind == group.KIND_CPU) for group in config.instance_group] == [(2, True)]
    assert (config.input[0].name, list(config.input[0].dims)) == ("x", [4])
    assert (config.output[0].name, list(config.output[0].dims)) == ("y", [3])
    text = (folder / "config.pbtxt").read_text()
    assert "# m, from scores.onnx." in text
    assert "waits at most 2000 us (2 ms) for others" in text
    assert "# Rows in one execution, over all requests in it. Batches of 1, 2, 3, 8, 16 were compared" in text
    variants = {path.stem: read_config(path) for path in folder.glob("configs/*.pbtxt")}
    assert set(variants) == {"baseline", "dynamic", "dynamic_2_instances"}
    assert not variants["baseline"].HasField("dynamic_batching")
    assert variants["dynamic"] == config
    assert "in batches of 1, 2, 3, 8, 16 rows, every row got the answer" in (folder / "README.md").read_text()
    assert list(faults(tmp_path / "models")) == []
    printed = capsys.readouterr().out
    assert "I411" in printed
    assert "doctor: 0 errors, 1 warning, 0 infos" in printed
    assert f"serve it: triton-batching serve --model m --repository {tmp_path / 'models'}" in printed
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("ours", [True, False])
def test_a_model_file_that_git_ignores_is_said_in_this_project_only(
    ours: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = tmp_path / "model_repository"
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    shutil.copy(ROOT / ".gitignore", tmp_path)
    if ours:
        monkeypatch.setattr(hints, "REPOSITORY", repository.resolve())
    assert add(linear(tmp_path / "scores.onnx"), repository) == 0
    printed = capsys.readouterr().out
    assert f"m: the model file is {repository / 'm' / '1' / 'model.onnx'}\n" in printed
    assert ("git ignores that file in this project. To keep a model in git: --repository FOLDER" in printed) is ours
    for name in ("tuned", "packed", "mine"):
        (repository / "m" / "configs" / f"{name}.pbtxt").write_text("")
    subprocess.run(["git", "-C", str(tmp_path), "add", "model_repository"], check=True)
    kept = subprocess.run(["git", "-C", str(tmp_path), "ls-files"], check=True, capture_output=True, text=True).stdout
    configs = {Path(name).stem for name in kept.splitlines() if "/configs/" in name}
    assert configs == {"baseline", "dynamic", "dynamic_2_instances", "mine"}


def test_a_graph_with_a_scalar_is_added_without_a_batch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = graph(tmp_path / "scalar.onnx", [helper.make_node("Neg", ["x"], ["y"])], takes=(), gives=())
    assert add(path, tmp_path / "models", "--batching", "none") == 0
    assert "m: the model file is" in capsys.readouterr().out


def test_the_doctors_findings_end_the_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two instances with a delay of half a second: advice of the doctor, a line each."""
    slow = ("--instances", "2", "--batch-timeout-us", "500000")
    assert add(linear(tmp_path / "scores.onnx"), tmp_path / "models", *slow) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("doctor: ")]
    assert any("B206" in line for line in lines)
    assert len(lines) >= 2


def test_a_graph_is_converted_to_an_older_opset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = linear(tmp_path / "scores.onnx")
    assert add(path, tmp_path / "models", "--opset", "15") == 0
    made = onnx.load(tmp_path / "models" / "m" / "1" / "model.onnx")
    assert [(entry.domain, entry.version) for entry in made.opset_import] == [("", 15)]
    assert add(path, tmp_path / "models", "--opset", "0", name="other") == 2
    assert "--opset: 0 is not from 1 to 99" in capsys.readouterr().err


def test_by_default_batches_form_without_delay_and_with_a_limit_of_the_queue(tmp_path: Path) -> None:
    assert add(linear(tmp_path / "m.onnx"), tmp_path / "models") == 0
    folder = tmp_path / "models" / "m"
    config = read_config(folder / "config.pbtxt")
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
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes, constants, gives = mixing("Softmax")
    path = graph(tmp_path / "m.onnx", nodes, gives=gives, constants=constants)
    assert add(path, tmp_path / "models") == 1
    message = capsys.readouterr().err
    assert 'node "culprit" (Softmax) normalises over axis 0, the batch axis' in message
    assert "--batching none" in message
    assert not (tmp_path / "models" / "m").exists()
    assert add(path, tmp_path / "models", "--batching", "none") == 0
    config = read_config(tmp_path / "models" / "m" / "config.pbtxt")
    assert (config.max_batch_size, list(config.input[0].dims)) == (0, [-1, 4])
    message = capsys.readouterr().out
    assert "(Softmax) normalises over axis 0, the batch axis" in message
    assert "--batching none" not in message + "".join(map(str, contents(tmp_path / "models" / "m").values()))


def test_the_name_is_the_files_where_it_can_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--repository", str(tmp_path / "models")]
    assert main([str(linear(tmp_path / "scores.onnx")), *where]) == 0
    assert read_config(tmp_path / "models" / "scores" / "config.pbtxt").name == "scores"
    assert main([str(linear(tmp_path / "two words.onnx")), *where]) == 2
    assert "Add --name NAME" in capsys.readouterr().err
    assert main([str(tmp_path / "nowhere.onnx"), *where]) == 2
    assert "nowhere.onnx: no such file" in capsys.readouterr().err


@pytest.mark.parametrize("domain", ["", "mine"])
def test_an_unknown_operator_is_named_with_the_persons_file(
    tmp_path: Path, domain: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = linear(tmp_path / "scores.onnx")
    model = onnx.load(path)
    model.graph.node[0].op_type, model.graph.node[0].domain = "Frobnicate", domain
    model.opset_import.append(onnx.helper.make_opsetid("mine", 1))
    onnx.save(model, path)
    assert add(path, tmp_path / "models") == 2
    message = capsys.readouterr().err
    assert message.startswith(f"{path}: onnxruntime cannot load it ([ONNXRuntimeError]")
    assert "Frobnicate" in message
    assert "triton-batching-" not in message


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batch-timeout-us", "2"], "--batch-timeout-us: 2 microseconds .0.002 ms..*For 2 ms write 2000"),
        (["--batch-timeout-us", "2000000"], "--batch-timeout-us: 2000000 .* a lone request would wait 2 s"),
        (["--batch-timeout-us", "0"], "--batch-timeout-us: 0 is not a time to wait. Leave it out"),
        (["--batch-timeout-us", "-5"], "--batch-timeout-us: -5 is not a time to wait"),
        (["--max-batch-size", "0"], "--max-batch-size: 0 is not from 1 to 65536: it is rows in one execution"),
        (["--instances", "0"], "--instances: 0 is not from 1 to 64"),
        (["--tolerance", "2"], "--tolerance: 2.0 is not between 0 and 1"),
        (["--name", "a b"], "--name: 'a b' cannot name a model"),
        (["--name", "../up"], "--name: '../up' cannot name a model"),
        (["--name", ".hidden"], "--name: '.hidden' cannot name a model"),
        (["--range", "x=3"], "--range x=3: not a range of values"),
        (["--range", "x=3:1"], "--range x=3:1: not a range of values"),
        (["--range", "z=0:1"], "--range names z, which is not an input. The inputs are x"),
        (["--samples", "nowhere.npz"], "nowhere.npz: not a readable .npz file"),
    ],
)
def test_mistakes_end_with_one_line_and_nothing_is_left(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert add(linear(tmp_path / "m.onnx"), tmp_path / "models", *arguments) == 2
    printed = capsys.readouterr().err
    assert re.search(message, printed)
    assert len(printed.strip().splitlines()) == 1
    assert contents(tmp_path) == {"m.onnx": (tmp_path / "m.onnx").read_bytes()}


@pytest.mark.parametrize("wrong", [[], ["--name", "a b"], ["--name", "taken"], ["--instances", "0"]])
def test_a_missing_file_is_said_before_what_else_is_wrong(
    wrong: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").mkdir()
    for name, message in (("two words.onnx", "no such file"), ("m.h5", "no such file"), ("w.pth", "holds no module")):
        (tmp_path / "w.pth").touch()
        assert main([str(tmp_path / name), "--repository", str(tmp_path), *wrong]) == 2
        assert capsys.readouterr().err.startswith(f"{tmp_path / name}: {message}")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("m.onnx", b"nothing", "not a complete ONNX file"),
        ("m.onnx", None, "no such file. Name an ONNX file"),
        ("m.pt", b"", "holds no module: weights alone"),
        ("m.h5", b"", "not a kind of model that can be added"),
    ],
)
def test_files_that_are_no_model_are_refused(
    name: str, content: bytes | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert add(tmp_path / name, tmp_path / "models") == 2
    assert message in capsys.readouterr().err


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["m.onnx", "--name", ""], "'' cannot name a model"),
        ([":", "--name", "q"], ":: names no factory"),
        (["module:", "--name", "q"], "module:: names no factory"),
        ([":function", "--name", "q"], ":function: names no factory"),
        ([".", "--name", "q"], ".: is a folder"),
    ],
)
def test_a_model_that_is_none_is_named(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    linear(tmp_path / "m.onnx")
    assert main([*arguments, "--repository", "models"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert message in line
    assert not (tmp_path / "models").exists()


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
    assert "proved with" not in (tmp_path / "models" / "m" / "config.pbtxt").read_text()
