"""A real tritonserver whose batchers run as always shows what rules say about queues, rows of a graph and instances."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from bench import Bench
from doctor_server import HEAD, Examiner, bad, examining, good, python
from padded_models import encoder
from processes import wait_until
from tritonclient.utils import InferenceServerException

from serve.doctor.rule import PYTHON_MODEL, Example
from serve.management.metrics import Metrics

pytestmark = pytest.mark.server
MOST_INSTANCES = 3
# The model waits for a file, so that requests queue behind it as long as the test wants.
WAITING = PYTHON_MODEL.replace(
    "        return [self.answer",
    "        folder = pathlib.Path(__file__).parent\n        (folder / 'started').touch()\n"
    "        while not (folder / 'open').exists():\n            time.sleep(0.01)\n        return [self.answer",
).replace("import json\n", "import json\nimport pathlib\nimport time\n")


def timing_out(timeout_us: int, more: str = "", *, delay_us: int = 5000) -> Example:
    policy = f"default_queue_policy {{ default_timeout_microseconds: {timeout_us} {more} }}"
    return python(Example(f"dynamic_batching {{ max_queue_delay_microseconds: {delay_us} {policy} }}"))


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
    "B218": python(bad("B218"), WAITING),
    "B219_bad": python(bad("B219")),
    "B219_nearly": timing_out(4000),
    "B219_full": timing_out(60_000_000, delay_us=120_000_000),
    "B219_good": timing_out(120_000_000),
    "B219_moved_back": timing_out(1000, "timeout_action: DELAY"),
    "G119_bad": bad("G119"),
    "G119_good": good("G119"),
    "G120_bad": bad("G120"),
    "G120_good": good("G120"),
    "I4_many": Example(f'backend: "python"\ninstance_group [ {{ count: {MOST_INSTANCES} }} ]'),
    "S715": bad("S715"),
    "S716": bad("S716", config=str(bad("S716").config).replace("UINT64", "STRING")),
    "S721": bad("S721", config=str(bad("S721").config).replace(" } ]", f" {ZERO} }} ]"), files={"1/model.py": COUNTS}),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("unheld")


@pytest.fixture(scope="module")
def triton(bench: Bench, folder: Path) -> Iterator[Examiner]:
    with examining(bench, folder, MODELS) as running:
        assert running.messages == dict.fromkeys(MODELS, "")
        yield running


def rows(count: int) -> dict[str, Any]:
    return {"x": np.ones((count, 2), dtype=np.float32)}


def test_a_short_queue_refuses_requests_and_makes_small_batches(triton: Examiner, folder: Path) -> None:
    """One request runs and four wait, until the model may answer."""
    version = folder / "B218" / "1"

    def pending() -> float:
        return Metrics.read(triton.server.metrics_url).pending["B218"]

    with ThreadPoolExecutor(2) as pool:
        try:
            alone = pool.submit(triton.refusals, [rows(1)], "B218")
            assert wait_until((version / "started").exists, seconds=20)
            four = pool.submit(triton.refusals, [rows(1)] * 4, "B218")
            assert wait_until(lambda: pending() == 4, seconds=20)
            refusals = triton.refusals([rows(1)] * 3, "B218")
        finally:
            (version / "open").touch()
        assert alone.result() == four.result() == []
    assert [refusal.partition("] ")[2] for refusal in refusals] == ["Exceeds maximum queue size"] * 3
    assert triton.executions("B218", 2) == 2
    assert triton.counters("B218").batches == {1: 1, 4: 1}


@pytest.mark.parametrize("model", ["B219_bad", "B219_nearly"])
def test_a_timeout_below_the_delay_refuses_a_lone_request(model: str, triton: Examiner) -> None:
    (refusal,) = triton.refusals([rows(1)], model)
    assert "Request timeout expired" in refusal


@pytest.mark.parametrize(("model", "count"), [("B219_full", 8), ("B219_good", 1), ("B219_moved_back", 1)])
def test_a_full_batch_does_not_wait_and_other_timeouts_answer_a_lone_request(
    model: str, count: int, triton: Examiner
) -> None:
    assert triton.refusals([rows(count)], model) == []


@pytest.mark.parametrize(("model", "alone", "together"), [("G119_bad", 1.0, 1 / 8), ("G119_good", 1 / 2, 1 / 2)])
def test_a_softmax_over_the_batch_mixes_rows(model: str, alone: float, together: float, triton: Examiner) -> None:
    assert triton.value(model) == alone
    assert triton.value(model, rows(8)) == together


def test_a_constant_shape_fits_one_batch(triton: Examiner) -> None:
    assert triton.value("G120_bad") == 1
    with pytest.raises(InferenceServerException, match="cannot be reshaped to the requested shape"):
        triton.ask("G120_bad", rows(2))
    assert triton.value("G120_good", rows(2)) == 1


def test_sequences_mix_where_the_model_does_not_know_them(triton: Examiner) -> None:
    """Each sequence sends 1 and 1, so each should answer 1 and 2."""
    steps: list[tuple[int, dict[str, Any]]] = [
        (1, {"sequence_start": True}),
        (2, {"sequence_start": True}),
        (1, {"sequence_end": True}),
        (2, {"sequence_end": True}),
    ]
    assert [triton.value("S715", sequence_id=sequence, **flags) for sequence, flags in steps] == [1, 1, 2, 3]


def test_a_control_for_texts_makes_each_request_fail(triton: Examiner) -> None:
    with pytest.raises(InferenceServerException, match="unexpected number of string elements 2"):
        triton.ask("S716", sequence_id="a", sequence_start=True)


def test_python_never_stores_the_state(triton: Examiner) -> None:
    options: list[dict[str, Any]] = [{"sequence_start": True}, {}, {"sequence_end": True}]
    assert [triton.value("S721", sequence_id=7, **flags) for flags in options] == [0, 0, 0]


def test_every_instance_of_python_is_a_process(triton: Examiner) -> None:
    processes = psutil.Process(triton.server.pid).children(recursive=True)
    assert sum("/I4_many/" in " ".join(process.cmdline()) for process in processes) == MOST_INSTANCES


def test_the_padding_backend_makes_one_instance_without_a_count(bench: Bench, tmp_path: Path) -> None:
    """Its name is not one of those for which Triton assumes two."""
    path = encoder(tmp_path, "padded") / "config.pbtxt"
    path.write_text(path.read_text().replace("count: 1 ", ""))
    with bench.trying(["padded"], tmp_path) as (server, messages):
        assert messages == {"padded": ""}
        groups = Examiner(server=server, messages=messages).config("padded")["instance_group"]
        assert [group["count"] for group in groups] == [1]
