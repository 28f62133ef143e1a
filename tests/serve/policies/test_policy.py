"""Batches that a policy forms on a real server: every request is answered once, in time or with a reason."""

import re
import shutil
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tiny_models import lookup, parameters, ragged_padded
from tritonclient.utils import InferenceServerException

from clients.connection import channel_arguments
from export.repository import REPOSITORY
from serve.launcher import Server, Settings, launch
from serve.management import admin
from serve.management.statistics import Counters

pytestmark = pytest.mark.server
TIMEOUT_S = 30.0
BROKEN = """
import json

import triton_python_backend_utils as pb_utils
from policy_loop import PolicyLoop
from policy_settings import PolicySettings


class Broken:
    cap = 1.0

    def choose(self, waiting, now):
        raise ValueError("cannot choose")


class TritonPythonModel:
    def initialize(self, args):
        settings = PolicySettings.of(json.loads(args["model_config"]))
        self.loop = PolicyLoop(settings, Broken(), list, args, pb_utils)

    def execute(self, requests):
        return self.loop.take(requests)

    def finalize(self):
        self.loop.end()
"""
UNCOUNTED = """
import json

import triton_python_backend_utils as pb_utils
from batch_policy import Choice
from policy_loop import PolicyLoop
from policy_settings import PolicySettings


class Refusing:
    cap = 1.0

    def choose(self, waiting, now):
        return Choice(take=(), drop=range(len(waiting)))


class Metrics:
    def refused(self, cancelled):
        raise ValueError("cannot count")


class TritonPythonModel:
    def initialize(self, args):
        settings = PolicySettings.of(json.loads(args["model_config"]))
        self.loop = PolicyLoop(settings, Refusing(), list, args, pb_utils, Metrics())

    def execute(self, requests):
        return self.loop.take(requests)

    def finalize(self):
        self.loop.end()
"""
REFUSED = r"\[StatusCode.UNAVAILABLE\] batch_policy deadline: refused after [\d.]+ of 60.0 ms: .*slo_ms\)."


def stand_in(repository: Path, name: str, *, fixed_ms: str = "20", row_ms: str = "0.5", **values: str) -> str:
    """A simulated accelerator that answers each row with the mean of its 4 values, and its name."""
    folder = repository / name
    shutil.copytree(REPOSITORY / "simulated_accelerator" / "1", folder / "1", ignore=shutil.ignore_patterns("__*"))
    (folder / "config.pbtxt").write_text(
        f'name: "{name}"\nbackend: "python"\nmax_batch_size: 64\ndynamic_batching {{ }}\n'
        'input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]\n'
        'output [ { name: "y" data_type: TYPE_FP32 dims: [ 1 ] } ]\ninstance_group [ { count: 1 } ]\n'
        + parameters(fixed_ms=fixed_ms, row_ms=row_ms, **values)
    )
    return name


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
        stand_in(repository, "leaving", **aimd),
        stand_in(repository, "broken", **aimd),
        stand_in(repository, "uncounted", **deadline),
        lookup(repository, "lookup").name,
        ragged_padded(
            repository,
            "ragged",
            config="dynamic_batching { }\n"
            + parameters(batch_policy="deadline", slo_ms="10000", padding_budget="elements")
            + parameters(padding_budget_run_elements="10"),
        ).name,
    ]
    (repository / "broken" / "1" / "model.py").write_text(BROKEN)
    (repository / "uncounted" / "1" / "model.py").write_text(UNCOUNTED)
    with (repository / "lookup" / "config.pbtxt").open("a") as config:
        config.write(parameters(**aimd))
    with launch(Settings(models=tuple(names), repository=repository)) as running:
        yield running


class Burst:
    """Requests sent without waiting; `answers` has the first output of each, or the error, in their order."""

    def __init__(self, server: Server, model: str) -> None:
        url = server.grpc_url
        self.client = triton.InferenceServerClient(url, channel_args=channel_arguments(url))
        self._model, self._calls = model, 0
        self._found: list[tuple[int, Any]] = []
        self._more = threading.Condition()

    def send(self, array: "np.ndarray[Any, Any]", *, name: str = "x", timeout_ms: int = 0) -> Any:
        """One request; its timeout is Triton's own, not the connection's."""
        number, self._calls = self._calls, self._calls + 1

        def answered(result: Any, error: Any) -> None:
            with self._more:
                self._found.append((number, str(error) if error else result))
                self._more.notify()

        tensor = triton.InferInput(name, list(array.shape), "FP32")
        tensor.set_data_from_numpy(array)
        return self.client.async_infer(self._model, [tensor], answered, timeout=1000 * timeout_ms or None)

    def answers(self, output: str = "y") -> list[Any]:
        """Waits for all; fails where one is missing or came twice."""
        with self._more:
            assert self._more.wait_for(lambda: len(self._found) >= self._calls, TIMEOUT_S), len(self._found)
        self.client.close()
        assert sorted(number for number, _ in self._found) == list(range(self._calls))
        found = dict(self._found)
        return [one if isinstance(one := found[number], str) else one.as_numpy(output) for number in range(self._calls)]


def rows_of(number: int, rows: int = 1) -> "np.ndarray[Any, Any]":
    return np.full((rows, 4), number, dtype=np.float32)


def burst(server: Server, model: str, requests: int) -> list[Any]:
    sending = Burst(server, model)
    for number in range(requests):
        sending.send(rows_of(number))
    return sending.answers()


def right(answers: Sequence[Any]) -> int:
    """How many were answered, each with the number of its request."""
    answered = [(number, one) for number, one in enumerate(answers) if not isinstance(one, str)]
    assert all(one.tolist() == [[number]] for number, one in answered)
    return len(answered)


