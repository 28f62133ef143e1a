"""The hooks pack and split rows, isolate failing requests, and work in a user's model on a real server."""

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench import Bench
from hypothesis import given
from hypothesis import strategies as st
from scrapes import scrape, value

from clients import AsyncModel, RequestFailedError
from serve.management.api import RefusedError
from serve.policies import batch_hooks
from serve.policies.batch_hooks import BatchHooks, Request, accepted, pack


class Doubler(BatchHooks):
    """Returns 2 x; refuses negative values, and raises for a whole batch with a value above 100."""

    def __init__(self) -> None:
        self.runs: list[int] = []

    def batch_preprocess(self, requests: Sequence[Request]) -> Any:
        for request in requests:
            if (request.inputs["x"] < 0).any():
                request.fail("x is negative")
        return pack(requests) if accepted(requests) else None

    def infer(self, batch: Any) -> Any:
        self.runs.append(len(batch["x"]))
        if (batch["x"] > 100).any():
            raise RuntimeError("too much")
        return {"y": batch["x"] * 2}


def ask(*values: Sequence[float]) -> list[Request]:
    return [Request({"x": np.array(rows, dtype=np.float32)[:, np.newaxis]}) for rows in values]


def answers(requests: Sequence[Request]) -> list[Any]:
    return [request.reason if request.answer is None else request.answer["y"].ravel().tolist() for request in requests]


def test_an_unexpected_error_is_narrowed_down_to_its_request() -> None:
    model, requests = Doubler(), ask(*([value] for value in range(7)), [500])
    model.run(requests)
    assert answers(requests) == [[2 * value] for value in range(7)] + ["RuntimeError: too much"]
    assert requests[-1].bad is False
    assert model.runs == [8, 4, 4, 2, 2, 1, 1]  # one guilty among n costs about 2 log2 n runs


def test_shapes_that_cannot_be_packed_run_apart() -> None:
    model = Doubler()
    requests = [Request({"x": np.ones((1, width), dtype=np.float32)}) for width in (2, 2, 3, 3)]
    model.run(requests)
    shapes = [np.asarray(request.answer["y"]).shape for request in requests if request.answer]
    assert shapes == [(1, 2), (1, 2), (1, 3), (1, 3)]
    assert model.runs == [2, 2]


def test_an_optional_input_of_one_request_is_neither_dropped_nor_given_to_others() -> None:
    class Adder(BatchHooks):
        def infer(self, batch: Any) -> Any:
            return {"y": batch["x"] + batch.get("more", 0)}

    requests = ask([1], [2], [3])
    requests[1].inputs = {**requests[1].inputs, "more": np.array([[10]], dtype=np.float32)}
    Adder().run(requests)
    assert answers(requests) == [[1], [12], [3]]


def test_a_missing_answer_is_an_error_and_no_neighbours_answer() -> None:
    class Forgetful(BatchHooks):
        def infer(self, batch: Any) -> Any:
            return {"y": batch["x"][:-1]}

    requests = ask([1], [2])
    Forgetful().run(requests)
    assert all(request.answer is None and "y has 0 rows for 1" in str(request.reason) for request in requests)


@given(st.lists(st.lists(st.floats(-200, 200, width=32), min_size=1, max_size=4), min_size=1, max_size=12))
def test_every_request_gets_its_own_answer_or_its_own_error(values: list[list[float]]) -> None:
    model, requests = Doubler(), ask(*values)
    model.run(requests)
    good = [rows for rows in values if min(rows) >= 0]
    assert model.runs[:1] == [len([value for rows in good for value in rows])] * bool(good)
    for rows, answer, request in zip(values, answers(requests), requests, strict=True):
        assert request.bad == (min(rows) < 0)
        if request.bad:
            assert answer == "x is negative"
        elif max(rows) > 100:
            assert answer == "RuntimeError: too much"
        else:
            assert answer == [2 * value for value in rows]


OWN = """
from batch_hooks import BatchHooks, accepted, pack, split

class TritonPythonModel(BatchHooks):
    def setup(self):
        self.limit = float(self.parameter("limit", "100"))
        if self.limit <= 0:
            raise ValueError("limit must be above 0")
        self.seen = self.counter("own_seen", "Rows")
        self.largest = self.gauge("own_largest", "Largest value of the last batch")
        self.spread = self.histogram("own_spread", "Values", (1, 10), kind="x")

    def batch_preprocess(self, requests):
        for request in requests:
            if (request.inputs["x"] < 0).any():
                request.fail("x is negative. Send 0 or more.")
        return pack(requests) if accepted(requests) else None

    def infer(self, batch):
        if (batch["x"] > self.limit).any():
            raise RuntimeError("too much")
        self.seen.increment(len(batch["x"]))
        self.largest.set(float(batch["x"].max()))
        for value in batch["x"].ravel():
            self.spread.observe(float(value))
        return {"y": batch["x"] * 2}

    def batch_postprocess(self, results, requests):
        answers = split(results, requests)
        for request, answer in zip(requests, answers):
            if (request.inputs["x"] == 7).any():
                answer["y"] = answer["y"].astype(complex)  # which Triton has not
        return answers
"""


def own_model(repository: Path, limit: str) -> Path:
    folder = repository / "own" / "1"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(OWN)
    shutil.copy(batch_hooks.__file__, folder)
    (folder.parent / "config.pbtxt").write_text(
        'name: "own"\nbackend: "python"\nmax_batch_size: 8\n'
        'input [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } ]\n'
        'output [ { name: "y" data_type: TYPE_FP32 dims: [ 1 ] } ]\n'
        "dynamic_batching { max_queue_delay_microseconds: 5000000 }\ninstance_group [ { count: 1 kind: KIND_CPU } ]\n"
        f'parameters {{ key: "limit" value {{ string_value: "{limit}" }} }}\n'
    )
    return repository


@pytest.mark.server
def test_a_users_model_runs_on_a_server(bench: Bench, tmp_path: Path) -> None:
    async def ask_all(url: str) -> list[Any]:
        async with AsyncModel("own", url=url) as model:
            calls = (model.predict(np.array([[value]], dtype=np.float32)) for value in (1, 2, -1, 4, 500, 6, 7, 8))
            return await asyncio.gather(*calls, return_exceptions=True)

    with bench.serving(("own",), own_model(tmp_path, "100")) as server:
        answers = asyncio.run(ask_all(server.grpc_url))
        page = scrape(server.metrics_url)
    assert [answer.item() for answer in answers if not isinstance(answer, Exception)] == [2, 4, 8, 12, 16]
    assert isinstance(answers[2], RequestFailedError)
    assert "x is negative" in str(answers[2])
    assert "RuntimeError: too much" in str(answers[4])
    assert str(answers[6]).startswith("own: ") or "y: " in str(answers[6])

    assert value(page, "own_seen", model="own") == 6
    assert value(page, "own_largest", model="own") in (4, 6, 7, 8)
    assert value(page, "own_spread_bucket", model="own", kind="x", le="10") == 6
    assert value(page, "batch_hooks_rows_sum", model="own") == 8
    assert value(page, "batch_hooks_rows_count", model="own") == 1
    for blame, count in (("request", 1), ("model", 2)):
        assert value(page, "batch_hooks_failed_requests", model="own", blame=blame) == count


@pytest.mark.server
def test_setup_can_refuse_the_load(bench: Bench, tmp_path: Path) -> None:
    repository = own_model(tmp_path, "0")
    with pytest.raises(RefusedError, match="limit must be above 0"), bench.serving(("own",), repository):
        pass
