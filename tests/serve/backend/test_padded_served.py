"""A real server pads requests of different length for an unmodified graph, and answers each as alone."""

from collections.abc import Iterator

import numpy as np
import pytest
from bench import Bench
from padded_models import CUT, MASK, PAD, TABLE, encoder, expected
from processes import wait_until
from scrapes import scrape, value
from streams import Stream, counted

from clients import InvalidInputError, Model
from serve.launcher import Server
from serve.management.statistics import Counters

pytestmark = pytest.mark.server
ROWS = 16


@pytest.fixture(scope="module")
def server(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("padded")
    encoder(repository)
    lengths = 'parameters { key: "pad_lengths" value { string_value: "16 48" } }\n'
    encoder(repository, "dropped_in", backend="onnxruntime", parameters=PAD + MASK + CUT + lengths)
    split = 'parameters { key: "pad_longest" value { string_value: "48" } }\n'
    split += 'parameters { key: "padding_budget" value { string_value: "latency" } }\n'
    encoder(repository, "split", parameters=PAD + MASK + CUT + split)
    models = ("encoder", "dropped_in", "split")
    with bench.serving(models, repository) as running:
        yield running


@pytest.fixture(scope="module")
def stream(server: Server) -> Iterator[Stream]:
    with Stream(server.grpc_url) as opened:
        yield opened


@pytest.mark.parametrize("model", ["encoder", "dropped_in", "split"])
def test_requests_of_any_length_answer_as_alone(server: Server, stream: Stream, model: str) -> None:
    """Batches of 16 rows, which the delay of two seconds would hold otherwise; one execution each."""
    rng = np.random.default_rng(17)
    sent = 0
    while sent < 300:
        rows: list[int] = []
        while (left := ROWS - sum(rows)) > 0:
            rows.append(int(rng.integers(1, min(3, left) + 1)))
        tokens = [rng.integers(0, len(TABLE), size=(count, int(rng.integers(1, 40)))) for count in rows]
        before = Counters.read(server.grpc_url, model).executions
        answers = stream.send(model, [{"tokens": each} for each in tokens])
        assert counted(server.grpc_url, model, executions=before + 1).executions == before + 1
        for each, answer in zip(tokens, answers, strict=True):
            assert isinstance(answer, dict), answer
            for name, wanted in expected(each).items():
                np.testing.assert_allclose(answer[name].astype(np.float32), wanted, rtol=1e-5, atol=1e-5)
        sent += len(tokens)


@pytest.mark.parametrize(
    ("model", "words"),
    [("dropped_in", "largest of the model's pad_lengths is 48"), ("split", "at most 48 (pad_longest)")],
)
def test_only_the_request_that_is_too_long_is_refused(stream: Stream, model: str, words: str) -> None:
    tokens = [np.zeros((rows, length), dtype=np.int64) for rows, length in ((4, 10), (8, 49), (4, 12))]
    answers = stream.send(model, [{"tokens": each} for each in tokens])
    assert isinstance(answers[0], dict)
    assert isinstance(answers[2], dict)
    assert isinstance(answers[1], str)
    assert words in answers[1]


def test_its_client_is_told_and_to_blame(server: Server) -> None:
    def refused() -> float:
        labels = {"model": "split", "blame": "request"}
        return value(scrape(server.metrics_url), "onnxruntime_failed_requests_total", **labels)

    before = refused()
    with Model("split", url=server.grpc_url) as model, pytest.raises(InvalidInputError, match="at most 48"):
        model.predict(np.zeros((1, 49), dtype=np.int64))
    assert wait_until(lambda: refused() == before + 1, seconds=20)
