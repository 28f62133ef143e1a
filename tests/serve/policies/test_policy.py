"""Batch policies on a real server: every request gets one answer, in time or with a reason, unless it is cancelled."""

import asyncio
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from answers import Answers
from bench import Bench
from policy_models import counted, looped, metrics, rows_of, stand_in
from processes import wait_until
from tiny_models import lookup, parameters, ragged_padded
from tritonclient.utils import InferenceServerException

from clients import AsyncModel, TimedOutError
from serve.launcher import Server
from serve.management import admin
from serve.management.statistics import Counters

pytestmark = pytest.mark.server
POLICIES = ("aimd", "deadline")
HELD = """
ARRIVED = []
arrived = ARRIVED.extend


def hold(requests):
    arrays = [request.inputs()[0].as_numpy() for request in requests]
    _, arrivals, cancelled, seconds = np.max([array[0] for array in arrays], axis=0)
    pb_utils.Logger.log_warn(f"{NAME} runs {len(arrays)}")
    while len(ARRIVED) < arrivals or cancelled and sum(each.is_cancelled() for each in ARRIVED) < cancelled:
        time.sleep(0.01)
    time.sleep(float(seconds))
    return [pb_utils.InferenceResponse([pb_utils.Tensor("y", array[:, :1])]) for array in arrays]
"""
BROKEN = """
class Broken:
    cap = 1.0

    def choose(self, waiting, now):
        raise ValueError("cannot choose")
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
def server(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A model for each test."""
    repository = tmp_path_factory.mktemp("policies")
    aimd, deadline = {"batch_policy": "aimd", "slo_ms": "30"}, {"batch_policy": "deadline", "slo_ms": "60"}
    names = [
        stand_in(repository, "policy_all", batch_policy="all", slo_ms="30"),
        stand_in(repository, "policy_aimd", **aimd),
        stand_in(repository, "policy_deadline", **deadline),
        stand_in(repository, "leaving", fixed_ms="100", **aimd | {"slo_ms": "1000"}),
        looped(repository, "broken", BROKEN, policy="Broken()", **aimd),
        looped(repository, "failing", FAILING, policy="create(settings)", answers="answers", **aimd),
    ]
    loop = {"policy": "create(settings)", "answers": "hold", "metrics": ", PolicyMetrics.of(settings, args, pb_utils)"}
    for name in ("held_aimd", "held_deadline", "own_deadline", "clients_deadline"):
        settings = {"batch_policy": "aimd" if name == "held_aimd" else "deadline", "slo_ms": "60000"}
        names.append(looped(repository, name, f"NAME = {name!r}{HELD}", **loop, **settings))
    lookup(repository, "failing_rows")
    with (repository / "failing_rows" / "config.pbtxt").open("a") as config:
        config.write(parameters(**aimd))
    cut = parameters(batch_policy="deadline", slo_ms="10000", padding_budget="latency")
    ragged_padded(repository, "cut", config="dynamic_batching { }\n" + cut)
    with bench.serving((*names, "failing_rows", "cut"), repository) as running:
        yield running


def outputs(sending: Answers, name: str = "y") -> list[Any]:
    """The output of each request, or its error."""
    return [answer if isinstance(answer, str) else answer[name] for answer in sending.all()]


def burst(server: Server, model: str, requests: Sequence[Any], x: str = "x", y: str = "y") -> list[Any]:
    """Send all requests at once."""
    with Answers(server.grpc_url, model) as sending:
        for request in requests:
            sending.send({x: request})
        return outputs(sending, y)


def numbers(count: int) -> list[Any]:
    return [rows_of(number) for number in range(count)]


def right(answers: Sequence[Any]) -> int:
    """How many requests were answered; each answer is the number of its request."""
    answered = [(number, answer) for number, answer in enumerate(answers) if not isinstance(answer, str)]
    assert all(answer.tolist() == [[number]] for number, answer in answered)
    return len(answered)


def held(number: int, *, arrivals: int = 0, cancelled: int = 0, seconds: float = 0) -> Any:
    """A request whose batch runs until so many arrived and so many are cancelled, and then so long."""
    return np.array([[number, arrivals, cancelled, seconds]], dtype=np.float32)


def taken(server: Server, model: str, requests: int) -> None:
    """Wait until the model has so many requests, which Triton counts at once."""
    assert wait_until(lambda: Counters.read(server.grpc_url, model).requests == requests, seconds=20)


def runs(server: Server, model: str) -> None:
    """Wait until the first batch runs, which the model writes into the server's log."""
    assert wait_until(lambda: f"{model} runs 1" in server.log.read_text(), seconds=20)


def test_all_is_what_triton_hands_over(server: Server) -> None:
    assert right(burst(server, "policy_all", numbers(40))) == 40
    assert metrics(server, "policy_all") == {}


def test_aimd_keeps_batches_within_the_target(server: Server) -> None:
    assert right(burst(server, "policy_aimd", numbers(200))) == 200
    values = counted(server, "policy_aimd", answered=200)
    # 20 rows take 30 ms, so none has 32 although up to 64 may run together and many wait.
    assert values["batch_policy_rows_bucket32"] == values["batch_policy_rows_count"]
    assert 1 <= values["batch_policy_cap_rows"] <= 22


