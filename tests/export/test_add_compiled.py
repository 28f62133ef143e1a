"""TorchScript archives and AOTInductor packages that are added as what they are, in real torch."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from added_modules import Encoder, Fixed, Pooled, TrainingMode
from tiny_compiled import flat_package, scripted, traced
from tritonclient.grpc.model_config_pb2 import ModelConfig

from export.add.__main__ import main
from export.compiled.platform import PACKAGE, PLAN, TORCHSCRIPT, platform_of
from export.compiled.runtime import parse_input
from export.repository import read_config, served_file
from serve.doctor.examination import examine
from serve.doctor.repository import Repository
from serve.doctor.rules import all_rules
from serve.doctor.target import Target
from triton_batching.terminal import Mistake

NEEDS_COMPILER = pytest.mark.skipif(shutil.which("g++") is None, reason="AOTInductor needs a C++ compiler, g++")


@pytest.fixture(scope="module")
def open_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package of rows of 4, for any number of them."""
    return flat_package(tmp_path_factory.mktemp("open") / "flat.pt2", open_axis=True)


def added(source: Path, repository: Path, *options: str) -> ModelConfig:
    assert main([str(source), "--name", "m", "--repository", str(repository), *options]) == 0
    return read_config(repository / "m" / "config.pbtxt")


def tensors(side: Any) -> dict[str, tuple[int, list[int]]]:
    return {tensor.name: (tensor.data_type, list(tensor.dims)) for tensor in side}


def test_a_traced_archive_says_its_types_and_shapes(tmp_path: Path) -> None:
    examples = (torch.randint(0, 30, (3, 5)), torch.rand(3, 1))
    config = added(traced(Pooled(), examples, tmp_path / "pooled.pt"), tmp_path / "models", "--max-batch-size", "4")
    assert (config.backend, config.platform, config.max_batch_size) == ("pytorch", "pytorch_libtorch", 4)
    assert config.HasField("dynamic_batching")
    assert tensors(config.input) == {"tokens": (9, [5]), "scale": (11, [1])}  # TYPE_INT64, TYPE_FP32
    assert tensors(config.output) == {"OUTPUT__0": (11, [3])}
    served = served_file("m", tmp_path / "models")
    assert served.name == "model.pt"
    assert served.read_bytes() == (tmp_path / "pooled.pt").read_bytes()
    assert "batches of 1, 2, 3, 4 rows" in (tmp_path / "models" / "m" / "README.md").read_text()


def test_a_scripted_archive_is_told_its_shapes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive, models = scripted(Pooled(), tmp_path / "pooled.pt"), tmp_path / "models"
    assert main([str(archive), "--repository", str(models)]) == 2
    assert "--input tokens=TYPE[dims] --input scale=TYPE[dims]" in capsys.readouterr().err
    assert not (models / "pooled").exists()
    told = ("--input", "tokens=INT64[-1]", "--input", "scale=FP32[1]", "--range", "tokens=0:29")
    assert tensors(added(archive, models, *told).input) == {"tokens": (9, [-1]), "scale": (11, [1])}
    tokens = np.random.default_rng(0).integers(0, 30, (8, 7))
    np.savez(tmp_path / "rows.npz", tokens=tokens, scale=np.ones((8, 1), np.float32))
    sampled = added(archive, models, "--samples", str(tmp_path / "rows.npz"), "--force")
    assert tensors(sampled.input) == {"tokens": (9, [7]), "scale": (11, [1])}


