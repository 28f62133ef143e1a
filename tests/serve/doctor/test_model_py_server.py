"""A real tritonserver shows what the rules say about batches in a model.py."""

import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from doctor_server import AS_WRITTEN, HELD, ONE, Examiner, Tensors, ask, bad, good, serving, value
from streams import Stream

from serve.doctor.rule import Example
from serve.doctor.rules import all_rules

pytestmark = pytest.mark.server
assert all_rules()
STAND_IN = "lambda x: np.asarray(x) * 2  # stands for a network"
# Each answer holds the number of runs so far.
COUNTED = "lambda x: (self.runs.append(1), np.full(x.shape, len(self.runs), np.float32))[1]\n        self.runs = []"


def counted(example: Example) -> Example:
    return replace(example, files={"1/model.py": example.files["1/model.py"].replace(STAND_IN, COUNTED)})


def unbatched(example: Example) -> Example:
    return replace(example, config='backend: "python"')


MODELS = {
    "M813": bad("M813"),
    "M814": bad("M814"),
    "M815": bad("M815"),
    "M815_good": good("M815"),
    "M816": bad("M816"),
    "M816_good": good("M816"),
    "M817": counted(bad("M817")),
    "M817_good": counted(good("M817")),
    "M818": unbatched(bad("M818")),
    "M819": bad("M819"),
    "M819_good": good("M819"),
}
# The first request has two rows, so that the first batch has seven requests.
ROWS: list[Tensors] = [{"x": np.full((2 if at == 0 else 1, 2), at, np.float32)} for at in range(HELD)]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Examiner]:
    """A server with all models of this file."""
    with serving(tmp_path_factory.mktemp, MODELS, AS_WRITTEN) as (triton, messages):
        assert {name: message for name, message in messages.items() if message} == {}
        yield triton


@pytest.mark.parametrize("model", ["M813", "M814"])
def test_too_few_responses_fail_the_batch_and_not_a_single_request(loaded: Examiner, model: str) -> None:
    refusals = loaded.refusals([{"x": ONE}] * HELD, model=model)
    assert len(refusals) == HELD
    assert all("InferenceResponse objects do not match" in refusal for refusal in refusals)
    ask(loaded, model, {"x": ONE})


def test_an_exception_for_one_request_fails_all(loaded: Examiner) -> None:
    requests: list[Tensors] = [{"x": -ONE}, *[{"x": ONE}] * (HELD - 1)]
    refusals = loaded.refusals(requests, model="M815")
    assert len(refusals) == HELD
    assert all("x must not be negative" in refusal for refusal in refusals)
    assert len(loaded.refusals(requests, model="M815_good")) == 1


def answers(triton: Examiner, model: str) -> list[list[float]]:
    """The first column of the answers to ROWS, sent in this order."""
    with Stream(triton.server.grpc_url) as stream:
        return [answer["y"][:, 0].tolist() for answer in stream.send(model, ROWS) if isinstance(answer, dict)]


def test_rows_by_request_go_to_other_requests(loaded: Examiner) -> None:
    """Each answer is twice its input: the third request gets 2, the answer to the second one."""
    assert answers(loaded, "M816_good") == [[0, 0], [2], [4], [6], [8], [10], [12], [14]]
    assert answers(loaded, "M816") == [[0], [0], [2], [4], [6], [8], [10], [14]]


def test_a_response_for_each_row_fails_the_batch(loaded: Examiner) -> None:
    refusals = loaded.refusals(ROWS, model="M819")
    assert len(refusals) == HELD - 1
    assert all("InferenceResponse objects do not match" in refusal for refusal in refusals)
    assert loaded.refusals(ROWS, model="M819_good") == []


@pytest.mark.parametrize(("model", "runs"), [("M817", HELD), ("M817_good", 1)])
def test_a_loop_runs_the_network_for_each_request(loaded: Examiner, model: str, runs: int) -> None:
    assert loaded.refusals([{"x": ONE}] * HELD, model=model) == []
    assert value(loaded, model) == runs + 1


def test_a_pause_delays_every_request(loaded: Examiner) -> None:
    started = time.monotonic()
    assert loaded.refusals([{"x": ONE}] * 3, model="M818", gap_s=0) == []
    assert time.monotonic() - started >= 0.15


def test_a_larger_completed_size_wins(tmp_path_factory: pytest.TempPathFactory) -> None:
    with serving(tmp_path_factory.mktemp, {"M842": bad("M842")}) as (triton, messages):
        assert messages == {"M842": ""}
        assert triton.config("M842")["max_batch_size"] == 64