def test_deadline_answers_in_time_or_refuses(server: Server) -> None:
    answers = burst(server, "policy_deadline", numbers(500))
    answered, refused = right(answers), [answer for answer in answers if isinstance(answer, str)]
    assert answered > 0 < len(refused)  # 500 rows take 270 ms at least
    assert all(re.fullmatch(REFUSED, error) for error in refused), refused[0]
    counted(server, "policy_deadline", answered=answered, refused=len(refused))


def test_a_request_brings_its_own_deadline(server: Server) -> None:
    """The second request's deadline passes while the first runs; the third has the model's, of a minute."""
    with Answers(server.grpc_url, "own_deadline") as sending:
        sending.send({"x": held(0, arrivals=3, seconds=0.2)})
        runs(server, "own_deadline")
        sending.send({"x": held(1)}, timeout_ms=100)
        sending.send({"x": held(2)})
        first, second, third = outputs(sending)
    assert (first.tolist(), third.tolist()) == ([[0.0]], [[2.0]])
    assert re.search(r"UNAVAILABLE\] batch_policy deadline: refused after [\d.]+ of 100.0 ms", second), second


def test_the_clients_deadline_counts_if_it_is_shorter_than_the_models(server: Server) -> None:
    """It is the second of the first request's run; another of two minutes does not lengthen the model's."""

    async def ask() -> list[Any]:
        async with AsyncModel("clients_deadline", url=server.grpc_url) as model:
            first = asyncio.create_task(model.predict(held(0, arrivals=3, seconds=1.2)))
            await asyncio.to_thread(runs, server, "clients_deadline")
            others = [model.predict(held(1), timeout_s=timeout_s) for timeout_s in (1, 120)]
            return await asyncio.gather(first, *others, return_exceptions=True)

    first, second, third = asyncio.run(ask())
    assert (first.tolist(), third.tolist()) == ([[0.0]], [[1.0]])
    assert isinstance(second, TimedOutError)
    counted(server, "clients_deadline", answered=2, refused=1)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_cancelled_request_does_not_run(server: Server, policy: str) -> None:
    """While the first one runs, six more wait, and three of them are cancelled."""
    model, cancelled = f"held_{policy}", (1, 2, 5)
    with Answers(server.grpc_url, model) as sending:
        sending.send({"x": held(0, arrivals=7, cancelled=3, seconds=0.2)})
        runs(server, model)
        for number in range(1, 7):
            sending.send({"x": held(number, seconds=0.2)})
        taken(server, model, 7)
        for number in cancelled:
            sending.calls[number].cancel()
        answers = outputs(sending)
    assert right(answers) == 4
    assert all("CANCELLED" in answers[number] for number in cancelled)
    values = counted(server, model, answered=4)
    assert values["batch_policy_cancelled_requests_total"] == 3
    # aimd starts with one row and then allows two; deadline runs all that are left together.
    assert values["batch_policy_rows_count"] == {"aimd": 3, "deadline": 2}[policy]


def test_unloading_answers_requests_that_wait(server: Server) -> None:
    with Answers(server.grpc_url, "leaving") as sending, triton.InferenceServerClient(server.grpc_url) as client:
        for request in numbers(100):
            sending.send({"x": request})
        taken(server, "leaving", 100)
        client.unload_model("leaving", headers=admin.headers(server.grpc_url))
        assert right(outputs(sending)) == 100
        with pytest.raises(InferenceServerException, match=r"not ready|unknown model|is not found"):
            client.infer("leaving", [triton.InferInput("x", [1, 4], "FP32").set_data_from_numpy(rows_of(0))])


def test_a_broken_policy_fails_every_request(server: Server) -> None:
    answers = burst(server, "broken", numbers(20))
    assert answers == ["[StatusCode.INTERNAL] batch_policy aimd: ValueError: cannot choose"] * 20


def test_errors_stay_with_their_request(server: Server) -> None:
    indices = [0, 1, 2, 3, 9, 3, 2, 1]
    answers = burst(server, "failing_rows", [np.full((1, 1), index, dtype=np.float32) for index in indices])
    assert "out of" in answers.pop(indices.index(9))
    assert [answer.item() for answer in answers] == [10 + index for index in indices if index < 9]
    counted(server, "failing_rows", answered=8)


def test_ragged_batches_are_split_as_without_a_policy(server: Server) -> None:
    """Into which runs depends on the time that they took; backend/test_padding.py has the rest."""
    lengths = [3, 40, 5, 4, 41, 4, 90, 5]
    answers = burst(server, "cut", [np.full((1, length), 2, dtype=np.float32) for length in lengths], "X", "Y")
    sums = [answer[0].tolist() for answer in answers]
    assert [summed for summed, _, _ in sums] == [2 * length for length in lengths]
    assert all(longest in lengths and longest >= length for (_, longest, _), length in zip(sums, lengths, strict=True))


def test_an_answer_that_cannot_be_sent_is_an_error(server: Server) -> None:
    for number, message in ((1, "an answer was not sent"), (2, "SystemExit: the model ends")):
        (answer,) = burst(server, "failing", [rows_of(number)])
        assert message in answer
    assert burst(server, "failing", [rows_of(7)])[0].tolist() == [[7]]
