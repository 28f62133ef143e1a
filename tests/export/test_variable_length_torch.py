"""The journey of a user's torch model: a plain export, `--variable-length`, a server, clients with any lengths."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bench import Bench
from sequence_modules import POSITIONS, VOCABULARY, Encoder, Reader, Recurrent, Wave, made
from streams import counted
from torch import Tensor, nn

from clients import AsyncModel
from export.add.__main__ import main
from export.graph.torch_onnx import quiet
from export.repository import read_config
from serve.launcher import Server

CLIENTS, EACH = 16, 6
NAMES = ("input_ids", "attention_mask", "token_type_ids")
OUTPUTS = ("last_hidden_state", "pooler_output")


def exported(path: Path, *, dynamo: bool, dtype: torch.dtype = torch.int64) -> nn.Module:
    """Export as a user does: names, dynamic axes, and nothing else."""
    module, tokens = made(Encoder()), torch.randint(0, VOCABULARY, (2, 12)).to(dtype)
    axes = {0: "batch", 1: "length"}
    with quiet():
        torch.onnx.export(
            module,
            (tokens, torch.ones_like(tokens), torch.zeros_like(tokens)),
            str(path),
            input_names=list(NAMES),
            output_names=list(OUTPUTS),
            dynamic_axes={**dict.fromkeys(NAMES, axes), OUTPUTS[0]: axes, OUTPUTS[1]: {0: "batch"}},
            dynamo=dynamo,
            opset_version=None if dynamo else 17,
        )
    return module


async def asked(server: Server, name: str, module: nn.Module, dtype: Any) -> None:
    """16 clients with texts of any length at the same time; each answer is that of torch to the text alone."""
    rng = np.random.default_rng(5)
    texts = [rng.integers(0, VOCABULARY, (1, length)) for length in rng.integers(1, POSITIONS + 1, CLIENTS * EACH)]
    async with AsyncModel(name, url=server.grpc_url) as model:

        async def client(number: int) -> list[Any]:
            own = texts[number * EACH : (number + 1) * EACH]
            sent = [{"input_ids": text.astype(dtype), "token_type_ids": (text % 2).astype(dtype)} for text in own]
            return [await model.predict(each) for each in sent]

        answers = await asyncio.gather(*map(client, range(CLIENTS)))
    for text, (states, pooled) in zip(texts, [answer for each in answers for answer in each], strict=True):
        ids = torch.from_numpy(text)
        with torch.inference_mode():
            wanted = module(ids, torch.ones_like(ids), ids % 2)
        np.testing.assert_allclose(states, wanted[0].numpy(), rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(pooled, wanted[1].numpy(), rtol=1e-3, atol=1e-4)


@pytest.mark.server
def test_two_commands_serve_an_encoder_to_requests_of_any_length(tmp_path: Path, bench: Bench) -> None:
    """By both exporters, one with int32 ids; the clients send no mask, and requests share executions."""
    repository = tmp_path / "models"
    cases: dict[str, tuple[bool, torch.dtype, Any]] = {
        "dynamo": (True, torch.int64, np.int64),
        "narrow": (False, torch.int32, np.int32),
    }
    modules = {}
    for name, (dynamo, dtype, _) in cases.items():
        modules[name] = exported(tmp_path / f"{name}.onnx", dynamo=dynamo, dtype=dtype)
        assert main([str(tmp_path / f"{name}.onnx"), "--variable-length", "--repository", str(repository)]) == 0
        config = read_config(repository / name / "config.pbtxt")
        assert [tensor.name for tensor in config.input] == ["input_ids", "token_type_ids"]
        assert config.parameters["cut"].string_value == "last_hidden_state[1]=input_ids[1]"
    with bench.serving(tuple(cases), repository) as server:
        for name, (_, _, dtype) in cases.items():
            asyncio.run(asked(server, name, modules[name], dtype))
            assert counted(server.grpc_url, name, executions=1).executions < CLIENTS * EACH


IMAGE, FRAMES, WAVE = torch.randn(2, 1, 32, 24), torch.randn(2, 12, 5), torch.randn(2, 400)
STEPS = {0: "batch", 1: "steps"}


def tried(module: nn.Module, example: Tensor, axis: int, tmp_path: Path, *, gives: Mapping[int, str] = STEPS) -> int:
    """`export.add --variable-length` of a plain export whose input varies along `axis`; `gives` names the answer's."""
    path = tmp_path / "m.onnx"
    with quiet():
        torch.onnx.export(
            made(module),
            (example,),
            str(path),
            input_names=["x"],
            output_names=["y"],
            dynamic_axes={"x": {0: "batch", axis: "length"}, "y": dict(gives)},
            opset_version=17,
            dynamo=False,
        )
    return main([str(path), "--variable-length", "--repository", str(tmp_path / "models")])


@pytest.mark.parametrize(
    ("module", "example", "axis", "cut"),
    [
        (Reader(1), IMAGE, 3, "y[1]=x[3]/2"),
        (Recurrent(), FRAMES, 1, "y[1]=x[1]"),
        (Wave(), WAVE, 1, "y[1]=(x[1]-10)/10"),
    ],
)
def test_models_whose_own_elements_come_first_are_proved(
    module: nn.Module, example: Tensor, axis: int, cut: str, tmp_path: Path
) -> None:
    assert tried(module, example, axis, tmp_path) == 0
    assert read_config(tmp_path / "models" / "m" / "config.pbtxt").parameters["cut"].string_value == cut


@pytest.mark.parametrize(
    ("module", "example", "axis", "message"),
    [
        (Reader(2), IMAGE, 3, r"(Conv) looks beyond the last own element (its window is [3, 3])"),
        (Recurrent(bidirectional=True), FRAMES, 1, "(LSTM) begins its backward pass in the padding"),
        (Wave(norm=True), WAVE, 1, "(InstanceNormalization) takes mean and variance over the length"),
        (Recurrent(last=True), FRAMES, 1, "(LSTM) carries its state through the padding"),
    ],
)
def test_models_that_see_the_padding_are_refused_with_the_node(
    module: nn.Module, example: Tensor, axis: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gives = {0: "batch"} if "state" in message else STEPS
    assert tried(module, example, axis, tmp_path, gives=gives) == 1
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "models" / "m").exists()


@pytest.mark.slow
def test_the_lengths_of_a_module_stay_open(tmp_path: Path) -> None:
    assert main(["sequence_modules:words", "--name", "m", "--variable-length", "--repository", str(tmp_path)]) == 0
    config = read_config(tmp_path / "m" / "config.pbtxt")
    assert [list(tensor.dims) for tensor in config.input] == [[-1]]
    assert config.parameters["pad"].string_value == "tokens[1]=0"
