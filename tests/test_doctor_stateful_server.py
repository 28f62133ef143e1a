"""What the doctor's rules say of ragged batches, instances, sequences and model.py, shown by a real tritonserver."""

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc
from doctor_server import HELD, Examiner, bad, examiner, good
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from clients.counters import Counters
from serve.doctor.example import write
from serve.doctor.rule import Example
from serve.doctor.rules import all_rules
from serve.installation import find
from serve.launcher import Settings, launch

pytestmark = pytest.mark.server
assert all_rules()
Tensors = Mapping[str, NDArray[Any]]
ANSWER_S = 30.0
# No request of the models that hang would take a tenth of it.
HANGS_S = 1.5

ONE = np.ones((1, 2), dtype=np.float32)
LENGTHS = [{"x": np.ones((1, length), dtype=np.float32)} for length in range(1, HELD + 1)]
ALIKE = [{"x": ONE}] * HELD
HEAD = "import numpy as np\nimport triton_python_backend_utils as pb_utils\n\n\nclass TritonPythonModel:\n"


def batching(example: Example) -> Example:
    return replace(example, config=f"{example.config}\ndynamic_batching {{ }}")


def telling(example: Example, value: str, *, prepare: str = "pass", note: str = "pass") -> Example:
    """The example with a model.py whose every answer holds one value, of `request` and `requests`."""
    body = (
        f"{HEAD}    def initialize(self, args):\n        self.notes = []\n        {prepare}\n\n"
        f"    def execute(self, requests):\n        {note}\n"
        f"        values = [{value} for request in requests]\n"
        "        arrays = [np.full((1, 2), value, dtype=np.float32) for value in values]\n"
        '        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", array)]) for array in arrays]\n'
    )
    config = str(example.config)
    backend = "" if "backend:" in config else 'backend: "python"\n'
    return replace(example, config=backend + config, files={**example.files, "1/model.py": body})


FIRST_INPUT = "request.inputs()[0].as_numpy()[0, 0]"
TENSORS = "sum(len(request.inputs()) for request in requests)"
COUNTS = f"""{HEAD}    def execute(self, requests):
        states = [pb_utils.get_input_tensor_by_name(request, "STATE").as_numpy() for request in requests]
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("y", state), pb_utils.Tensor("NEXT", state + np.float32(1))])
            for state in states
        ]
"""
IMPORTED = 'with open(__file__ + ".log", "a") as log:\n    log.write("x")\n'
OVERLAP = f"""{HEAD}    def initialize(self, args):
        self.running = 0

    async def execute(self, requests):
        import asyncio

        self.running += len(requests)
        await asyncio.sleep(0.3)
        most = self.running
        await asyncio.sleep(0.1)
        self.running -= len(requests)
        arrays = [np.full((1, 2), most, dtype=np.float32) for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", array)]) for array in arrays]
"""
SLOTS = "max_queue_delay_microseconds: 5000000 minimum_slot_utilization: 1"
RAGGED = 'input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true } ]'
KEPT_TOO = "self.notes += [(array, array.copy()) for array in [request.inputs()[0].as_numpy() for request in requests]]"
MODELS = {
    "kept": telling(Example(), "sum((a != b).any() for a, b in self.notes)", note=KEPT_TOO),
    "R301": bad("R301"),
    "R301_good": good("R301"),
    "R302": bad("R302"),
    "R303": bad("R303"),
    "R304": bad("R304"),
    "R304_good": good("R304"),
    "R306": bad("R306"),
    "R306_good": good("R306"),
    "R307": telling(
        bad("R307", config=str(bad("R307").config).replace("dims: [ -1 ] } ]\ndynamic", "dims: [ 2 ] } ]\ndynamic")),
        TENSORS,
    ),
    "I401": bad("I401"),
    "I402": bad("I402"),
    "I402_good": good("I402"),
    "I406": bad("I406"),
    "I414": bad("I414"),
    "P501": bad("P501"),
    "P503": bad("P503"),
    "P521": bad("P521"),
    "P525": bad("P525"),
    "W601": telling(bad("W601"), "len(self.notes)", note="self.notes.append(len(requests))"),
    "W601_good": telling(good("W601"), "len(self.notes)", note="self.notes.append(len(requests))"),
    "W605": telling(bad("W605"), "self.notes[0]", note="self.notes.append(len(requests[0].inputs()))"),
    "W613": telling(bad("W613"), "max(self.notes)", note="self.notes.append(len(requests))"),
    "W623": bad("W623"),
    "W625": bad("W625"),
    "S709": bad("S709"),
    "S711": bad("S711"),
    "S712": bad("S712"),
    "S727": bad("S727"),
    "S761": bad("S761"),
    "S761_good": good("S761"),
    "M803": bad("M803"),
    "M805": replace(good("M825"), files={"1/model.py": IMPORTED + good("M825").files["1/model.py"]}),
    "M806": bad("M806"),
    "M811": bad("M811"),
    "M811_good": good("M811"),
    "M812": batching(
        bad("M812", files={"1/model.py": bad("M812").files["1/model.py"].replace("x.size == 0", "x[0, 0] < 0")})
    ),
    "M821": bad("M821"),
    "M823": bad("M823"),
    "M825": replace(bad("M825"), files={"1/model.py": OVERLAP}),
    "M831": bad("M831"),
    "M832": bad("M832"),
    "M834": bad("M834"),
}


