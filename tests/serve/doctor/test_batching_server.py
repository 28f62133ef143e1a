"""A real tritonserver shows what the rules say about loading and batching."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from doctor_server import AS_WRITTEN, HELD, ONE, Examiner, bad, good, serving
from numpy.typing import NDArray

from serve.doctor.rule import PYTHON_MODEL, Example
from serve.doctor.rules import all_rules

pytestmark = pytest.mark.server
assert all_rules()
# The service time is long enough that requests queue behind it.
SLOW_S = 0.1
Request = Mapping[str, NDArray[Any]]


def slow(seconds: float) -> str:
    """A model.py with this service time."""
    return PYTHON_MODEL.replace(
        "        return [self.answer", f"        __import__('time').sleep({seconds})\n        return [self.answer"
    )


SLOW_MODEL = slow(SLOW_S)


def python(example: Example, model: str = PYTHON_MODEL, extra: str = "") -> Example:
    """The example with the Python backend, which starts faster and can be slow on purpose."""
    return replace(example, config=f'backend: "python"\n{extra}\n{example.config}', files={"1/model.py": model})


PYTHON = 'backend: "python"\n'


def text_model(data_type: str, size: int) -> Example:
    tensor = f'input [ {{ name: "text" data_type: {data_type} dims: [ {size} ] }} ]'
    return Example(f"{PYTHON}{tensor}\ndynamic_batching {{ }}")


ONE_ROW = "max_batch_size: 1"
MODELS = {
    **{f"{code}_bad": python(bad(code)) for code in ("B201", "B202", "B204", "B206")},
    **{f"{code}_good": python(good(code)) for code in ("B201", "B202", "B204")},
    "B216_bad": bad("B216"),
    "B216_good": good("B216"),
    "bytes": text_model("TYPE_UINT8", -1),
    "text": text_model("TYPE_STRING", 1),
    **{name: bad("B220") for name in ("B220_bad", "B220_grouped")},
    "one_row": python(bad("B206"), extra=ONE_ROW),
    "most": Example('backend: "python"\nmax_batch_size: 8\ndynamic_batching { preferred_batch_size: [ 8 ] }'),
    "delayed": Example(str(bad("B216").config).replace("{ }", "{ max_queue_delay_microseconds: 500 }")),
    "preferred": Example('backend: "python"\nmax_batch_size: 16\ndynamic_batching { preferred_batch_size: [ 5, 16 ] }'),
    "timeout": python(
        Example("dynamic_batching { default_queue_policy { default_timeout_microseconds: 100000 } }"),
        slow(0.8),
        ONE_ROW,
    ),
    "B208_bad": python(bad("B208"), slow(0.03)),
    "B208_none": python(Example("dynamic_batching { }"), slow(0.03)),
    "B215_good": python(
        Example("dynamic_batching { default_queue_policy { max_queue_size: 9 } }"), SLOW_MODEL, ONE_ROW
    ),
}


@pytest.fixture(scope="module")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Examiner]:
    with serving(tmp_path_factory.mktemp, MODELS, AS_WRITTEN) as (running, messages):
        assert messages == dict.fromkeys(MODELS, "")
        yield running


def rows(lengths: list[int] | None = None, *, name: str = "x") -> list[Request]:
    """As many requests of one row as the batcher holds back."""
    return [{name: np.zeros((1, length), np.float32)} for length in lengths or [2] * HELD]


# All different: whatever order they arrive in, no two neighbours are alike.
LENGTHS = [*range(1, HELD + 1)]


@pytest.mark.parametrize(
    ("model", "lengths", "batches"),
    [
        ("B201_bad", None, {1: 8}),
        ("B201_good", None, {8: 1}),
        ("B202_bad", None, {1: 8}),
        ("B202_good", None, {8: 1}),
        ("B204_bad", None, {4: 2}),
        ("B204_good", None, {8: 1}),
        ("preferred", None, {5: 1, 3: 1}),
        ("delayed", LENGTHS, {1: 8}),
        ("B216_bad", LENGTHS, {1: 8}),
        ("B216_good", LENGTHS, {8: 1}),
    ],
)
def test_eight_requests_together_run_as(
    model: str, lengths: list[int] | None, batches: dict[int, int], triton: Examiner
) -> None:
    assert triton.batches(rows(lengths), model=model) == batches


def test_text_as_bytes_keeps_requests_apart(triton: Examiner) -> None:
    texts = ["x" * length for length in range(1, HELD + 1)]
    assert HELD == 8
    as_bytes = [{"text": np.frombuffer(text.encode(), np.uint8)[None]} for text in texts]
    as_string = [{"text": np.array([[text.encode()]], dtype=np.object_)} for text in texts]
    assert triton.batches(as_bytes, model="bytes") == {1: 8}
    assert triton.batches(as_string, model="text") == {8: 1}


def test_a_delay_is_paid_by_an_idle_model(triton: Examiner) -> None:
    triton.batches(rows(), model="B206_bad")
    before = triton.counters("B206_bad").queue_ns
    triton.batches(rows([2]), model="B206_bad")
    assert triton.counters("B206_bad").queue_ns - before >= 0.5e9


def test_a_model_of_one_row_pays_no_delay(triton: Examiner) -> None:
    triton.batches(rows(), model="one_row")
    before = triton.counters("one_row").queue_ns
    triton.batches(rows([2]), model="one_row")
    assert triton.counters("one_row").queue_ns - before < 0.3e9


def test_the_maximum_is_preferred_anyway(triton: Examiner) -> None:
    assert triton.config("most")["dynamic_batching"] == triton.config("B204_good")["dynamic_batching"]


@pytest.mark.parametrize(("model", "kinds", "batches"), [("B220_bad", 2, {1: 8}), ("B220_grouped", 1, {4: 2})])
def test_an_optional_input_splits_batches(model: str, kinds: int, batches: dict[int, int], triton: Examiner) -> None:
    plain, scaled = {"x": ONE}, {"x": ONE, "scale": ONE[:, :1]}
    requests = [plain, scaled] * 4 if kinds == 2 else [plain] * 4 + [scaled] * 4
    assert triton.batches(requests, model=model, gap_s=0.05) == batches


def test_a_queue_policy_makes_a_burst_stand_still(triton: Examiner) -> None:
    """100 requests at once run in 13 executions of 30 ms, unless the batcher pauses for one of its ticks of 500 ms."""

    def seconds(model: str) -> float:
        started = time.monotonic()
        triton.batches(rows([2] * 100), model=model, gap_s=0.0)
        return time.monotonic() - started

    # A burst sometimes passes without a pause, several in a row rarely.
    assert any(seconds("B208_bad") - seconds("B208_none") > 0.4 for _ in range(4))


def test_a_late_request_is_refused_later(triton: Examiner) -> None:
    """A timeout of 100 ms behind an execution of 800 ms is noticed at the batcher's tick."""
    assert triton.refusals(rows(), model="timeout")
    failed = triton.statistics("timeout")["inference_stats"]["fail"]
    assert int(failed["ns"]) / int(failed["count"]) > 0.3e9


def test_a_limited_queue_refuses_the_excess(triton: Examiner) -> None:
    refusals = triton.refusals(rows([2] * 20), model="B215_good", gap_s=0.001)
    assert refusals
    assert all("Exceeds maximum queue size" in refusal for refusal in refusals)


def test_every_folder_is_a_model(triton: Examiner) -> None:
    (triton.repository / "__pycache__").mkdir()
    assert "__pycache__" in [entry["name"] for entry in triton.index()]
