"""The tritonserver that is found on this machine: what it lacks is named, and its backends are put together."""

from dataclasses import replace
from pathlib import Path

import pytest
from newer_answers import HELP
from tritonclient.grpc.model_config_pb2 import ModelConfig

from serve import installation, server_flags
from serve.installation import InstallationError
from serve.launcher import Settings, launch

ROOT = Path(__file__).parents[2]


def test_a_missing_libpython_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "_libpython_folder", lambda: None)
    monkeypatch.setattr("ctypes.util.find_library", lambda _: None)
    with pytest.raises(
        InstallationError, match=r"libpython3\.\d+\.so\.1\.0 is neither beside .*apt-get install libpython3"
    ):
        installation.find()


def test_gpus_are_hidden_from_a_server_that_cannot_use_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """For an instance group without `kind` Triton takes every GPU, and this onnxruntime is for the CPU."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(installation, "_installed", lambda package: package != "onnxruntime-gpu")
    assert installation.find().environment()["CUDA_VISIBLE_DEVICES"] == ""
    monkeypatch.setattr(installation, "_installed", lambda package: True)
    assert "CUDA_VISIBLE_DEVICES" not in installation.find().environment()


def test_no_tritonserver_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(InstallationError, match="make setup, or pip install --no-deps nvidia-pytriton"):
        installation.find()


def test_a_python_without_a_stub_names_those_that_have_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Version(tuple[int, ...]):
        major, minor = 3, 99

    monkeypatch.setattr("sys.version_info", Version((3, 99)))
    with pytest.raises(InstallationError, match=r"Python 3\.99 has no triton_python_backend_stub .*3\.11"):
        installation.find()


def test_numpy_2_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "version_of_numpy", lambda: "2.4.6")
    with pytest.raises(InstallationError, match="returns every output empty"):
        installation.find()


def test_the_binary_says_whether_it_refuses_its_clients_memory(tmp_path: Path) -> None:
    """2.51 does not start with the flag; from 26.04 on clients cannot share memory without it."""
    here = installation.find()
    assert here.knows("--exit-timeout-secs")
    assert not here.knows(server_flags.CLIENT_MEMORY)
    assert server_flags.always(here)[-1] == "--exit-timeout-secs=10"
    newer = tmp_path / "tritonserver"
    newer.write_text(f"#!/bin/sh\ncat <<'END'\n{HELP}END\nexit 1\n")
    newer.chmod(0o755)
    there = installation.Installation(binary=newer, backends=tmp_path)
    assert there.knows(server_flags.CLIENT_MEMORY)
    assert server_flags.always(there)[-1] == "--allow-client-shm=true"
    assert not replace(there, binary=tmp_path / "nowhere").knows(server_flags.CLIENT_MEMORY)


def test_a_native_backend_wins_over_the_drop_in(tmp_path: Path) -> None:
    own = tmp_path / "own"
    (own / "onnxruntime").mkdir(parents=True)
    (own / "python").mkdir()
    server = installation.Installation(binary=Path("tritonserver"), backends=own)
    assembled = server.assemble_backends(tmp_path / "without")
    assert (assembled / "onnxruntime").resolve() == (ROOT / "serve" / "backends" / "onnxruntime").resolve()
    (own / "onnxruntime" / "libtriton_onnxruntime.so").touch()
    assembled = server.assemble_backends(tmp_path / "with")
    assert (assembled / "onnxruntime").resolve() == (own / "onnxruntime").resolve()


@pytest.mark.parametrize(
    ("platform", "file", "message"),
    [
        ("pytorch_libtorch", "model.pt", "a TorchScript archive .*no pytorch backend.*:24.10-py3\\) can"),
        ("torch_aoti", "model.pt2", "an AOTInductor package .*no pytorch backend.*:26.03-py3 or newer\\) can"),
        ("tensorrt_plan", "model.plan", "a TensorRT plan .*no tensorrt backend.*:24.10-py3\\) can"),
    ],
)
def test_a_compiled_model_is_refused_before_the_server_starts(
    platform: str, file: str, message: str, tmp_path: Path
) -> None:
    """The server from pip has the Python backend alone."""
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / file).write_bytes(b"compiled")
    (tmp_path / "m" / "config.pbtxt").write_text(f'name: "m"\nplatform: "{platform}"\nmax_batch_size: 0\n')
    settings = Settings(models=("m",), repository=tmp_path)
    with pytest.raises(InstallationError, match=message), launch(settings):
        pass


def test_a_server_with_the_backend_may_load_a_compiled_model(tmp_path: Path) -> None:
    (tmp_path / "pytorch").mkdir()
    config = ModelConfig(name="m", backend="pytorch", platform="pytorch_libtorch")
    installation.Installation(binary=tmp_path, backends=tmp_path).check("m", config)