SEQUENCES = {
    "direct": telling(
        Example(f"max_batch_size: 4\n{RAGGED}\nsequence_batching {{ direct {{ {SLOTS} }} }}"), "len(requests)"
    ),
    # With an initial state: without one the tensor holds whatever was in memory.
    "S721": good("S722", files={"1/model.py": COUNTS}),
}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Examiner]:
    """A server with all models of this file."""
    with examiner(tmp_path_factory.mktemp("behaviour")) as triton:
        refused = triton.load_together(MODELS)
        assert {name: said for name, said in refused.items() if said} == {}
        yield triton


def ask(
    triton: Examiner, model: str, inputs: Tensors, *, timeout_s: float = ANSWER_S, **options: Any
) -> dict[str, NDArray[Any]]:
    """The answer to one request by itself; its inputs are sent in the order in which they are given."""
    tensors = []
    for name, array in inputs.items():
        tensors.append(grpc.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype)))
        tensors[-1].set_data_from_numpy(array)
    with grpc.InferenceServerClient(triton.server.grpc_url) as client:
        result = client.infer(model, tensors, client_timeout=timeout_s, **options)
    return {output.name: result.as_numpy(output.name) for output in result.get_response().outputs}


def value(triton: Examiner, model: str, inputs: Tensors | None = None, **options: Any) -> float:
    return float(ask(triton, model, inputs or {"x": ONE}, **options)["y"].flat[0])


def executions(triton: Examiner, model: str, requests: list[Tensors]) -> int:
    """How many executions a burst of requests became."""
    before = triton.counters(model)
    assert triton.refusals(requests, model=model) == []
    end = time.monotonic() + 5
    # The server answers first and counts then.
    while triton.counters(model).rows < before.rows + len(requests) and time.monotonic() < end:
        time.sleep(0.02)
    return triton.counters(model).executions - before.executions


def hangs(triton: Examiner, model: str, inputs: Tensors | None = None) -> bool:
    try:
        ask(triton, model, inputs or {"x": ONE}, timeout_s=HANGS_S)
    except InferenceServerException as error:
        return "Deadline Exceeded" in str(error)
    return False


@pytest.mark.parametrize(
    ("model", "expected"),
    [("R301", HELD), ("R301_good", 1), ("R304", HELD), ("R304_good", 1), ("M811_good", 1)],
)
def test_executions_of_a_burst(loaded: Examiner, model: str, expected: int) -> None:
    requests: list[Tensors] = [*LENGTHS] if model.startswith("R") else [*ALIKE]
    if model.startswith("R304"):
        requests = [{**one, "mask": one["x"]} for one in requests]
    assert executions(loaded, model, requests) == expected


