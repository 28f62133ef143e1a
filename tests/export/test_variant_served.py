"""Variants of the text recogniser on a real server: they load, batch, and read words."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import tritonclient.grpc as triton
from processes import wait_until
from sleepers import PLAIN

from clients.connection import channel_arguments
from export.models import alphabet, word_image
from export.repository import REPOSITORY
from export.variant.__main__ import main
from serve.launcher import Server, Settings, launch
from serve.management.statistics import Counters

pytestmark = pytest.mark.server
PICTURES = sorted((REPOSITORY.parent / "clients" / "pictures").glob("*.png"))[:8]
VARIANTS = {
    "text_recognition_fp16": ["--precision", "fp16"],
    "text_recognition_int8_static": ["--precision", "int8-static"],
    "text_recognition_fp16_tensorrt": ["--precision", "fp16", "--accelerator", "tensorrt"],
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The text recogniser and its variants."""
    folder = tmp_path_factory.mktemp("variants") / "models"
    folder.mkdir()
    (folder / "text_recognition").symlink_to(REPOSITORY / "text_recognition")
    for options in VARIANTS.values():
        assert main(["text_recognition", *options, "--repository", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def served(repository: Path) -> Iterator[Server]:
    with launch(Settings(models=tuple(VARIANTS), repository=repository, arguments=PLAIN)) as server:
        yield server


@pytest.mark.parametrize("model", VARIANTS)
def test_a_variant_answers_as_onnxruntime_and_reads_the_words(model: str, repository: Path, served: Server) -> None:
    rows = np.stack([word_image.prepare(path) for path in PICTURES])
    tensor = triton.InferInput("input.1", list(rows.shape), "FP32")
    tensor.set_data_from_numpy(rows)
    before = Counters.read(served.grpc_url, model)
    with triton.InferenceServerClient(served.grpc_url, channel_args=channel_arguments(served.grpc_url)) as client:
        answer = client.infer(model, [tensor]).as_numpy("308")
    assert (Counters.read(served.grpc_url, model) - before).batches == {len(rows): 1}
    session = onnxruntime.InferenceSession(str(repository / model / "1" / "model.onnx"))
    np.testing.assert_allclose(answer, session.run(None, {"input.1": rows})[0], rtol=1e-3, atol=1e-3)
    assert alphabet.decode(answer) == [path.stem for path in PICTURES]


def test_a_variant_is_whole_when_its_measurement_is_interrupted(tmp_path: Path) -> None:
    (tmp_path / "text_recognition").symlink_to(REPOSITORY / "text_recognition")
    command = [sys.executable, "-m", "export.variant", "text_recognition", "--precision", "fp16"]
    program = subprocess.Popen(
        [*command, "--repository", str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    folder = tmp_path / "text_recognition_fp16"
    assert wait_until(lambda: folder.exists() or program.poll() is not None, seconds=180)
    program.send_signal(signal.SIGINT)
    program.communicate(timeout=60)
    assert program.returncode == 130
    assert {path.name for path in folder.iterdir()} == {"1", "config.pbtxt", "configs", "README.md", "variant.json"}
    assert [path.name for path in tmp_path.parent.glob(f".{tmp_path.name}-draft-*")] == []
