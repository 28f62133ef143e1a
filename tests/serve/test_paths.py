"""Paths with a space and with letters outside ASCII, which Triton passes to a shell without quotes."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton
from processes import wait_until
from server_processes import tritonserver
from tiny_models import lookup, python_model

ROOT = Path(__file__).parents[2]
ECHO = "return [pb_utils.InferenceResponse([pb_utils.Tensor('y', r.inputs()[0].as_numpy())]) for r in requests]"
pytestmark = pytest.mark.server


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    folder = tmp_path / "a b" / "grüße €"
    folder.mkdir(parents=True)
    return folder


def answer(url: str, model: str) -> float:
    tensor = triton.InferInput("x", [1, 1], "FP32")
    tensor.set_data_from_numpy(np.full((1, 1), 2, dtype=np.float32))
    with triton.InferenceServerClient(url) as client:
        return float(client.infer(model, [tensor], client_timeout=30).as_numpy("y")[0, 0])


def test_a_server_runs_where_the_path_is_not_plain(tmp_path: Path, odd: Path) -> None:
    """The clone brings its models and its virtual environment, so the path of Python itself is not plain either.

    The server is one of its own: it starts in the clone, and ends the program when it dies (`--restart never`).
    """
    clone, output = odd / "clone", tmp_path / "output.txt"
    for stage in ("export", "serve", "triton_batching"):
        shutil.copytree(ROOT / stage, clone / stage, ignore=shutil.ignore_patterns("__pycache__"))
    (clone / ".venv").symlink_to(sys.prefix)
    models = clone / "model_repository"
    lookup(models)
    python_model(models, "echo", ECHO)
    ports = [f"--{kind}-port=0" for kind in ("http", "grpc", "metrics")]
    with output.open("w") as file:
        command = [str(clone / ".venv" / "bin" / "python"), "-m", "serve", "--restart=never", "--start-timeout=60"]
        environment = os.environ | {"TMPDIR": str(odd)}
        program = subprocess.Popen([*command, *ports], cwd=clone, env=environment, stdout=file, stderr=file)
    ready = "gRPC clients take --url "
    assert wait_until(lambda: ready in output.read_text() or program.poll() is not None, seconds=90)
    assert ready in output.read_text(), output.read_text()
    url = output.read_text().partition(ready)[2].split()[0]
    assert answer(url, "lookup") == 12
    assert answer(url, "echo") == 2
    os.kill(tritonserver(program.pid), signal.SIGKILL)
    assert program.wait(30) == 1
    assert "tritonserver was killed by SIGKILL." in output.read_text()
    assert "last lines of its log" in output.read_text()
