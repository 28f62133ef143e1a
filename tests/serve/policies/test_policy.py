"""Batch policies on a real server: every request gets one answer, in time or with a reason, unless it is cancelled."""

import asyncio
import re
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from answers import Answers
from policy_models import counted, looped, metrics, rows_of, stand_in
from sleepers import PLAIN
from tiny_models import lookup, parameters, ragged_padded
from tritonclient.utils import InferenceServerException

from clients import AsyncModel, TimedOutError
from serve.launcher import Server, Settings, launch
from serve.management import admin
from serve.management.statistics import Counters

pytestmark = pytest.mark.server
POLICIES = {"aimd": {"slo_ms": "5000"}, "deadline": {"slo_ms": "60000"}}
BATCH_S = 1.5
BROKEN = """
class Broken:
    cap = 1.0

    def choose(self, waiting, now):
        raise ValueError("cannot choose")
"""
UNCOUNTED = """
class Refusing:
    cap = 1.0

    def choose(self, waiting, now):
        return Choice(take=(), drop=range(len(waiting)))


class Metrics:
    def refused(self, cancelled):
        raise ValueError("cannot count")
"""
FAILING = """
def answer(array):
    if array[0, 0] == 1:
        return "no response"
    if array[0, 0] == 2:
        raise SystemExit("the model ends")
    return pb_utils.InferenceResponse([pb_utils.Tensor("y", array[:, :1])])


def answers(requests):
    return [answer(request.inputs()[0].as_numpy()) for request in requests]
"""
REFUSED = r"\[StatusCode.UNAVAILABLE\] batch_policy deadline: refused after [\d.]+ of 60.0 ms: .*slo_ms\)."


@pytest.fixture(scope="module")
def policy_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server with a model for each test."""
    repository = tmp_path_factory.mktemp("policies")
    aimd = {"batch_policy": "aimd", "slo_ms": "30"}
    deadline = {"batch_policy": "deadline", "slo_ms": "60"}
    names = [
        stand_in(repository, "all", batch_policy="all", slo_ms="30"),
        stand_in(repository, "aimd", **aimd),
        stand_in(repository, "deadline", **deadline),
        stand_in(repository, "slow", fixed_ms="200", batch_policy="deadline", slo_ms="10000"),
        stand_in(repository, "waiting", fixed_ms="200", batch_policy="deadline", slo_ms="10000"),
        stand_in(repository, "leaving", **aimd),
        looped(repository, "broken", BROKEN, policy="Broken()", **aimd),
        looped(repository, "uncounted", UNCOUNTED, policy="Refusing()", metrics=", Metrics()", **deadline),
        looped(
            repository, "failing", FAILING, policy="create(settings)", answers="answers", **aimd | {"slo_ms": "1000"}
        ),
        lookup(repository, "lookup").name,
        ragged_padded(
            repository,
            "ragged",
            config="dynamic_batching { }\n"
            + parameters(batch_policy="deadline", slo_ms="10000", padding_budget="elements")
            + parameters(padding_budget_run_elements="10"),
        ).name,
    ]
    for policy, settings in POLICIES.items():
        slow = {"fixed_ms": str(1e3 * BATCH_S), "row_ms": "0", "batch_policy": policy, **settings}
        names.append(stand_in(repository, f"slow_{policy}", **slow))
    with (repository / "lookup" / "config.pbtxt").open("a") as config:
        config.write(parameters(**aimd))
    with launch(Settings(models=tuple(names), repository=repository, arguments=PLAIN)) as running:
        yield running


def outputs(sending: Answers, name: str = "y") -> list[Any]:
    """The output of each request, or its error."""
    return [answer if isinstance(answer, str) else answer[name] for answer in sending.all()]


def burst(server: Server, model: str, requests: int) -> list[Any]:
    """Send all requests at once."""
    with Answers(server.grpc_url, model) as sending:
        for number in range(requests):
            sending.send({"x": rows_of(number)})
        return outputs(sending)


def right(answers: Sequence[Any]) -> int:
    """How many requests were answered; each answer is the number of its request."""
    answered = [(number, answer) for number, answer in enumerate(answers) if not isinstance(answer, str)]
    assert all(answer.tolist() == [[number]] for number, answer in answered)
    return len(answered)


def test_all_is_what_triton_hands_over(policy_server: Server) -> None:
    assert right(burst(policy_server, "all", 40)) == 40
    assert metrics(policy_server, "all") == {}
    seen = Counters.read(policy_server.grpc_url, "all")
    assert sum(seen.batches_ns.values()) >= 20e6 * seen.executions  # Triton sees the time of every batch


def test_aimd_keeps_batches_within_the_target(policy_server: Server) -> None:
    assert right(burst(policy_server, "aimd", 500)) == 500
    values = counted(policy_server, "aimd", answered=500)
    # 20 rows take 30 ms, so none has 32 although up to 64 may run together and hundreds wait.
    assert values["batch_policy_rows_bucket32"] == values["batch_policy_rows_count"]
    assert 1 <= values["batch_policy_cap_rows"] <= 22


def test_deadline_answers_in_time_or_refuses(policy_server: Server) -> None:
    answers = burst(policy_server, "deadline", 500)
    answered, refused = right(answers), [answer for answer in answers if isinstance(answer, str)]
    assert answered + len(refused) == 500
    assert answered > 0 < len(refused)  # 500 rows take 270 ms at least
    assert all(re.fullmatch(REFUSED, error) for error in refused), refused[0]
    counted(policy_server, "deadline", answered=answered, refused=len(refused))


def test_a_request_brings_its_own_deadline(policy_server: Server) -> None:
    """The second request's deadline passes while the first runs for 200 ms; the third has the model's 10 s."""
    with Answers(policy_server.grpc_url, "slow") as sending:
        sending.send({"x": rows_of(0)})
        time.sleep(0.05)
        sending.send({"x": rows_of(1)}, timeout_ms=100)
        sending.send({"x": rows_of(2)})
        first, second, third = outputs(sending)
    assert (first.tolist(), third.tolist()) == ([[0.0]], [[2.0]])
    assert re.search(r"UNAVAILABLE\] batch_policy deadline: refused after [\d.]+ of 100.0 ms", second), second


def test_the_clients_deadline_counts_if_it_is_shorter_than_the_models(policy_server: Server) -> None:
    """The first request takes 200 ms. The model's own deadline is 10 s, and 20 s do not lengthen it."""

    async def ask() -> list[Any]:
        async with AsyncModel("waiting", url=policy_server.grpc_url) as model:
            first = asyncio.create_task(model.predict(rows_of(0)))
            await asyncio.sleep(0.05)
            others = [model.predict(rows_of(1), timeout_s=timeout_s) for timeout_s in (0.1, 20)]
            return await asyncio.gather(first, *others, return_exceptions=True)

    first, second, third = asyncio.run(ask())
    assert (first.tolist(), third.tolist()) == ([[0.0]], [[1.0]])
    assert isinstance(second, TimedOutError)
    counted(policy_server, "waiting", answered=2, refused=1)


