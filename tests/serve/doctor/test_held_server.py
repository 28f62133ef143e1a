"""A real tritonserver shows what the rules say about batches: eight requests reach each batcher together."""

from collections.abc import Iterator, Mapping

import numpy as np
import pytest
from bench import Bench
from doctor_server import HELD, ONE, Examiner, Tensors, bad, examining, good, python, telling

from serve.doctor.rule import Example
from serve.doctor.rules.ensembles import ENSEMBLE, STEP_CONFIG, STEP_FILES, files
from serve.doctor.rules.graph_shapes import FREE
from serve.doctor.rules.ragged import PYTHON, RAGGED, ROW_OUT
from serve.management import loaded

pytestmark = pytest.mark.server

ALIKE: list[Tensors] = [{"x": ONE}] * HELD
# All different: whatever order they arrive in, no two neighbours are alike.
LENGTHS: list[Tensors] = [{"x": np.ones((1, length), np.float32)} for length in range(1, HELD + 1)]
ONE_NEGATIVE: list[Tensors] = [{"x": -ONE}, *ALIKE[1:]]
# The first request has two rows, so that the first batch has seven requests.
ROWS: list[Tensors] = [{"x": np.full((2 if at == 0 else 1, 2), at, np.float32)} for at in range(HELD)]
MASKED: list[Tensors] = [{**inputs, "mask": inputs["x"]} for inputs in LENGTHS]
PLAIN: Tensors = {"x": ONE}
SCALED: Tensors = {"x": ONE, "scale": ONE[:, :1]}
TEXTS = ["x" * length for length in range(1, HELD + 1)]
TOGETHER, APART = {HELD: 1}, {1: HELD}

BATCHED = "\ndynamic_batching { }"
MASK = 'input [ { name: "mask" data_type: TYPE_FP32 dims: [ -1 ] } ]'
PREFERRED = "max_batch_size: 16 dynamic_batching { preferred_batch_size: [ 5, 16 ] }"
DELAYED = str(bad("B216").config).replace("{ }", "{ max_queue_delay_microseconds: 500 }")


def text(data_type: str, size: int) -> Example:
    tensor = f'input [ {{ name: "text" data_type: {data_type} dims: [ {size} ] }} ]'
    return Example(f'backend: "python"\n{tensor}{BATCHED}')


def ragged(rest: str) -> Example:
    return Example(f"{PYTHON}\n{RAGGED}\n{ROW_OUT}\n{rest}")


BATCHES: Mapping[str, tuple[Example, list[Tensors], dict[int, int]]] = {
    "B201_bad": (python(bad("B201")), ALIKE, APART),
    "B201_good": (python(good("B201")), ALIKE, TOGETHER),
    "B202_bad": (python(bad("B202")), ALIKE, APART),
    "B204_bad": (python(bad("B204")), ALIKE, {4: 2}),
    "B204_good": (python(good("B204")), ALIKE, TOGETHER),
    "B204_preferred": (python(Example(PREFERRED)), ALIKE, {5: 1, 3: 1}),
    "B216_bad": (bad("B216"), LENGTHS, APART),
    "B216_good": (good("B216"), LENGTHS, TOGETHER),
    "B216_delayed": (Example(DELAYED), LENGTHS, APART),
    "B216_bytes": (text("TYPE_UINT8", -1), [{"text": np.array([[*x.encode()]], np.uint8)} for x in TEXTS], APART),
    "B216_text": (text("TYPE_STRING", 1), [{"text": np.array([[x.encode()]], object)} for x in TEXTS], TOGETHER),
    "B218_good": (python(good("B218")), ALIKE, TOGETHER),
    "B220_bad": (bad("B220"), [PLAIN, SCALED] * 4, APART),
    "B220_grouped": (bad("B220"), [PLAIN] * 4 + [SCALED] * 4, {4: 2}),
    "ragged_alone": (ragged(""), LENGTHS, APART),
    "ragged": (ragged(BATCHED), LENGTHS, TOGETHER),
    "ragged_mask": (ragged(MASK + BATCHED), MASKED, APART),
    "M811_good": (good("M811"), ALIKE, TOGETHER),
}
"""Each model, the requests that it gets, and the executions by their number of rows."""

