"""Added models on a real server: the answers are onnxruntime's, and the server reports their settings."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tritonclient.grpc as triton
from added_graphs import linear, prefixed, texts
from numpy.typing import NDArray
from processes import wait_until
from sleepers import PLAIN

from clients.connection import channel_arguments
from export.add.__main__ import main
from serve.launcher import Server, Settings, launch
from serve.management.statistics import Counters

pytestmark = pytest.mark.server
OPTIONS = {
    "scores": "--max-batch-size 8 --batch-timeout-us 900000",
    "texts": "--max-batch-size 4 --batch-timeout-us 2000 --instances 2",
    "prefixed": "--max-batch-size 6 --batching none",
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three models with settings of their own; the file of `scores` was exported for one row, and is rewritten."""
    folder = tmp_path_factory.mktemp("added")
    linear(folder / "scores.onnx", rows=1)
    texts(folder / "texts.onnx")
    prefixed(folder / "prefixed.onnx")
    for name, options in OPTIONS.items():
        where = ["--kind", "cpu", "--repository", str(folder / "models")]
        assert main([str(folder / f"{name}.onnx"), *options.split(), *where]) == 0
    return folder / "models"


@pytest.fixture(scope="module")
def served(repository: Path) -> Iterator[Server]:
    with launch(Settings(models=("scores", "texts", "prefixed"), repository=repository, arguments=PLAIN)) as server:
        yield server


@pytest.fixture(scope="module")
def client(served: Server) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(served.grpc_url, channel_args=channel_arguments(served.grpc_url)) as connected:
        yield connected


def tensors(rows: dict[str, NDArray[Any]]) -> list[triton.InferInput]:
    made = []
    for name, array in rows.items():
        tensor = triton.InferInput(name, list(array.shape), "INT64" if array.dtype == np.int64 else "FP32")
        tensor.set_data_from_numpy(array)
        made.append(tensor)
    return made


def random_rows(repository: Path, model: str, rows: int) -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(3)
    if model == "texts":
        return {"tokens": rng.integers(0, 20, (rows, 5)), "mask": rng.integers(0, 2, (rows, 5))}
    return {"x": rng.standard_normal((rows, 4)).astype(np.float32)}


@pytest.mark.parametrize("model", ["scores", "texts", "prefixed"])
def test_the_server_answers_as_onnxruntime_does(
    model: str, repository: Path, client: triton.InferenceServerClient
) -> None:
    rows = random_rows(repository, model, 4)
    session = onnxruntime.InferenceSession(str(repository / model / "1" / "model.onnx"))
    answer = client.infer(model, tensors(rows)).as_numpy("y")
    np.testing.assert_allclose(answer, session.run(["y"], rows)[0], rtol=1e-5, atol=1e-6)


def test_each_models_settings_are_the_servers(served: Server, client: triton.InferenceServerClient) -> None:
    scores, texts, prefixed_ = (client.get_model_config(name).config for name in ("scores", "texts", "prefixed"))
    assert [config.max_batch_size for config in (scores, texts, prefixed_)] == [8, 4, 6]
    assert scores.dynamic_batching.max_queue_delay_microseconds == 900_000
    assert texts.dynamic_batching.max_queue_delay_microseconds == 2000
    assert not prefixed_.HasField("dynamic_batching")
    assert [config.instance_group[0].count for config in (scores, texts, prefixed_)] == [1, 2, 1]


def test_requests_of_one_row_fill_the_batch(
    repository: Path, served: Server, client: triton.InferenceServerClient
) -> None:
    """Eight requests are a full batch, which runs at once; each gets its own row."""
    rows = random_rows(repository, "scores", 8)["x"]
    before = Counters.read(served.grpc_url, "scores")
    answers: list[triton.InferResult] = []
    for row in rows:
        client.async_infer(
            "scores",
            tensors({"x": row[None]}),
            lambda result, error: answers.append(result),
            request_id=str(len(answers)),
        )
    assert wait_until(lambda: len(answers) == 8, seconds=20)
    assert wait_until(lambda: (Counters.read(served.grpc_url, "scores") - before).requests == 8, seconds=5)
    assert (Counters.read(served.grpc_url, "scores") - before).batches == {8: 1}
    session = onnxruntime.InferenceSession(str(repository / "scores" / "1" / "model.onnx"))
    expected = {tuple(np.round(row, 4)) for row in session.run(["y"], {"x": rows})[0]}
    assert {tuple(np.round(answer.as_numpy("y")[0], 4)) for answer in answers} == expected