def test_unloading_answers_requests_that_wait(policy_server: Server) -> None:
    url = policy_server.grpc_url
    with Answers(url, "leaving") as sending, triton.InferenceServerClient(url) as client:
        for number in range(200):
            sending.send({"x": rows_of(number)})
        time.sleep(0.1)  # the requests must arrive before the model is unloaded
        client.unload_model("leaving", headers=admin.headers(url))
        assert right(outputs(sending)) == 200
        with pytest.raises(InferenceServerException, match=r"not ready|unknown model|is not found"):
            client.infer("leaving", [triton.InferInput("x", [1, 4], "FP32").set_data_from_numpy(rows_of(0))])


def test_a_broken_policy_fails_every_request(policy_server: Server) -> None:
    answers = burst(policy_server, "broken", 20)
    assert answers == ["[StatusCode.INTERNAL] batch_policy aimd: ValueError: cannot choose"] * 20


def test_a_broken_metric_does_not_stop_refusals(policy_server: Server) -> None:
    answers = burst(policy_server, "uncounted", 20)
    assert all(re.fullmatch(REFUSED, error) for error in answers), answers[0]
    assert "uncounted_0_0: ValueError: cannot count" in policy_server.log.read_text()


def test_errors_stay_with_their_request(policy_server: Server) -> None:
    indices = [0, 1, 2, 3, 9, 3, 2, 1]
    with Answers(policy_server.grpc_url, "lookup") as sending:
        for index in indices:
            sending.send({"x": np.full((1, 1), index, dtype=np.float32)})
        answers = outputs(sending)
    assert "out of" in answers.pop(indices.index(9))
    assert [answer.item() for answer in answers] == [10 + index for index in indices if index < 9]
    counted(policy_server, "lookup", answered=8)


def test_ragged_batches_are_cut_as_without_a_policy(policy_server: Server) -> None:
    lengths = [3, 40, 5, 4, 41, 4, 90, 5]
    with Answers(policy_server.grpc_url, "ragged") as sending:
        for length in lengths:
            sending.send({"X": np.full((1, length), 2, dtype=np.float32)})
        sums = [answer[0].tolist() for answer in outputs(sending, "Y")]
    assert [summed for summed, _, _ in sums] == [2 * length for length in lengths]
    # No item is padded by 10 elements or more, because another run would cost less.
    assert all(longest - length < 10 for (_, longest, _), length in zip(sums, lengths, strict=True))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_cancelled_request_does_not_run(policy_server: Server, policy: str) -> None:
    """While the first one runs, six more wait, and three of them are cancelled."""
    with Answers(policy_server.grpc_url, f"slow_{policy}") as sending:
        sending.send({"x": rows_of(0)})
        time.sleep(BATCH_S / 3)  # until it runs, and then until the others are there
        for number in range(1, 7):
            sending.send({"x": rows_of(number)})
        time.sleep(BATCH_S / 3)
        for number in (1, 2, 5):
            sending.calls[number].cancel()
        answers = sending.all()
    for number, answer in enumerate(answers):
        if number in (1, 2, 5):
            assert isinstance(answer, str)
            assert "CANCELLED" in answer
        else:
            assert isinstance(answer, dict)
            assert answer["y"].tolist() == [[number]]
    values = counted(policy_server, f"slow_{policy}", answered=4)
    assert values["batch_policy_cancelled_requests_total"] == 3
    # aimd starts with one row and then allows two; deadline runs all that are left together.
    assert values["batch_policy_rows_count"] == {"aimd": 3, "deadline": 2}[policy]


@pytest.mark.parametrize(("number", "message"), [(1, "an answer was not sent"), (2, "SystemExit: the model ends")])
def test_an_answer_that_cannot_be_sent_is_an_error(policy_server: Server, number: int, message: str) -> None:
    with Answers(policy_server.grpc_url, "failing") as sending:
        sending.send({"x": rows_of(number)})
        (answer,) = sending.all()
    assert isinstance(answer, str)
    assert message in answer
    with Answers(policy_server.grpc_url, "failing") as sending:
        sending.send({"x": rows_of(7)})
        (answer,) = sending.all()
    assert isinstance(answer, dict)
    np.testing.assert_array_equal(answer["y"], [[7]])