NO_MATCH = "InferenceResponse objects do not match"
NEGATIVE = bad("M812").files["1/model.py"].replace("x.size == 0", "x[0, 0] < 0")
M812 = bad("M812", config=f"{bad('M812').config}{BATCHED}", files={"1/model.py": NEGATIVE})
FAILED: Mapping[str, tuple[Example, list[Tensors], int, str]] = {
    "R303": (bad("R303"), LENGTHS[2:3], 1, "unexpected shape for input 'x'"),
    # A request of one element has one row as well: it would pass.
    "R306_bad": (bad("R306"), [*LENGTHS[1:], LENGTHS[1]], HELD, ""),
    "R306_good": (good("R306"), [*LENGTHS[1:], LENGTHS[1]], 0, ""),
    "M803": (bad("M803"), ALIKE[:1], 1, "does not implement `execute` method"),
    "M811_bad": (bad("M811"), ALIKE, HELD, NO_MATCH),
    "M812": (M812, ONE_NEGATIVE, HELD, NO_MATCH),
    "M814": (bad("M814"), ALIKE, HELD, NO_MATCH),
    "M815_bad": (bad("M815"), ONE_NEGATIVE, HELD, "x must not be negative"),
    "M815_good": (good("M815"), ONE_NEGATIVE, 1, "x must not be negative"),
    "M819_bad": (bad("M819"), ROWS, HELD - 1, NO_MATCH),
    "M819_good": (good("M819"), ROWS, 0, ""),
    "M821": (bad("M821"), ALIKE[:1], 1, "Expected a list in the execute return"),
    "M831": (bad("M831"), ALIKE[:1], 1, "'NoneType' object has no attribute 'as_numpy'"),
    "M823": (bad("M823"), ALIKE[:1], 1, "must return None"),
    "M832": (bad("M832"), LENGTHS, HELD, "must match exactly"),
}
"""Each model, the requests that it gets, how many of them fail, and why."""

TENSORS = "sum(len(request.inputs()) for request in requests)"
FREE_INPUT = str(bad("R307").config).replace("dims: [ -1 ] } ]\ndynamic", "dims: [ 2 ] } ]\ndynamic")
NOTED = "self.notes.append(len(requests))"
NO_GROUP = """\
backend: "onnxruntime" max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 2 ] } ]
"""


OTHERS = {
    "B202_one_row": python(Example("max_batch_size: 1 dynamic_batching { max_queue_delay_microseconds: 600000000 }")),
    "B206": python(bad("B206")),
    "B204_most": python(Example("max_batch_size: 8 dynamic_batching { preferred_batch_size: [ 8 ] }")),
    "R307": telling(bad("R307", config=FREE_INPUT), TENSORS),
    "I401_bad": bad("I401"),
    "I401_absent": Example(NO_GROUP, files={"1/model.onnx": FREE}, whole=True),
    "I401_good": Example("instance_group [ { count: 1 } ]"),
    "P501": bad("P501"),
    "W601_bad": telling(bad("W601"), "len(self.notes)", note=NOTED),
    "W601_good": telling(good("W601"), "len(self.notes)", note=NOTED),
    "W605": telling(bad("W605"), "self.notes[0]", note="self.notes.append(len(requests[0].inputs()))"),
    "W613": telling(bad("W613"), "max(self.notes)", note=NOTED),
    "W623": bad("W623"),
    "S711": bad("S711"),
    "S_unbatched": Example(ENSEMBLE, files=files(STEP_CONFIG.replace("dynamic_batching { }\n", ""))),
    "S_batched": Example(ENSEMBLE, files=STEP_FILES),
    "M816_bad": bad("M816"),
    "M816_good": good("M816"),
    "M820": bad("M820"),
    "M828": bad("M828"),
    "M834": bad("M834"),
}
MODELS = OTHERS | {name: case[0] for name, case in BATCHES.items()} | {name: case[0] for name, case in FAILED.items()}


@pytest.fixture(scope="module")
def triton(held_bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Examiner]:
    with examining(held_bench, tmp_path_factory.mktemp("held"), MODELS) as running:
        assert running.messages == dict.fromkeys(MODELS, "")
        yield running


@pytest.mark.parametrize("model", BATCHES)
def test_eight_requests_run_in_these_batches(model: str, triton: Examiner) -> None:
    _, requests, batches = BATCHES[model]
    assert triton.batches(requests, model) == batches


