"""A real tritonserver whose batchers run as always shows what rules say about queues, rows of a graph and instances."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from doctor_server import AS_WRITTEN, HEAD, Examiner, ask, bad, examiner, good, serving, value
from padded_models import encoder
from tritonclient.utils import InferenceServerException

from serve.doctor.rule import Example
from serve.doctor.rules import all_rules
from tests.serve.doctor.test_batching_server import python, slow

pytestmark = pytest.mark.server
assert all_rules()
SLOW = slow(0.03)
DELAY = "max_queue_delay_microseconds: 5000"
BURST = 40
MOST_INSTANCES = 12


def timing_out(timeout_us: int, more: str = "") -> Example:
    policy = f"default_queue_policy {{ default_timeout_microseconds: {timeout_us} {more} }}"
    return python(Example(f"dynamic_batching {{ {DELAY} {policy} }}"))


# Without an initial state the tensor has undefined values.
ZERO = 'initial_state { name: "zero" data_type: TYPE_FP32 dims: [ 1 ] zero_data: true }'
COUNTS = f"""{HEAD}    def execute(self, requests):
        states = [pb_utils.get_input_tensor_by_name(request, "STATE").as_numpy() for request in requests]
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("y", state), pb_utils.Tensor("NEXT", state + np.float32(1))])
            for state in states
        ]
"""
MODELS = {
    "B218_bad": python(bad("B218"), SLOW),
    "B218_good": python(good("B218"), SLOW),
    "B219_bad": python(bad("B219")),
    "B219_good": python(good("B219")),
    "nearly": timing_out(4000),
    "moved_back": timing_out(1000, "timeout_action: DELAY"),
    "G119_bad": bad("G119"),
    "G119_good": good("G119"),
    "G120_bad": bad("G120"),
    "G120_good": good("G120"),
    "S715_bad": bad("S715"),
    "S721_bad": bad(
        "S721", config=str(bad("S721").config).replace(" } ]", f" {ZERO} }} ]"), files={"1/model.py": COUNTS}
    ),
}


@pytest.fixture(scope="module")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Examiner]:
    with serving(tmp_path_factory.mktemp, MODELS, AS_WRITTEN, held=None) as (running, messages):
        assert {name: message for name, message in messages.items() if message} == {}
        yield running


def rows(count: int) -> dict[str, Any]:
    return {"x": np.ones((count, 2), dtype=np.float32)}


def test_a_short_queue_makes_small_batches(triton: Examiner) -> None:
    refusals = triton.refusals([rows(1)] * BURST, model="B218_bad", gap_s=0.0)
    assert refusals
    assert max(triton.counters("B218_bad").batches) <= 4
    assert triton.refusals([rows(1)] * BURST, model="B218_good", gap_s=0.0) == []
    assert max(triton.counters("B218_good").batches) == 8


@pytest.mark.parametrize("model", ["B219_bad", "nearly"])
def test_a_timeout_below_the_delay_refuses_a_lone_request(model: str, triton: Examiner) -> None:
    (refusal,) = triton.refusals([rows(1)], model=model)
    assert "Request timeout expired" in refusal
    assert triton.refusals([rows(8)], model=model) == [], "a full batch does not wait"


@pytest.mark.parametrize("model", ["B219_good", "moved_back"])
def test_other_timeouts_answer_a_lone_request(model: str, triton: Examiner) -> None:
    assert triton.refusals([rows(1)], model=model) == []


@pytest.mark.parametrize(("model", "alone", "together"), [("G119_bad", 1.0, 1 / 8), ("G119_good", 1 / 2, 1 / 2)])
def test_a_softmax_over_the_batch_mixes_rows(model: str, alone: float, together: float, triton: Examiner) -> None:
    assert value(triton, model) == alone
    assert value(triton, model, rows(8)) == together


def test_a_constant_shape_fits_one_batch(triton: Examiner) -> None:
    assert value(triton, "G120_bad") == 1
    with pytest.raises(InferenceServerException, match="cannot be reshaped to the requested shape"):
        ask(triton, "G120_bad", rows(2))
    assert value(triton, "G120_good", rows(2)) == 1


def test_sequences_mix_where_the_model_does_not_know_them(triton: Examiner) -> None:
    """Each sequence sends 1 and 1, so each should answer 1 and 2."""
    steps: list[tuple[int, dict[str, Any]]] = [
        (1, {"sequence_start": True}),
        (2, {"sequence_start": True}),
        (1, {"sequence_end": True}),
        (2, {"sequence_end": True}),
    ]
    assert [value(triton, "S715_bad", sequence_id=sequence, **flags) for sequence, flags in steps] == [1, 1, 2, 3]


def test_python_never_stores_the_state(triton: Examiner) -> None:
    options: list[dict[str, Any]] = [{"sequence_start": True}, {}, {"sequence_end": True}]
    assert [value(triton, "S721_bad", sequence_id=7, **flags) for flags in options] == [0, 0, 0]


def stubs(triton: Examiner) -> int:
    processes = psutil.Process(triton.server.pid).children(recursive=True)
    return sum("triton_python_backend_stub" in process.name() or "stub" in process.name() for process in processes)


def test_every_instance_of_python_is_a_process(tmp_path: Path) -> None:
    with examiner(tmp_path, AS_WRITTEN, held=None) as triton:
        assert triton.load(Example(f'backend: "python"\ninstance_group [ {{ count: {MOST_INSTANCES} }} ]')) == ""
        assert stubs(triton) == MOST_INSTANCES
        # The other name of the drop-in backend is not one of those for which Triton assumes two instances.
        path = encoder(triton.repository) / "config.pbtxt"
        path.write_text(path.read_text().replace("count: 1 ", ""))
        assert triton.load_beside("encoder") == ""
        assert [group["count"] for group in triton.config("encoder")["instance_group"]] == [1]