def counted(server: Server, model: str, *, answered: int, refused: int = 0) -> dict[str, float]:
    """The metrics of a model once they have so many rows and refusals: an instance answers first and counts then."""
    end = time.monotonic() + 5
    while True:
        found = metrics(server, model)
        both = found["batch_policy_rows_sum"], found["batch_policy_dropped_requests_total"]
        if both == (answered, refused) or time.monotonic() > end:
            assert both == (answered, refused)
            return found
        time.sleep(0.02)


def metrics(server: Server, model: str) -> dict[str, float]:
    """The policy's metrics of a model, buckets by their limit."""
    with urllib.request.urlopen(f"http://{server.settings.host}:{server.metrics_port}/metrics") as page:
        lines = [line for line in page.read().decode().splitlines() if line.startswith("batch_policy_")]
    found = {}
    for line in lines:
        labels, value = line.rsplit(" ", 1)
        if f'model="{model}"' in labels:
            assert f'instance="{model}_0' in labels
            assert 'version="1"' in labels
            limit = re.search(r'le="(.+?)"', labels)
            found[labels.partition("{")[0] + (limit[1] if limit else "")] = float(value)
    return found


def test_all_is_what_triton_hands_over(policy_server: Server) -> None:
    assert right(burst(policy_server, "all", 40)) == 40
    assert metrics(policy_server, "all") == {}
    seen = Counters.read(policy_server.grpc_url, "all")
    assert sum(seen.batches_ns.values()) >= 20e6 * seen.executions  # Triton sees what every batch takes


def test_aimd_keeps_batches_within_the_target(policy_server: Server) -> None:
    assert right(burst(policy_server, "aimd", 500)) == 500
    found = counted(policy_server, "aimd", answered=500)
    # 20 rows take 30 ms, so none has 32 although up to 64 may run together and hundreds wait.
    assert found["batch_policy_rows_bucket32"] == found["batch_policy_rows_count"]
    assert 1 <= found["batch_policy_cap_rows"] <= 22


def test_deadline_answers_in_time_or_refuses(policy_server: Server) -> None:
    answers = burst(policy_server, "deadline", 500)
    answered, refused = right(answers), [one for one in answers if isinstance(one, str)]
    assert answered + len(refused) == 500
    assert answered > 0 < len(refused)  # 500 rows take 270 ms at least
    assert all(re.fullmatch(REFUSED, one) for one in refused), refused[0]
    counted(policy_server, "deadline", answered=answered, refused=len(refused))


def test_a_request_brings_its_own_deadline(policy_server: Server) -> None:
    """While the first runs for 200 ms, the time of the second passes; the third has the model's 10 s."""
    sending = Burst(policy_server, "slow")
    sending.send(rows_of(0))
    time.sleep(0.05)
    sending.send(rows_of(1), timeout_ms=100)
    sending.send(rows_of(2))
    first, second, third = sending.answers()
    assert (first.tolist(), third.tolist()) == ([[0.0]], [[2.0]])
    assert re.search(r"UNAVAILABLE\] batch_policy deadline: refused after [\d.]+ of 100.0 ms", second), second


def test_unloading_answers_what_waits(policy_server: Server) -> None:
    sending = Burst(policy_server, "leaving")
    for number in range(200):
        sending.send(rows_of(number))
    time.sleep(0.1)  # the requests have to be there before the model is asked to leave
    with triton.InferenceServerClient(policy_server.grpc_url) as client:
        client.unload_model("leaving", headers=admin.headers(policy_server.grpc_url))
        assert right(sending.answers()) == 200
        with pytest.raises(InferenceServerException, match=r"not ready|unknown model|is not found"):
            client.infer("leaving", [triton.InferInput("x", [1, 4], "FP32").set_data_from_numpy(rows_of(0))])


def test_a_broken_policy_leaves_nobody_waiting(policy_server: Server) -> None:
    answers = burst(policy_server, "broken", 20)
    assert answers == ["[StatusCode.INTERNAL] batch_policy aimd: ValueError: cannot choose"] * 20


def test_a_broken_metric_leaves_nobody_waiting(policy_server: Server) -> None:
    answers = burst(policy_server, "uncounted", 20)
    assert all(re.fullmatch(REFUSED, one) for one in answers), answers[0]
    assert "uncounted_0_0: ValueError: cannot count" in policy_server.log.read_text()


def test_errors_stay_with_their_request(policy_server: Server) -> None:
    sending = Burst(policy_server, "lookup")
    indices = [0, 1, 2, 3, 9, 3, 2, 1]
    for index in indices:
        sending.send(np.full((1, 1), index, dtype=np.float32))
    answers = sending.answers()
    assert "out of" in answers.pop(indices.index(9))
    assert [one.item() for one in answers] == [10 + index for index in indices if index < 9]
    counted(policy_server, "lookup", answered=8)


def test_ragged_batches_are_cut_as_without_a_policy(policy_server: Server) -> None:
    sending = Burst(policy_server, "ragged")
    lengths = [3, 40, 5, 4, 41, 4, 90, 5]
    for length in lengths:
        sending.send(np.full((1, length), 2, dtype=np.float32), name="X")
    sums = [one[0].tolist() for one in sending.answers("Y")]
    assert [summed for summed, _, _ in sums] == [2 * length for length in lengths]
    # No item is padded to one that is 10 elements longer: a run of its own would cost less.
    assert all(longest - length < 10 for (_, longest, _), length in zip(sums, lengths, strict=True))
