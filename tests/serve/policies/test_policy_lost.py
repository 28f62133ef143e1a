"""Under a policy no call is lost: cancelled requests do not run, and an answer that cannot be sent is an error."""

import time
from collections.abc import Iterator

import numpy as np
import pytest
from answers import Answers
from policy_models import counted, rows_of, stand_in

from serve.launcher import Server, Settings, launch

pytestmark = pytest.mark.server
POLICIES = {"aimd": {"slo_ms": "5000"}, "deadline": {"slo_ms": "60000"}}
BATCH_S = 1.5
FAILING = """
import json

import numpy as np
import triton_python_backend_utils as pb_utils
from batch_policy import create
from policy_loop import PolicyLoop
from policy_settings import PolicySettings


class TritonPythonModel:
    def initialize(self, args):
        settings = PolicySettings.of(json.loads(args["model_config"]))
        self.loop = PolicyLoop(settings, create(settings), self.answers, args, pb_utils)

    def execute(self, requests):
        return self.loop.take(requests)

    def answers(self, requests):
        arrays = [request.inputs()[0].as_numpy() for request in requests]
        return [self.answer(array) for array in arrays]

    def answer(self, array):
        if array[0, 0] == 1:
            return "no response"
        if array[0, 0] == 2:
            raise SystemExit("the model ends")
        return pb_utils.InferenceResponse([pb_utils.Tensor("y", array[:, :1])])

    def finalize(self):
        self.loop.end()
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A slow model under each policy, and one whose failure depends on the input."""
    repository = tmp_path_factory.mktemp("lost")
    for policy, settings in POLICIES.items():
        stand_in(repository, policy, fixed_ms=str(1e3 * BATCH_S), row_ms="0", batch_policy=policy, **settings)
    stand_in(repository, "failing", batch_policy="aimd", slo_ms="1000")
    (repository / "failing" / "1" / "model.py").write_text(FAILING)
    with launch(Settings(models=(*POLICIES, "failing"), repository=repository)) as running:
        yield running


@pytest.mark.parametrize("policy", POLICIES)
def test_a_cancelled_request_does_not_run(server: Server, policy: str) -> None:
    """While the first one runs, six more wait, and three of them are cancelled."""
    with Answers(server.grpc_url, policy) as sending:
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
    found = counted(server, policy, answered=4)
    assert found["batch_policy_cancelled_requests_total"] == 3
    # aimd starts with one row and then allows two; deadline runs all that are left together.
    assert found["batch_policy_rows_count"] == {"aimd": 3, "deadline": 2}[policy]


@pytest.mark.parametrize(("number", "message"), [(1, "an answer was not sent"), (2, "SystemExit: the model ends")])
def test_what_cannot_be_sent_is_an_error(server: Server, number: int, message: str) -> None:
    with Answers(server.grpc_url, "failing") as sending:
        sending.send({"x": rows_of(number)})
        (answer,) = sending.all()
    assert isinstance(answer, str)
    assert message in answer
    with Answers(server.grpc_url, "failing") as sending:
        sending.send({"x": rows_of(7)})
        (answer,) = sending.all()
    assert isinstance(answer, dict)
    np.testing.assert_array_equal(answer["y"], [[7]])
