"""A real tritonserver shows what the rules say about ragged batches, instances, parameters, warm-ups and model.py."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import tritonclient.grpc as grpc
from doctor_server import (
    AS_WRITTEN,
    HELD,
    ONE,
    Examiner,
    Tensors,
    ask,
    bad,
    good,
    serving,
    settled,
    telling,
    value,
)
from processes import wait_until
from tritonclient.utils import InferenceServerException

from serve.doctor.rule import Example
from serve.doctor.rules import all_rules
from serve.doctor.rules.ensembles import ENSEMBLE, STEP_CONFIG, STEP_FILES, files
from serve.doctor.rules.graph_shapes import FREE
from serve.doctor.rules.ragged import PYTHON, RAGGED, ROW_OUT

pytestmark = pytest.mark.server
assert all_rules()

LENGTHS = [{"x": np.ones((1, length), dtype=np.float32)} for length in range(1, HELD + 1)]
ALIKE = [{"x": ONE}] * HELD


def batching(example: Example) -> Example:
    return replace(example, config=f"{example.config}\ndynamic_batching {{ }}")


MASK = 'input [ { name: "mask" data_type: TYPE_FP32 dims: [ -1 ] } ]'
RAGGED_MASK = MASK.replace("dims: [ -1 ]", "dims: [ -1 ] allow_ragged_batch: true")
NO_GROUP = """\
backend: "onnxruntime"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 2 ] } ]
"""
TENSORS = "sum(len(request.inputs()) for request in requests)"
MODELS = {
    "ragged_alone": Example(f"{PYTHON}\n{RAGGED}\n{ROW_OUT}"),
    "ragged": Example(f"{PYTHON}\n{RAGGED}\n{ROW_OUT}\ndynamic_batching {{ }}"),
    "ragged_unbatched": Example(f"{PYTHON}\nmax_batch_size: 0\n{RAGGED}\n{ROW_OUT}\ndynamic_batching {{ }}"),
    "R303": bad("R303"),
    "mask": Example(f"{PYTHON}\n{RAGGED}\n{MASK}\n{ROW_OUT}\ndynamic_batching {{ }}"),
    "ragged_mask": Example(f"{PYTHON}\n{RAGGED}\n{RAGGED_MASK}\n{ROW_OUT}\ndynamic_batching {{ }}"),
    "R306": bad("R306"),
    "R306_good": good("R306"),
    "R307": telling(
        bad("R307", config=str(bad("R307").config).replace("dims: [ -1 ] } ]\ndynamic", "dims: [ 2 ] } ]\ndynamic")),
        TENSORS,
    ),
    "I401": bad("I401"),
    "no_group": Example(NO_GROUP, files={"1/model.onnx": FREE}, whole=True),
    "one_instance": Example("instance_group [ { count: 1 } ]"),
    "P501": bad("P501"),
    "W601": telling(bad("W601"), "len(self.notes)", note="self.notes.append(len(requests))"),
    "W601_good": telling(good("W601"), "len(self.notes)", note="self.notes.append(len(requests))"),
    "W605": telling(bad("W605"), "self.notes[0]", note="self.notes.append(len(requests[0].inputs()))"),
    "W613": telling(bad("W613"), "max(self.notes)", note="self.notes.append(len(requests))"),
    "W623": bad("W623"),
    "S711": bad("S711"),
    "unbatched_step": Example(ENSEMBLE, files=files(STEP_CONFIG.replace("dynamic_batching { }\n", ""))),
    "batched_step": Example(ENSEMBLE, files=STEP_FILES),
    "M803": bad("M803"),
    "M811": bad("M811"),
    "M811_good": good("M811"),
    "M812": batching(
        bad("M812", files={"1/model.py": bad("M812").files["1/model.py"].replace("x.size == 0", "x[0, 0] < 0")})
    ),
    "M821": bad("M821"),
    "M823": bad("M823"),
    "M831": bad("M831"),
    "M832": bad("M832"),
    "M834": bad("M834"),
}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Examiner]:
    """A server with all models of this file."""
    with serving(tmp_path_factory.mktemp, MODELS, AS_WRITTEN) as (triton, messages):
        assert {name: message for name, message in messages.items() if message} == {}
        yield triton


def executions(triton: Examiner, model: str, requests: list[Tensors]) -> int:
    """How many executions a burst of requests became."""
    before = triton.counters(model)
    assert triton.refusals(requests, model=model) == []
    # The server answers first and counts then.
    wait_until(lambda: triton.counters(model).rows >= before.rows + len(requests), seconds=5)
    return triton.counters(model).executions - before.executions


@pytest.mark.parametrize(
    ("model", "expected"),
    [("ragged_alone", HELD), ("ragged", 1), ("mask", HELD), ("ragged_mask", 1), ("M811_good", 1)],
)
def test_ragged_requests_share_an_execution(loaded: Examiner, model: str, expected: int) -> None:
    requests: list[Tensors] = [*ALIKE] if model == "M811_good" else [*LENGTHS]
    if model.endswith("mask"):
        requests = [{**inputs, "mask": inputs["x"]} for inputs in requests]
    assert executions(loaded, model, requests) == expected


def test_ragged_requests_without_batches_run_alone(loaded: Examiner) -> None:
    assert executions(loaded, "ragged_unbatched", [{"x": inputs["x"][0]} for inputs in LENGTHS]) == HELD


def test_ragged_with_fixed_dims_takes_one_shape(loaded: Examiner) -> None:
    (refusal,) = loaded.refusals(LENGTHS[2:3], model="R303")
    assert "unexpected shape for input 'x'" in refusal


def test_flat_outputs_need_a_batch_output(loaded: Examiner) -> None:
    # A request of one element has one row as well: it would pass.
    requests = [*LENGTHS[1:], LENGTHS[1]]
    assert len(loaded.refusals(requests, model="R306")) == HELD
    assert loaded.refusals(requests, model="R306_good") == []


def test_python_models_get_no_batch_inputs(loaded: Examiner) -> None:
    assert executions(loaded, "R307", [*LENGTHS]) == 1
    assert value(loaded, "R307") == 1, "the request has only its own tensor"


@pytest.mark.parametrize(("model", "count"), [("I401", 2), ("no_group", 2), ("one_instance", 1)])
def test_the_server_counts_instances_as_the_rules_say(loaded: Examiner, model: str, count: int) -> None:
    with grpc.InferenceServerClient(loaded.server.grpc_url) as client:
        groups = client.get_model_config(model).config.instance_group
    assert [group.count for group in groups] == [count]


@pytest.mark.parametrize("model", ["P501", "S711"])
def test_a_configuration_of_these_rules_loads_without_a_warning(loaded: Examiner, model: str) -> None:
    lines = [line for line in loaded.server.log.read_text().splitlines() if f"'{model}'" in line]
    assert lines, "the log names the model"
    assert not [line for line in lines if line.startswith(("W", "E"))]


def test_samples_without_a_batch_size_are_skipped(loaded: Examiner) -> None:
    assert value(loaded, "W601") == 1, "the first execution is this one"
    assert value(loaded, "W601_good") == 2


def test_a_sample_is_several_requests(loaded: Examiner) -> None:
    assert value(loaded, "W613") == 4


def test_a_sample_can_have_inputs_that_no_request_has(loaded: Examiner) -> None:
    assert value(loaded, "W605") == 2


def test_nothing_is_cached_without_a_cache(loaded: Examiner) -> None:
    for _ in range(2):
        ask(loaded, "W623", {"x": ONE})
    assert settled(loaded, "W623", 2) == 2


@pytest.mark.parametrize(("model", "expected"), [("unbatched_step", HELD), ("batched_step", 1)])
def test_steps_batch_by_their_own_configuration(loaded: Examiner, model: str, expected: int) -> None:
    assert loaded.refusals(ALIKE, model=model) == []
    assert settled(loaded, f"part_{model}", expected) == expected


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("M803", "does not implement `execute` method"),
        ("M821", "Expected a list in the execute return"),
        ("M831", "'NoneType' object has no attribute 'as_numpy'"),
    ],
)
def test_every_request_to_a_wrong_model_fails(loaded: Examiner, model: str, message: str) -> None:
    with pytest.raises(InferenceServerException, match=message):
        ask(loaded, model, {"x": ONE})


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("M811", "InferenceResponse objects do not match"),
        ("M812", "InferenceResponse objects do not match"),
        ("M832", "must match exactly"),
    ],
)
def test_one_wrong_answer_fails_the_whole_batch(loaded: Examiner, model: str, message: str) -> None:
    requests: list[Tensors] = [*LENGTHS] if model == "M832" else [{"x": -ONE}, *ALIKE[1:]]
    refusals = loaded.refusals(requests, model=model)
    assert len(refusals) == HELD
    assert all(message in refusal for refusal in refusals)


def test_a_decoupled_model_must_return_none(loaded: Examiner) -> None:
    answers: list[tuple[object, object]] = []
    with grpc.InferenceServerClient(loaded.server.grpc_url) as client:
        client.start_stream(lambda result, error: answers.append((result, error)))
        tensor = grpc.InferInput("x", [1, 2], "FP32")
        tensor.set_data_from_numpy(ONE)
        client.async_stream_infer("M823", [tensor])
        client.stop_stream()
    assert "must return None" in str(answers[0][1])


def test_undeclared_outputs_are_left_out(loaded: Examiner) -> None:
    assert ask(loaded, "M834", {"x": ONE}) == {}
