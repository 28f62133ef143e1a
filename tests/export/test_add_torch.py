"""torch modules and torch.export files that are added, and factories that are refused."""

import warnings
import zipfile
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from added_modules import Encoder, Pooled, fixed, pooled

from export.add.__main__ import main
from export.graph.torch_source import from_factory
from triton_batching.terminal import Mistake


def added(source: str, repository: Path) -> onnxruntime.InferenceSession:
    assert main([source, "--name", "m", "--repository", str(repository), "--max-batch-size", "4"]) == 0
    return onnxruntime.InferenceSession(str(repository / "m" / "1" / "model.onnx"))


def test_a_factory_is_served_as_its_module_answers(tmp_path: Path) -> None:
    session = added("added_modules:pooled", tmp_path / "models")
    module, _, _ = pooled()
    tokens, scale = torch.randint(0, 30, (6, 5)), torch.rand(6, 1)
    (scores,) = session.run(["scores"], {"tokens": tokens.numpy(), "scale": scale.numpy()})
    np.testing.assert_allclose(scores, module.eval()(tokens, scale).detach().numpy(), rtol=1e-4, atol=1e-6)
    config = (tmp_path / "models" / "m" / "config.pbtxt").read_text()
    assert 'proved with 0 to 29 (an index into "table.weight" of 30 rows)' in config


def test_a_length_that_became_fixed_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    added("added_modules:pooled", tmp_path / "models")
    printed = capsys.readouterr().out
    assert "m: the length is fixed, as in the example inputs (tokens takes [5] per row). If requests" in printed
    added("added_modules:linear", tmp_path / "others")
    assert "the length is fixed" not in capsys.readouterr().out


def test_a_module_that_names_one_row_is_rewritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    session = added("added_modules:fixed", tmp_path / "models")
    assert "was exported for a fixed number of rows" in capsys.readouterr().out
    module, _ = fixed()
    x = torch.randn(5, 2, 4)
    expected = torch.cat([module(row[None]) for row in x]).detach().numpy()
    np.testing.assert_allclose(session.run(None, {"x": x.numpy()})[0], expected, rtol=1e-4, atol=1e-6)


def test_a_saved_program_may_have_any_ending_of_torch(tmp_path: Path) -> None:
    program = torch.export.export(Encoder().eval(), (torch.randn(2, 5, 8),))
    torch.export.save(program, tmp_path / "own.pt2")
    (tmp_path / "own.pt2").rename(tmp_path / "own.pt")
    assert main([str(tmp_path / "own.pt"), "--repository", str(tmp_path / "models")]) == 0
    assert (tmp_path / "models" / "own" / "1" / "model.onnx").is_file()
    torch.save(Encoder().state_dict(), tmp_path / "weights.pth")
    assert main([str(tmp_path / "weights.pth"), "--repository", str(tmp_path / "models")]) == 2


@pytest.mark.parametrize("rows", [1, 3])
def test_a_saved_program_of_a_fixed_batch_is_rewritten(rows: int, tmp_path: Path) -> None:
    """Attention puts time first and merges the batch with the heads; a constant token goes before each row."""
    torch.manual_seed(0)
    module = Encoder().eval()
    torch.export.save(torch.export.export(module, (torch.randn(rows, 5, 8),)), tmp_path / "encoder.pt2")
    session = added(str(tmp_path / "encoder.pt2"), tmp_path / "models")
    x = torch.randn(7, 5, 8)
    with torch.inference_mode():
        expected = module(x).numpy()
    np.testing.assert_allclose(session.run(None, {"x": x.numpy()})[0], expected, rtol=1e-3, atol=1e-5)


def test_a_saved_program_with_a_dynamic_batch_stays_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    examples = (torch.randint(0, 30, (2, 5)), torch.rand(2, 1))
    rows = {0: torch.export.Dim("rows")}
    torch.export.save(
        torch.export.export(Pooled().eval(), examples, dynamic_shapes=(rows, rows)), tmp_path / "pooled.pt2"
    )
    session = added(str(tmp_path / "pooled.pt2"), tmp_path / "m")
    assert [tensor.name for tensor in session.get_inputs()] == ["tokens", "scale"]
    assert "fixed number of rows" not in capsys.readouterr().out


def test_a_module_in_training_mode_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["added_modules:training_mode", "--name", "m", "--repository", str(tmp_path / "models")]) == 1
    assert "(ReduceMean) reduces over axis 0, the batch axis" in capsys.readouterr().err
    assert not (tmp_path / "models" / "m").exists()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("added_modules:nowhere", "added_modules has no function nowhere"),
        ("no_such_module:make", "no module no_such_module to import"),
        ("added_modules:nothing", r"the factory returned NoneType, not \(module, examples\)"),
        ("added_modules:unknown_input", r"forward takes \(x\), the examples are 1 \(y unknown\)"),
        ("added_modules:broken", "the factory raised RuntimeError: no weights here"),
        ("added_modules:does_not_run", "the module does not run on its example inputs"),
    ],
)
def test_a_factory_that_breaks_the_contract_is_refused(source: str, message: str) -> None:
    with pytest.raises(Mistake, match=message + r".*"):
        from_factory(source)


def test_a_module_that_cannot_be_imported_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "needs_a_file.py").write_text("open('weights.npz')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(Mistake, match=r"importing needs_a_file raised FileNotFoundError: .*weights"):
        from_factory("needs_a_file:make")


def test_a_file_that_is_no_program_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "m.pt2").write_bytes(b"nothing")
    assert main([str(tmp_path / "m.pt2"), "--name", "m", "--repository", str(tmp_path / "models")]) == 2
    assert "not a torch.export file" in capsys.readouterr().err


def archive(path: Path, *names: str) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        for name in names:
            file.writestr(f"{path.stem}/{name}", b"")
    return path


def test_a_compiled_model_is_named_with_what_to_add_instead(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(Encoder().eval()), tmp_path / "script.pt")
    package = archive(tmp_path / "package.pt2", "archive_format", "data/aotinductor/model/model.so")
    (tmp_path / "m.plan").write_bytes(b"ptrt")
    for file, words in (
        (tmp_path / "script.pt", "a TorchScript archive"),
        (package, "an AOTInductor package"),
        (tmp_path / "m.plan", "a TensorRT plan"),
    ):
        assert main([str(file), "--repository", str(tmp_path / "models")]) == 2
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert line.startswith(f"{file}: is {words}")
        assert "Add the " in line
    assert not (tmp_path / "models").exists()
