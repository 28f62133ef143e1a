"""torch modules and torch.export files that are added."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from added_modules import Encoder, fixed, pooled

from export.add.__main__ import main

pytestmark = pytest.mark.slow


def added(source: str, repository: Path) -> onnxruntime.InferenceSession:
    assert main([source, "--name", "m", "--repository", str(repository), "--max-batch-size", "4"]) == 0
    return onnxruntime.InferenceSession(str(repository / "m" / "1" / "model.onnx"))


def test_a_factory_is_served_as_its_module_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    session = added("added_modules:pooled", tmp_path / "models")
    module, _, _ = pooled()
    tokens, scale = torch.randint(0, 30, (6, 5)), torch.rand(6, 1)
    (scores,) = session.run(["scores"], {"tokens": tokens.numpy(), "scale": scale.numpy()})
    np.testing.assert_allclose(scores, module.eval()(tokens, scale).detach().numpy(), rtol=1e-4, atol=1e-6)
    config = (tmp_path / "models" / "m" / "config.pbtxt").read_text()
    assert 'proved for 0 to 29 (an index into "table.weight" of 30 rows)' in config
    printed = capsys.readouterr().out
    assert "m: the length is fixed, as in the example inputs (tokens takes [5] per row). If requests" in printed


def test_a_module_that_names_one_row_is_rewritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    session = added("added_modules:fixed", tmp_path / "models")
    assert "was exported for a fixed number of rows" in capsys.readouterr().out
    module, _ = fixed()
    x = torch.randn(5, 2, 4)
    expected = torch.cat([module(row[None]) for row in x]).detach().numpy()
    np.testing.assert_allclose(session.run(None, {"x": x.numpy()})[0], expected, rtol=1e-4, atol=1e-6)


def test_a_saved_program_of_a_fixed_batch_is_rewritten(tmp_path: Path) -> None:
    """Attention puts time first and merges the batch with the heads; a constant token goes before each row.

    The file may have any ending of torch.
    """
    torch.manual_seed(0)
    module = Encoder().eval()
    torch.export.save(torch.export.export(module, (torch.randn(3, 5, 8),)), tmp_path / "encoder.pt2")
    (tmp_path / "encoder.pt2").rename(tmp_path / "encoder.pt")
    session = added(str(tmp_path / "encoder.pt"), tmp_path / "models")
    x = torch.randn(7, 5, 8)
    with torch.inference_mode():
        expected = module(x).numpy()
    np.testing.assert_allclose(session.run(None, {"x": x.numpy()})[0], expected, rtol=1e-3, atol=1e-5)