def test_ragged_without_batches(loaded: Examiner) -> None:
    assert executions(loaded, "R302", [{"x": one["x"][0]} for one in LENGTHS]) == HELD


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
    assert value(loaded, "R307") == 1, "one request has one tensor, its own"


@pytest.mark.parametrize(("model", "count"), [("I401", 2), ("I402", 2), ("I402_good", 1), ("I406", 2)])
def test_instances_that_are_not_counted(loaded: Examiner, model: str, count: int) -> None:
    with grpc.InferenceServerClient(loaded.server.grpc_url) as client:
        groups = client.get_model_config(model).config.instance_group
    assert [group.count for group in groups] == [count]


def test_the_last_parameter_counts(loaded: Examiner) -> None:
    with grpc.InferenceServerClient(loaded.server.grpc_url) as client:
        parameters = client.get_model_config("P503").config.parameters
    assert parameters["intra_op_thread_count"].string_value == "2"


@pytest.mark.parametrize("model", ["I414", "P501", "P521", "P525", "S709", "S711", "S712", "S727"])
def test_it_loads_in_silence(loaded: Examiner, model: str) -> None:
    said = [line for line in loaded.server.log.read_text().splitlines() if f"'{model}'" in line]
    assert said, "the log speaks of it"
    assert not [line for line in said if line.startswith(("W", "E"))]


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


def settled(triton: Examiner, model: str, wanted: int) -> int:
    """The model's executions, once they are as many as wanted or a moment has passed."""
    end = time.monotonic() + 1
    while (found := Counters.read(triton.server.grpc_url, model).executions) < wanted and time.monotonic() < end:
        time.sleep(0.01)
    return found


def test_decoupled_models_refuse_unary_requests(loaded: Examiner) -> None:
    with pytest.raises(InferenceServerException, match="doesn't support models with decoupled"):
        ask(loaded, "W625", {"x": ONE})


@pytest.mark.parametrize(("model", "expected"), [("S761", HELD), ("S761_good", 1)])
def test_steps_batch_by_their_own_configuration(loaded: Examiner, model: str, expected: int) -> None:
    assert loaded.refusals(ALIKE, model=model) == []
    assert settled(loaded, f"part_{model}", expected) == expected


def test_the_file_is_imported_once_more(loaded: Examiner) -> None:
    assert (loaded.repository / "M805" / "1" / "model.py.log").read_text() == "xx"


def test_inputs_are_in_the_clients_order(loaded: Examiner) -> None:
    assert value(loaded, "M806", {"x": ONE, "z": 2 * ONE}) == 1
    assert value(loaded, "M806", {"z": 2 * ONE, "x": ONE}) == 2


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("M803", "does not implement `execute` method"),
        ("M821", "Expected a list in the execute return"),
        ("M831", "'NoneType' object has no attribute 'as_numpy'"),
    ],
)
def test_every_request_fails(loaded: Examiner, model: str, said: str) -> None:
    with pytest.raises(InferenceServerException, match=said):
        ask(loaded, model, {"x": ONE})


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("M811", "InferenceResponse objects do not match"),
        ("M812", "InferenceResponse objects do not match"),
        ("M832", "must match exactly"),
    ],
)
def test_the_whole_batch_fails(loaded: Examiner, model: str, said: str) -> None:
    requests: list[Tensors] = [*LENGTHS] if model == "M832" else [{"x": -ONE}, *ALIKE[1:]]
    refusals = loaded.refusals(requests, model=model)
    assert len(refusals) == HELD
    assert all(said in one for one in refusals)


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


def test_asynchronous_executions_do_not_overlap(loaded: Examiner) -> None:
    with ThreadPoolExecutor(3) as pool:
        assert [*pool.map(lambda _: value(loaded, "M825"), range(3))] == [1, 1, 1]