def test_an_open_output_is_found_by_running_two_sizes(tmp_path: Path) -> None:
    class Doubled(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.cat([x, x], 1), x.sum(1, keepdim=True)

    config = added(scripted(Doubled(), tmp_path / "two.pt"), tmp_path / "models", "--input", "x=FP32[-1,2]")
    assert tensors(config.output) == {"OUTPUT__0": (11, [-1, 2]), "OUTPUT__1": (11, [1, 2])}


def test_an_output_of_an_input_that_runs_in_one_size_stays_open(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Patches(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.shape[1] % 14:
                raise ValueError("not whole patches")
            return x[:, ::14]

    class One(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.shape[1] != 224:
                raise ValueError("not 224")
            return x[:, ::14]

    open_input, models = ("--input", "x=FP32[-1]"), tmp_path / "models"
    found = added(scripted(Patches(), tmp_path / "patches.pt"), models, *open_input)
    assert tensors(found.output) == {"OUTPUT__0": (11, [-1])}
    assert "one size" not in capsys.readouterr().out
    found = added(scripted(One(), tmp_path / "one.pt"), models, *open_input, "--force")
    assert tensors(found.output) == {"OUTPUT__0": (11, [-1])}
    assert "open dimensions ran with one size only" in " ".join(capsys.readouterr().out.split())


def test_samples_of_just_the_compiled_rows_are_too_few(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Two(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.reshape(2, 4) * 2

    archive, models = traced(Two(), (torch.randn(2, 4),), tmp_path / "two.pt"), tmp_path / "models"
    np.savez(tmp_path / "two.npz", x=np.ones((2, 4), np.float32))
    np.savez(tmp_path / "three.npz", x=np.ones((3, 4), np.float32))
    options = ("--name", "m", "--repository", str(models), "--batching", "none", "--samples")
    assert main([str(archive), *options, str(tmp_path / "two.npz")]) == 2
    assert "two.npz: has 2 rows, and 2 run together. Give 3 or more" in capsys.readouterr().err
    found = added(archive, models, "--batching", "none", "--samples", str(tmp_path / "three.npz"))
    assert tensors(found.input) == {"x": (11, [2, 4])}


def test_rows_that_change_each_other_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive, models = traced(TrainingMode(), (torch.randn(3, 4),), tmp_path / "mixed.pt"), tmp_path / "models"
    assert main([str(archive), "--repository", str(models)]) == 1
    message = capsys.readouterr().err
    assert "the first axis is not a batch axis" in message
    assert "--batching none" in message
    assert not (models / "mixed").exists()
    config = added(archive, models, "--batching", "none")
    assert (config.max_batch_size, tensors(config.input)) == (0, {"x": (11, [-1, 4])})


def test_a_trace_of_one_row_keeps_its_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive, models = traced(Fixed(), (torch.randn(1, 2, 4),), tmp_path / "fixed.pt"), tmp_path / "models"
    assert main([str(archive), "--repository", str(models)]) == 1
    assert "one row runs, and 2 rows do not (RuntimeError: shape '[1, 8]'" in capsys.readouterr().err
    config = added(archive, models, "--batching", "none")
    assert (tensors(config.input), tensors(config.output)) == (
        {"x": (11, [1, 2, 4])},
        {"OUTPUT__0": (11, [1, 3])},
    )


@NEEDS_COMPILER
def test_a_package_holds_many_rows_and_shares_no_execution(
    open_package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = tmp_path / "models"
    config = added(open_package, models, "--input", "INPUT__0=FP32[4]", "--max-batch-size", "8")
    assert (config.backend, config.platform, config.max_batch_size) == ("pytorch", "torch_aoti", 0)
    assert not config.HasField("dynamic_batching")
    assert (tensors(config.input), tensors(config.output)) == (
        {"INPUT__0": (11, [-1, 4])},
        {"OUTPUT__0": (11, [-1, 4])},
    )
    assert config.instance_group[0].kind == config.instance_group[0].KIND_CPU
    assert served_file("m", models).name == "model.pt2"
    printed = " ".join(capsys.readouterr().out.split())
    assert "1, 2, 3, 8 rows answered as alone" in printed
    assert "tritonserver:26.03-py3 or newer" in printed
    assert "no findings" in printed
    found = examine(Repository(path=models), all_rules())
    assert [finding.code for finding in found] == ["L006"]  # release 24.10 refuses the platform
    assert not examine(Repository(path=models, target=Target(release=(26, 3))), all_rules())


@NEEDS_COMPILER
@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ("[3]", "dimension 1 of input INPUT__0 was compiled for 4, and rows of 3 were given. Correct its --input."),
        ("[-1]", "dimension 1 of input INPUT__0 was compiled for 4, and rows of 16 were given. Correct its --input."),
        ("[4,1]", "expected ndim 2 but got 3"),
    ],
)
def test_a_package_is_not_run_with_rows_of_another_shape(
    dims: str, message: str, open_package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("--input", f"INPUT__0=FP32{dims}")
    assert main([str(open_package), "--name", "m", "--repository", str(tmp_path / "models"), *given]) == 2
    assert message in capsys.readouterr().err


@NEEDS_COMPILER
def test_a_package_of_two_rows_keeps_them(tmp_path: Path) -> None:
    package = flat_package(tmp_path / "flat.pt2", open_axis=False)
    config = added(package, tmp_path / "models", "--input", "INPUT__0=FP32[4]")
    assert tensors(config.input) == {"INPUT__0": (11, [2, 4])}
    assert "2 rows run together, and one row alone does not" in (tmp_path / "models" / "m" / "README.md").read_text()


def test_a_plan_without_tensorrt_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "m.plan").write_bytes(b"ptrt")
    assert main([str(tmp_path / "m.plan"), "--repository", str(tmp_path / "models")]) == 2
    message = capsys.readouterr().err
    assert "tensorrt is not installed here" in message
    assert "add the ONNX file that it was built from" in message
    assert not (tmp_path / "models" / "m").exists()


def test_kinds_are_told_apart_by_their_contents(tmp_path: Path) -> None:
    torch.export.save(torch.export.export(Encoder().eval(), (torch.randn(2, 5, 8),)), tmp_path / "program.pt2")
    torch.save(Encoder().state_dict(), tmp_path / "weights.pt")
    assert platform_of(scripted(Pooled(), tmp_path / "script.pt")) == TORCHSCRIPT
    assert platform_of(tmp_path / "program.pt2") is None
    assert platform_of(tmp_path / "weights.pt") is None
    assert platform_of(tmp_path / "no.engine") == PLAN
    assert PACKAGE.server == "NVIDIA's image (tritonserver:26.03-py3 or newer)"


def test_inputs_that_triton_cannot_give_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Switched(torch.nn.Module):
        def forward(self, x: torch.Tensor, flag: bool = True) -> torch.Tensor:
            return x if flag else -x

    archive = scripted(Switched(), tmp_path / "switched.pt")
    assert main([str(archive), "--repository", str(tmp_path / "models")]) == 2
    assert "the input flag of forward is bool" in capsys.readouterr().err


LIST = "models:\n  - {name: m, version: 1, inferer_type: KIND, inferer_path: FILE}\n"


def refusal(source: Path, kind: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Why a list of models does not take the file."""
    (folder / "inference.yml").write_text(LIST.replace("KIND", kind).replace("FILE", str(source)))
    assert main(["--yaml", str(folder / "inference.yml"), "--repository", str(folder / "models")]) == 2
    return capsys.readouterr().err


def test_a_list_of_models_refuses_an_archive(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive = scripted(Pooled(), tmp_path / "pooled.pt")
    wanted = (
        f"models[0].inferer_path: {archive} is a TorchScript archive, which a list cannot describe. Add it by its own"
    )
    assert wanted in refusal(archive, "torch", tmp_path, capsys)
    assert wanted in refusal(archive, "customized", tmp_path, capsys)
    torch.save({}, tmp_path / "weights.pt")
    message = refusal(tmp_path / "weights.pt", "torch", tmp_path, capsys)
    assert "weights.pt is not what torch takes: FILE.pt2" in message
    assert "TorchScript" not in message


@NEEDS_COMPILER
def test_a_list_of_models_refuses_a_package(
    open_package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = refusal(open_package, "torch", tmp_path, capsys)
    assert f"{open_package} is an AOTInductor package" in message
    assert f"python -m export.add {open_package}" in message


@pytest.mark.parametrize(
    "option", [("--input", "x=FP32[2]"), ("--name", "m"), ("--pad-value", "x=1"), ("--variable-length",)]
)
def test_a_list_of_models_takes_no_option_of_one_model(
    option: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "inference.yml").write_text(LIST)
    assert main(["--yaml", str(tmp_path / "inference.yml"), *option]) == 2
    assert f"{option[0]}: is of one model, and --yaml describes each in its file." in capsys.readouterr().err


def test_an_archive_without_forward_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Scores(torch.nn.Module):
        @torch.jit.export
        def score(self, x: torch.Tensor) -> torch.Tensor:
            return x

    archive = scripted(Scores(), tmp_path / "scores.pt")
    assert main([str(archive), "--repository", str(tmp_path / "models")]) == 2
    assert "scores.pt: has no method forward, which is what Triton calls." in capsys.readouterr().err


def test_a_model_that_refuses_its_rows_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Checked(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if bool(x.sum() < 100):
                raise ValueError("rows must be\nlarge")
            return x

    archive = scripted(Checked(), tmp_path / "checked.pt")
    assert main([str(archive), "--repository", str(tmp_path / "models"), "--input", "x=FP32[2]"]) == 2
    assert "no row of random values runs (ValueError: rows must be large)" in capsys.readouterr().err


def test_an_output_of_another_type_is_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Halved(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x, x.to(torch.bfloat16)

    archive = scripted(Halved(), tmp_path / "halved.pt")
    assert main([str(archive), "--repository", str(tmp_path / "models"), "--input", "x=FP32[2]"]) == 2
    message = capsys.readouterr().err
    assert "output OUTPUT__1 is bfloat16 [1, 2]" in message
    assert "--range" not in message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--input", "y=FP32[8]"), "--input names y, which is not an input. The inputs are x."),
        (("--input", "x=FLOAT[8]"), "--input x=FLOAT[8]: not the type and shape of an input"),
        (("--input", "x=FP32[2,4]", "--opset", "21"), "--opset needs a graph"),
        (("--input", "x=FP32[5]"), "no row of random values runs"),
        (("--input", "x=FP32[2,4]", "--range", "y=0:1"), "--range names y, which is not an input"),
    ],
)
def test_wrong_options_are_named(
    options: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = scripted(Fixed(), tmp_path / "fixed.pt")
    assert main([str(archive), "--repository", str(tmp_path / "models"), *options]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("text", ["x", "x=FP32", "x=FP32[0]", "x=STRING[1]", "=FP32[1]", "x=FP32[a]"])
def test_an_input_is_a_name_a_type_and_dims(text: str) -> None:
    with pytest.raises(Mistake, match=r"Write NAME=TYPE\[dims\]"):
        parse_input(text)
