"""Added models on a real server: the answers are onnxruntime's, and the server reports their settings."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tritonclient.grpc as triton
from added_graphs import graph, linear, prefixed, texts, weights
from numpy.typing import NDArray
from onnx import helper
from processes import wait_until
from sleepers import PLAIN

from clients.connection import channel_arguments
from export.add.__main__ import main
from serve.launcher import Server, Settings, launch
from serve.management import admin
from serve.management.statistics import Counters

pytestmark = pytest.mark.server
MODELS = """
dag: {type: sequential, name: chain, nodes: [{name: one, model: wide-1.0.0}, {name: two, model: scores-1.0.0}]}
models:
  - {name: wide, version: 1.0.0, device: cpu, inferer_type: onnx, inferer_path: wide.onnx,
     batching: {type: dynamic, max_batch_size: 16, batch_timeout_us: 1000}}
  - {name: scores, version: 1.0.0, device: cpu, inferer_type: onnx, inferer_path: scores.onnx,
     batching: {type: dynamic, max_batch_size: 8, batch_timeout_us: 900000}}
  - {name: texts, version: 1.0.0, device: cpu, inferer_type: onnx, inferer_path: texts.onnx,
     inferer_args: {instances: 2}, batching: {type: dynamic, max_batch_size: 4, batch_timeout_us: 2000}}
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file exported for one row, rewritten; and two models from one YAML file."""
    folder = tmp_path_factory.mktemp("added")
    linear(folder / "scores.onnx", rows=1)
    texts(folder / "texts.onnx")
    graph(
        folder / "wide.onnx",
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        takes=("batch", 2),
        gives=("batch", 4),
        constants=[weights(2, 4)],
    )
    prefixed(folder / "prefixed.onnx")
    (folder / "inference.yml").write_text(MODELS)
    assert main(["--yaml", str(folder / "inference.yml"), "--repository", str(folder / "models")]) == 0
    added = [str(folder / "prefixed.onnx"), "--name", "prefixed", "--batching", "none", "--max-batch-size", "6"]
    assert main([*added, "--repository", str(folder / "models")]) == 0
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


def test_a_dag_runs_its_models_one_after_the_other(
    repository: Path, served: Server, client: triton.InferenceServerClient
) -> None:
    headers = admin.headers(served.grpc_url)
    client.load_model("wide", headers=headers)
    client.load_model("chain", headers=headers)
    rows = np.random.default_rng(6).standard_normal((3, 2)).astype(np.float32)
    before = [Counters.read(served.grpc_url, name) for name in ("wide", "scores")]
    answer = client.infer("chain", tensors({"x": rows})).as_numpy("y")
    expected = rows
    for name in ("wide", "scores"):
        session = onnxruntime.InferenceSession(str(repository / name / "1" / "model.onnx"))
        (expected,) = session.run(["y"], {"x": expected})
    np.testing.assert_allclose(answer, expected, rtol=1e-5)
    for name, counted in zip(("wide", "scores"), before, strict=True):
        assert (Counters.read(served.grpc_url, name) - counted).batches == {3: 1}