def test_arrays_that_are_kept_stay_as_they_are(loaded: Examiner) -> None:
    """No rule forbids it: what a model keeps of a request is not overwritten by later ones."""
    seen = [value(loaded, "kept", {"x": np.full((1, 2), number, dtype=np.float32)}) for number in range(20)]
    assert seen == [0] * 20


@pytest.fixture(scope="module")
def sequences(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Examiner]:
    """A server that holds no request back: the sequence batcher would wait for eight as well."""
    repository = tmp_path_factory.mktemp("sequences") / "repository"
    with launch(Settings(models=(), repository=prepared(repository))) as server:
        with grpc.InferenceServerClient(server.grpc_url) as client:
            for name in SEQUENCES:
                client.load_model(name)
        yield Examiner(server=server, repository=repository)


def prepared(repository: Path) -> Path:
    for name, example in SEQUENCES.items():
        write(example, repository, name=name)
    return repository


def test_python_never_stores_the_state(sequences: Examiner) -> None:
    options: list[dict[str, Any]] = [{"sequence_start": True}, {}, {"sequence_end": True}]
    assert [value(sequences, "S721", sequence_id=7, **one) for one in options] == [0, 0, 0]


def test_direct_sequences_share_ragged_batches(sequences: Examiner) -> None:
    """No rule forbids it: the strategy "direct" joins requests of different length when they are ragged."""
    with ThreadPoolExecutor(4) as pool:
        answers = pool.map(
            lambda one: value(sequences, "direct", one[1], sequence_id=one[0], sequence_start=True, sequence_end=True),
            enumerate(LENGTHS[:4], start=1),
        )
        assert [*answers] == [4] * 4


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Examiner]:
    """A server with a response cache and rate limits."""
    caches = find().binary.parents[1] / "caches"
    cache = ("--cache-config=local,size=1048576", f"--cache-directory={caches}")
    with examiner(tmp_path_factory.mktemp("limited"), *cache, "--rate-limit=execution_count") as triton:
        yield triton


def test_parameters_are_not_part_of_the_caches_key(limited: Examiner) -> None:
    assert limited.load(bad("W624")) == ""
    assert [value(limited, "example", parameters={"factor": factor}) for factor in (2, 3)] == [2, 2]
    assert settled(limited, "example", 2) == 1


def test_resources_are_global_or_local(limited: Examiner) -> None:
    assert limited.load(bad("I415")) == ""
    assert "is present as both global and device-specific resource" in limited.load_beside("other")


@pytest.mark.parametrize("code", ["M822", "M833", "S744", "M824"])
def test_requests_hang(hanging: Examiner, code: str) -> None:
    if code == "M824":
        assert never_ends(hanging, code)
    else:
        assert hangs(hanging, code)


HANGING = ("M822", "M833", "S744", "M824")


@pytest.fixture(scope="module")
def hanging(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Examiner]:
    """A server for models that do not answer; the last test crashes it, so that it need not wait for them."""
    with examiner(tmp_path_factory.mktemp("hanging")) as triton:
        models = {code: bad(code) for code in HANGING} | {"I405": bad("I405")}
        assert set(triton.load_together(models).values()) == {""}
        yield triton


def never_ends(triton: Examiner, model: str) -> bool:
    """Whether a stream gets its answer and is then kept open by the server."""
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
    end = time.monotonic() + 10
    while triton.server.running() and time.monotonic() < end:
        time.sleep(0.05)
    return not triton.server.running()


def test_loading_it_ends_the_server(tmp_path: Path) -> None:
    with examiner(tmp_path) as triton:
        with pytest.raises(OSError, match=r"closed|reset|refused"):
            triton.load(bad("R332"))
        assert ended(triton)


@pytest.mark.parametrize("code", ["W605", "W608", "W609"])
def test_warm_ups_that_fail_are_refused_or_end_the_server(code: str, tmp_path: Path) -> None:
    with examiner(tmp_path) as triton:
        try:
            said = triton.load(bad(code))
        except OSError:
            assert ended(triton)
        else:
            assert "failed to run warmup sample" in said