@pytest.mark.parametrize("model", FAILED)
def test_wrong_requests_and_models_fail_these_requests(model: str, triton: Examiner) -> None:
    _, requests, count, words = FAILED[model]
    refusals = triton.refusals(requests, model)
    assert len(refusals) == count
    assert all(words in refusal for refusal in refusals)


def test_too_few_responses_answer_a_lone_request(triton: Examiner) -> None:
    triton.refusals(ALIKE, "M814")
    triton.ask("M814")


def test_a_delay_is_paid_by_an_idle_model(triton: Examiner) -> None:
    triton.batches(ALIKE, "B206")
    before = triton.counters("B206").queue_ns
    triton.ask("B206")
    assert triton.executions("B206", 2) == 2
    assert triton.counters("B206").queue_ns - before >= 0.5e9


def test_a_model_of_one_row_pays_no_delay(triton: Examiner) -> None:
    """The delay is ten minutes."""
    triton.batches(ALIKE, "B202_one_row")
    triton.ask("B202_one_row")


def test_the_maximum_is_preferred_anyway(triton: Examiner) -> None:
    assert triton.config("B204_most")["dynamic_batching"] == triton.config("B204_good")["dynamic_batching"]


def test_python_models_get_no_batch_inputs(triton: Examiner) -> None:
    assert triton.batches(LENGTHS, "R307") == TOGETHER
    assert triton.value("R307") == 1, "the request has only its own tensor"


@pytest.mark.parametrize(("model", "count"), [("I401_bad", 2), ("I401_absent", 2), ("I401_good", 1)])
def test_the_server_counts_instances_as_the_rules_say(model: str, count: int, triton: Examiner) -> None:
    assert [group["count"] for group in triton.config(model)["instance_group"]] == [count]


@pytest.mark.parametrize("model", ["P501", "S711"])
def test_a_configuration_of_these_rules_loads_without_a_warning(model: str, triton: Examiner) -> None:
    lines = [line for line in triton.server.log.read_text().splitlines() if f"'{model}'" in line]
    assert lines, "the log names the model"
    assert not [line for line in lines if line.startswith(("W", "E"))]


@pytest.mark.parametrize(
    ("model", "answer"),
    [
        ("W601_bad", 1),  # the sample is skipped: the first execution is this one
        ("W601_good", 2),
        ("W605", 2),  # a sample may have inputs that no request has
        ("W613", 4),  # a sample is several requests
    ],
)
def test_what_a_warm_up_has_run(model: str, answer: int, triton: Examiner) -> None:
    assert triton.value(model) == answer


def test_nothing_is_cached_without_a_cache(triton: Examiner) -> None:
    for _ in range(2):
        triton.ask("W623")
    assert triton.executions("W623", 2) == 2


@pytest.mark.parametrize(("model", "expected"), [("S_unbatched", HELD), ("S_batched", 1)])
def test_steps_batch_by_their_own_configuration(model: str, expected: int, triton: Examiner) -> None:
    assert triton.refusals(ALIKE, model) == []
    assert triton.executions(f"part_{model}", expected) == expected


def test_rows_by_request_go_to_other_requests(triton: Examiner) -> None:
    """Each answer is twice its input: the third request gets 2, the answer to the second one."""
    assert triton.answers(ROWS, "M816_good") == [[0, 0], [2], [4], [6], [8], [10], [12], [14]]
    assert triton.answers(ROWS, "M816_bad") == [[0], [0], [2], [4], [6], [8], [10], [14]]


def test_answers_have_other_rows_than_their_requests(triton: Examiner) -> None:
    """The first request has two rows, and the last one is in a batch of its own."""
    assert triton.answers(ROWS, "M820") == [[0, 0, 2, 4, 6, 8, 10, 12]] * 7 + [[14]]
    assert triton.answers(ROWS, "M828") == [[number] for number in range(HELD)]


def test_undeclared_outputs_are_left_out(triton: Examiner) -> None:
    assert triton.ask("M834") == {}


def test_every_folder_is_a_model(triton: Examiner) -> None:
    stray = triton.server.settings.repository / "__pycache__"
    stray.mkdir()
    try:
        assert "__pycache__" in [entry["name"] for entry in loaded.index(triton.server.http_url)]
    finally:
        stray.rmdir()
