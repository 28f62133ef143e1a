"""A real tritonserver shows which models hang or crash the server."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import tritonclient.grpc as grpc
from doctor_server import AS_WRITTEN, ONE, Examiner, Tensors, ask, bad, examiner, serving
from processes import wait_until
from tritonclient.utils import InferenceServerException

from serve.doctor.rules import all_rules

pytestmark = pytest.mark.server
assert all_rules()
# Ten times as long as a request to these models would take.
HANGS_S = 1.5


def hangs(triton: Examiner, model: str, inputs: Tensors | None = None) -> bool:
    try:
        ask(triton, model, inputs or {"x": ONE}, timeout_s=HANGS_S)
    except InferenceServerException as error:
        return "Deadline Exceeded" in str(error)
    return False


@pytest.mark.parametrize("code", ["M822", "M833", "S744", "M824"])
def test_requests_to_these_models_hang(hanging: Examiner, code: str) -> None:
    if code == "M824":
        assert never_ends(hanging, code)
    else:
        assert hangs(hanging, code)


HANGING = ("M822", "M833", "S744", "M824")


@pytest.fixture(scope="module")
def hanging(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Examiner]:
    """A server for models that do not answer; the last test crashes it, so that stopping it does not wait for them."""
    models = {code: bad(code) for code in HANGING} | {"I405": bad("I405")}
    with serving(tmp_path_factory.mktemp, models, AS_WRITTEN) as (triton, messages):
        assert set(messages.values()) == {""}
        yield triton


def never_ends(triton: Examiner, model: str) -> bool:
    """Whether a stream gets its answer and the server then keeps it open."""
    answers: list[tuple[object, object]] = []
    client = grpc.InferenceServerClient(triton.server.grpc_url)
    client.start_stream(lambda result, error: answers.append((result, error)))
    tensor = grpc.InferInput("x", [1, 2], "FP32")
    tensor.set_data_from_numpy(ONE)
    client.async_stream_infer(model, [tensor], enable_empty_final_response=True)
    time.sleep(HANGS_S)
    seen = [*answers]
    client.stop_stream(cancel_requests=True)
    return len(seen) == 1 and seen[0][1] is None


def test_a_passive_model_ends_the_server(hanging: Examiner) -> None:
    with pytest.raises(InferenceServerException):
        ask(hanging, "I405", {"x": ONE})
    assert ended(hanging)


def ended(triton: Examiner) -> bool:
    return wait_until(lambda: not triton.server.running(), seconds=10)


def test_loading_a_wrong_batch_output_ends_the_server(tmp_path: Path) -> None:
    with examiner(tmp_path) as triton:
        with pytest.raises(OSError, match=r"closed|reset|refused"):
            triton.load(bad("R332"))
        assert ended(triton)


def test_warm_ups_that_fail_are_refused_or_end_the_server(tmp_path: Path) -> None:
    codes = ["W605", "W608", "W609"]
    while codes:
        folder = tmp_path / codes[0]
        folder.mkdir()
        with examiner(folder) as triton:
            while codes and triton.server.running():
                try:
                    assert "failed to run warmup sample" in triton.load(bad(codes.pop(0)))
                except OSError:
                    assert ended(triton)
