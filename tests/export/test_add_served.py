"""Added models and variants on a real server: each request gets the answer that onnxruntime gives it alone."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from added_graphs import graph, linear, scaled
from bench import Bench
from numpy.typing import NDArray
from onnx import helper
from padded_models import TABLE, encoder, expected
from streams import Stream, counted

from clients import Model
from export.add.__main__ import main
from export.models import alphabet, word_image
from export.repository import REPOSITORY
from export.variant.__main__ import main as variant
from serve.launcher import Server

pytestmark = pytest.mark.server
PICTURES = sorted((REPOSITORY.parent / "clients" / "pictures").glob("*.png"))[:8]
Tensors = Mapping[str, NDArray[Any]]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models that were added. The file of `scores` was exported for one row; two of them wait for a full batch."""
    folder = tmp_path_factory.mktemp("added")
    linear(folder / "scores.onnx", rows=1)
    scaled(folder / "scaled.onnx")
    graph(folder / "total.onnx", [helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0)], gives=())
    graph(folder / "labels.onnx", [helper.make_node("ReduceMax", ["x"], ["y"], axes=[1], keepdims=0)], gives=("batch",))
    (encoder(folder / "encoder") / "1" / "model.onnx").rename(folder / "lengths.onnx")
    full = ["--batch-timeout-us", "900000", "--max-batch-size"]
    options = {
        "scores": [*full, "8"],
        "scaled": [],
        "total": ["--batching", "none"],
        "labels": [],
        "lengths": [*full, "4", "--variable-length"],
    }
    for name, chosen in options.items():
        where = ["--kind", "cpu", "--repository", str(folder / "models")]
        assert main([str(folder / f"{name}.onnx"), *chosen, *where]) == 0
        config = folder / "models" / name / "config.pbtxt"
        config.write_text(config.read_text().replace(": 900000", ": 60000000"))
    return folder / "models"


def answers(server: Server, model: str, requests: list[Tensors], batches: dict[int, int]) -> list[Tensors]:
    """The answers to requests that are sent at once, which must have run in these batches."""
    with Stream(server.grpc_url) as stream:
        given = stream.send(model, requests)
    assert counted(server.grpc_url, model, executions=sum(batches.values())).batches == batches
    return [answer for answer in given if not isinstance(answer, str) or pytest.fail(answer)]


def test_added_models_answer_each_request_as_alone(repository: Path, bench: Bench) -> None:
    rng = np.random.default_rng(3)
    with bench.serving(("scores", "scaled", "total", "labels", "lengths"), repository) as server:
        assert [server.configs[name].max_batch_size for name in ("scores", "scaled", "lengths")] == [8, 0, 4]
        session = onnxruntime.InferenceSession(str(repository.parent / "scores.onnx"))
        rows: list[Tensors] = [{"x": rng.standard_normal((1, 4), dtype=np.float32)} for _ in range(8)]
        for row, answer in zip(rows, answers(server, "scores", rows, {8: 1}), strict=True):
            np.testing.assert_allclose(answer["y"], session.run(["y"], dict(row))[0], rtol=1e-4, atol=1e-6)
        session = onnxruntime.InferenceSession(str(repository.parent / "scaled.onnx"))
        own: list[Tensors] = [
            {
                "x": rng.standard_normal((count, 8), dtype=np.float32),
                "table": rng.standard_normal(4, dtype=np.float32),
                "scale": np.array([count + 0.5], dtype=np.float32),
            }
            for count in (1, 3, 40)
        ]
        for request, answer in zip(own, answers(server, "scaled", own, {1: 3}), strict=True):
            wanted = session.run(["y"], {**request, "scale": request["scale"].reshape(())})[0]
            np.testing.assert_allclose(answer["y"], wanted, rtol=1e-4, atol=1e-5)
        # Triton refuses an empty reshape without a batch axis, so the sum over a whole request has dims [ 1 ].
        (answer,) = answers(server, "total", [{"x": np.arange(8, dtype=np.float32).reshape(2, 4)}], {1: 1})
        assert answer["y"].tolist() == [28]
        # Triton has no answer of shape [rows], so the client takes it out of [rows, 1].
        x = rng.standard_normal((7, 4), dtype=np.float32)
        (answer,) = answers(server, "labels", [{"x": x}], {7: 1})
        assert answer["y"].shape == (7, 1)
        with Model("labels", url=server.grpc_url) as model:
            np.testing.assert_array_equal(model.predict(x), x.max(axis=1))
        tokens = [rng.integers(0, len(TABLE), size=(1, length)) for length in (3, 30, 1, 9)]
        together = answers(server, "lengths", [{"tokens": each} for each in tokens], {4: 1})
        for each, answer in zip(tokens, together, strict=True):
            for name, wanted in expected(each).items():
                np.testing.assert_allclose(answer[name], wanted, rtol=1e-5, atol=1e-5)


def test_a_variant_reads_the_words(tmp_path: Path, bench: Bench) -> None:
    (tmp_path / "text_recognition").symlink_to(REPOSITORY / "text_recognition")
    model = "text_recognition_int8_static"
    assert variant(["text_recognition", "--precision", "int8-static", "--repository", str(tmp_path)]) == 0
    rows = np.stack([word_image.prepare(path) for path in PICTURES])
    with bench.serving((model,), tmp_path) as server:
        (answer,) = answers(server, model, [{"input.1": rows}], {len(rows): 1})
    session = onnxruntime.InferenceSession(str(tmp_path / model / "1" / "model.onnx"))
    np.testing.assert_allclose(answer["308"], session.run(None, {"input.1": rows})[0], rtol=1e-3, atol=1e-3)
    assert alphabet.decode(answer["308"]) == [path.stem for path in PICTURES]
