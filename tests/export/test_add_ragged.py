"""`export.add --ragged`: a torch model becomes a graph that takes requests of any length as one flat tensor."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sequence_modules
import torch
from added_graphs import linear
from numpy.typing import NDArray
from sleepers import PLAIN
from streams import Stream, counted
from torch import Tensor

from export.add.__main__ import main
from export.repository import faults, read_config, variants
from serve.launcher import Settings, launch

SHAPES = {"pooled": (-1,), "frames": (-1, 5), "crops": (1, 4, -1)}


def added(name: str, repository: Path, *options: str) -> int:
    source = f"sequence_modules:{name}"
    return main([source, "--name", name, "--ragged", "--repository", str(repository), *options])


def alone(name: str, row: Tensor) -> NDArray[Any]:
    """What the torch module answers to one row that is not padded."""
    module = getattr(sequence_modules, name)()[0]
    length = row.shape[SHAPES[name].index(-1)]
    beside = torch.ones(1, length, dtype=torch.int64) if name == "pooled" else torch.tensor([length])
    with torch.inference_mode():
        answer: NDArray[Any] = module(row[None], beside)[0].numpy()
    return answer


def test_the_configuration_says_how_and_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert added("pooled", tmp_path / "models") == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "requests of different length run together, as one flat tensor: 1 to 20 tried" in printed
    assert "clients send input_ids only: the graph makes the mask" in printed
    assert "ERROR" not in printed
    folder = tmp_path / "models" / "pooled"
    config = read_config(folder / "config.pbtxt")
    assert (config.backend, config.max_batch_size) == ("onnxruntime", 16)
    assert [(each.name, list(each.dims), each.allow_ragged_batch) for each in config.input] == [
        ("input_ids", [-1], True)
    ]
    assert [(*each.target_name, *each.source_input) for each in config.batch_input] == [("ITEM_SHAPES", "input_ids")]
    assert [(each.name, list(each.dims)) for each in config.output] == [("vector", [sequence_modules.WIDTH])]
    assert not config.batch_output
    assert variants(folder) == ["baseline", "dynamic", "dynamic_2_instances", "padding_budget"]
    assert read_config(folder / "configs" / "padding_budget.pbtxt").parameters["padding_budget"].string_value
    assert list(faults(tmp_path / "models")) == []
    text = (folder / "README.md").read_text()
    assert "as one flat tensor (ragged): mixes of 1 to 20 were tried" in text
    assert "The graph differs from the original model by" in text


@pytest.mark.server
def test_each_request_of_one_batch_answers_as_alone(tmp_path: Path) -> None:
    """One answer for a text and a picture, one for each frame; a request may have several rows."""
    for name in SHAPES:
        assert added(name, tmp_path / "models", "--max-batch-size", "5", "--batch-timeout-us", "900000") == 0
    rng = torch.Generator().manual_seed(2)
    lengths = ((1, 3), (2, 17), (1, 1), (1, 12))  # rows and length of each request
    with (
        launch(Settings(models=tuple(SHAPES), repository=tmp_path / "models", arguments=PLAIN)) as server,
        Stream(server.grpc_url) as stream,
    ):
        for name, shape in SHAPES.items():
            rows = [
                torch.randn(count, *(n if dim == -1 else dim for dim in shape), generator=rng) for count, n in lengths
            ]
            if name == "pooled":
                rows = [(each.abs() * 20).long() for each in rows]
            source = next(iter(getattr(sequence_modules, name)()[1]))
            answers = stream.send(name, [{source: each.numpy()} for each in rows])
            assert counted(server.grpc_url, name, executions=1).batches == {5: 1}
            for each, answer in zip(rows, answers, strict=True):
                assert isinstance(answer, dict), answer
                (output,) = answer.values()
                wanted = np.stack([alone(name, row) for row in each])
                np.testing.assert_allclose(output.astype(np.float32), wanted, rtol=1e-4, atol=1e-5)


def test_a_model_that_lets_padding_in_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert added("leaky", tmp_path / "models") == 1
    message = " ".join(capsys.readouterr().err.split())
    assert "a request among longer ones answers differently from the request alone" in message
    assert "so padding reaches its answer: take the lengths or a mask as a second input" in message
    assert not (tmp_path / "models" / "leaky").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("three_inputs", r"this one takes (input_ids [2, 20], attention_mask [2, 20], token_type_ids [2, 20])"),
        ("square_frames", "do not show which axis is the length: exactly one must have the size of the longest"),
        ("steps", "its answer has shape [10, 7] for a length of 20"),
    ],
)
def test_other_models_are_refused_in_one_line_with_the_alternative(
    name: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert added(name, tmp_path / "models") == 2
    printed = capsys.readouterr().err
    assert message in " ".join(printed.split())
    assert "Use --variable-length instead" in " ".join(printed.split())


def test_a_graph_cannot_be_wrapped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = linear(tmp_path / "m.onnx")
    where = ["--ragged", "--repository", str(tmp_path / "models")]
    assert main([str(path), *where]) == 2
    assert "or use --variable-length, which takes any graph" in " ".join(capsys.readouterr().err.split())
    for other, message in (
        (["--variable-length"], "two ways to the same"),
        (["--batching", "none"], "requests never share a batch"),
        (["--opset", "21"], "not used with --ragged"),
    ):
        assert main([str(path), *where, *other]) == 2
        assert message in " ".join(capsys.readouterr().err.split())


def test_a_saved_program_is_wrapped(tmp_path: Path) -> None:
    module, examples, _ = sequence_modules.frames()
    shapes = ({0: torch.export.Dim("rows"), 1: torch.export.Dim("length")}, {0: torch.export.Dim("rows")})
    program = torch.export.export(module, tuple(examples.values()), dynamic_shapes=shapes)
    torch.export.save(program, tmp_path / "frames.pt2")
    assert main([str(tmp_path / "frames.pt2"), "--ragged", "--repository", str(tmp_path / "models")]) == 0
    config = read_config(tmp_path / "models" / "frames" / "config.pbtxt")
    assert list(config.output[0].dims) == [-1, 3]
    assert config.batch_output[0].source_input[0] == "frames"
