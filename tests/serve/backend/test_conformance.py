"""The behaviour of the C++ onnxruntime backend on the real server: loading, completion, types and errors."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from all_types import EXTREMES, NUMPY, echo
from bench import LOAD_S, Bench
from streams import Stream, counted
from tiny_models import parameters, ragged_padded, save
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from serve.launcher import Server
from serve.management import api

pytestmark = pytest.mark.server

DEFAULT_ROWS = 7
HOLD = "dynamic_batching { max_queue_delay_microseconds: 5000000 }"
"""A batch runs as soon as it is full, so tests that fill it wait for nothing."""


def identity(shape: str) -> str:
    return f"g (float{shape} x) => (float{shape} y) {{ y = Identity(x) }}"


def tensors(dims: str = "3", kind: str = "FP32") -> str:
    return (
        f'input [ {{ name: "x" data_type: TYPE_{kind} dims: [ {dims} ] }} ]\n'
        f'output [ {{ name: "y" data_type: TYPE_{kind} dims: [ {dims} ] }} ]\n'
    )


BATCH = "max_batch_size: 8\n"
ROWS = "[b, 3]"
COMPLETED: dict[str, tuple[str, str, int, list[int], bool]] = {
    "nothing": (ROWS, "", DEFAULT_ROWS, [3], True),
    "only_input": (ROWS, "max_batch_size: 2\n" + tensors().split("\n")[0], 2, [3], True),
    "one_value": ("[b]", "", DEFAULT_ROWS, [1], True),
    "scalar": ("", "", 0, [1], False),
    "fixed": ("[1, 3]", "", 0, [1, 3], False),
    "full": (ROWS, BATCH + tensors(), 8, [3], False),
}
"""The graph's shape and a configuration; and max_batch_size, dims, and whether there is a batcher once completed."""
TUNED = parameters(
    intra_op_thread_count="1",
    inter_op_thread_count="1",
    execution_mode="1",
    enable_mem_arena="on",
    enable_mem_pattern="0",
    cudnn_conv_algo_search="1",
    **{
        "memory.enable_memory_arena_shrinkage": "cpu:0",
        "session.use_device_allocator_for_initializers": "1",
    },
)
FILES = ("directory", "named", "tuned")


def loadable(repository: Path) -> None:
    model = save(repository, "directory", identity(ROWS), BATCH + tensors()) / "1" / "model.onnx"
    moved = model.rename(model.with_name("file"))
    model.mkdir()
    moved.rename(model / "model.onnx")
    model = save(repository, "named", identity(ROWS), f'default_model_filename: "n.onnx"\n{BATCH}{tensors()}') / "1"
    (model / "model.onnx").rename(model / "n.onnx")
    save(repository, "tuned", identity(ROWS), f"{BATCH}{tensors()}{TUNED}optimization {{ graph {{ level: 2 }} }}\n")
    # y = x + z, where z has the default 10 in the graph.
    add = "g (float[3] x, float[1] z) => (float[3] y) <float[1] z = {10}> { y = Add(x, z) }"
    optional = 'input [ { name: "z" data_type: TYPE_FP32 dims: [ 1 ] optional: true } ]\n'
    save(repository, "optional", add, "max_batch_size: 0\n" + tensors() + optional)
    # y = x + 100 at the start of a sequence.
    start = "g (float[b, 1] x, float[b, 1] START) => (float[b, 1] y) <float hundred = {100}>"
    control = '{ name: "START" control [ { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } ] }'
    sequence = f"{BATCH}{tensors('1')}sequence_batching {{ control_input [ {control} ] }}\n"
    save(repository, "sequence", start + " { more = Mul(START, hundred) y = Add(x, more) }", sequence)
    echo(repository, "numpy", NUMPY, f"max_batch_size: 2\n{HOLD}", width=2)
    echo(repository, "bf16", ["BF16"], f"max_batch_size: 2\n{HOLD}", width=2)
    ragged_padded(repository, "guarded", guard=True, rows=4)


@pytest.fixture(scope="module")
def completing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A server of its own, whose flag for the backend says how many rows a batch has by default."""
    arguments = (f"--backend-config=onnxruntime,default-max-batch-size={DEFAULT_ROWS}",)
    bench = Bench(folder=tmp_path_factory.mktemp("completing"), arguments=arguments)
    yield bench
    bench.close()


@pytest.fixture(scope="module")
def completed(completing: Bench, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A client of it, with the models that it completes."""
    repository = tmp_path_factory.mktemp("completed")
    for name, (shape, text, *_) in COMPLETED.items():
        save(repository, name, identity(shape), text)
    with (
        completing.serving(tuple(COMPLETED), repository) as running,
        triton.InferenceServerClient(running.grpc_url) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def server(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("loadable")
    loadable(repository)
    with bench.serving([path.name for path in repository.iterdir()], repository) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(server.grpc_url) as opened:
        yield opened


def infer(client: Any, model: str, array: np.ndarray[Any, Any], **options: Any) -> Any:
    tensor = triton.InferInput("x", list(array.shape), np_to_triton_dtype(array.dtype))
    tensor.set_data_from_numpy(array)
    return client.infer(model, [tensor], **options).as_numpy("y")


@pytest.mark.parametrize("types", [NUMPY, ["BF16"]], ids=["numpy", "BF16"])
def test_every_type_comes_back_from_a_batch(server: Server, types: list[str]) -> None:
    model = "bf16" if types == ["BF16"] else "numpy"
    requests = [{f"x_{kind}": EXTREMES[kind][None, ::step].copy() for kind in types} for step in (1, -1)]
    with Stream(server.grpc_url) as stream:
        answers = stream.send(model, requests)
    assert counted(server.grpc_url, model, executions=1).batches == {2: 1}
    for answer, request in zip(answers, requests, strict=True):
        assert isinstance(answer, dict), answer
        for name, array in request.items():
            np.testing.assert_array_equal(answer[name.replace("x_", "y_")], array)


@pytest.mark.parametrize("model", COMPLETED)
def test_auto_complete(completed: Any, model: str) -> None:
    *_, limit, dims, batching = COMPLETED[model]
    config = completed.get_model_config(model).config
    assert config.max_batch_size == limit
    assert [list(tensor.dims) for tensor in (*config.input, *config.output)] == [dims, dims]
    assert config.HasField("dynamic_batching") == batching
    array = np.arange(np.prod(dims), dtype=np.float32).reshape([1, *dims] if limit else dims)
    np.testing.assert_array_equal(infer(completed, model, array), array)


def test_a_model_without_a_configuration(completing: Bench, completed: Any, tmp_path: Path) -> None:
    folder = save(tmp_path, "no_config", identity(ROWS), "")
    (folder / "config.pbtxt").unlink()
    running = completing.server()
    (running.settings.repository / "no_config").symlink_to(folder)
    api.call(running.http_url, "repository/models/no_config/load", {}, expected=NoneType, timeout_s=LOAD_S)
    assert completed.get_model_config("no_config").config.max_batch_size == DEFAULT_ROWS
    assert infer(completed, "no_config", np.ones((2, 3), dtype=np.float32)).shape == (2, 3)


@pytest.mark.parametrize("model", FILES)
def test_files_and_parameters(client: Any, model: str) -> None:
    array = np.ones((2, 3), dtype=np.float32)
    np.testing.assert_array_equal(infer(client, model, array), array)


def test_refused_with_the_same_words(
    bench: Bench, completing: Bench, tmp_path: Path, golden: Callable[..., None]
) -> None:
    """The server's log has the reason; test_contract.py has those of the configuration and the graph."""
    refused: dict[str, tuple[str, str]] = {
        "bad_autofill": ("[1, 3]", BATCH),
        "bad_type": (ROWS, BATCH + tensors(kind="INT32")),
        "bad_stream": (ROWS, f"{BATCH}{tensors()}model_transaction_policy {{ decoupled: true }}\n"),
        "bad_file": (ROWS, BATCH + tensors()),
    }
    for name, (shape, text) in refused.items():
        save(tmp_path, name, identity(shape), text)
    (tmp_path / "bad_file" / "1" / "model.onnx").unlink()
    echo(tmp_path, "bad_mix", ["BF16", "STRING"], BATCH, width=3)
    said = []
    for model in (*refused, "bad_mix"):
        running = completing if model == "bad_autofill" else bench
        with pytest.raises(api.RefusedError), running.serving((model,), tmp_path):
            pass
        log = running.server().log.read_text()
        reason = re.search(rf"failed to load '{model}' version 1: Internal: TritonModelException: (.*?)\\n\\nAt:", log)
        said.append(f"{model}\n    {reason and reason[1]}\n")
    golden("backend_refused", "".join(said))


def test_an_optional_input_takes_its_default(client: Any) -> None:
    x = np.ones(3, dtype=np.float32)
    assert infer(client, "optional", x).tolist() == [11, 11, 11]
    both = [triton.InferInput(name, [size], "FP32") for name, size in (("x", 3), ("z", 1))]
    both[0].set_data_from_numpy(x)
    both[1].set_data_from_numpy(np.array([5], dtype=np.float32))
    assert client.infer("optional", both).as_numpy("y").tolist() == [6, 6, 6]


def test_sequence_controls_reach_the_graph(client: Any) -> None:
    x = np.ones((1, 1), dtype=np.float32)
    steps = [{"sequence_start": step == 0, "sequence_end": step == 2} for step in range(3)]
    assert [infer(client, "sequence", x, sequence_id=5, **step).item() for step in steps] == [101, 1, 1]


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.ones((1, 3), dtype=np.int32), "inference input 'x' data-type is 'INT32', but model 'named' expects 'FP32'"),
        (np.ones(3, dtype=np.float32), "unexpected shape for input 'x' for model 'named'"),
        (np.ones((9, 3), dtype=np.float32), "inference request batch-size must be <= 8 for 'named'"),
    ],
)
def test_wrong_requests_never_reach_the_backend(client: Any, array: np.ndarray[Any, Any], message: str) -> None:
    with pytest.raises(InferenceServerException, match=message):
        infer(client, "named", array)


def test_a_text_that_cannot_be_read_fails_alone(server: Server) -> None:
    good = {f"x_{kind}": EXTREMES[kind][None] for kind in NUMPY}
    bad = good | {"x_STRING": np.array([[b"\xff\xfe", b"b"]], dtype=np.object_)}
    with Stream(server.grpc_url) as stream:
        refused, answered = stream.send("numpy", [bad, good])
    assert isinstance(refused, str)
    assert "input 'x_STRING' holds bytes that are not UTF-8" in refused
    assert isinstance(answered, dict)
    assert answered["y_STRING"].tolist() == good["x_STRING"].tolist()


def test_a_ragged_batch_blames_the_right_request(server: Server) -> None:
    """A first element of 7 is outside of the graph's table, so onnxruntime fails the whole run."""
    requests = [
        {"X": np.full((1, length), value, dtype=np.float32)} for length, value in ((3, 1), (5, 2), (4, 7), (2, 3))
    ]
    with Stream(server.grpc_url) as stream:
        answers = stream.send("guarded", requests)
    assert counted(server.grpc_url, "guarded", executions=1).batches == {4: 1}
    assert isinstance(answers[2], str)
    assert "idx=7" in answers[2]
    # Run alone: their own length is the longest, and they are one item.
    good = [answer["Y"].tolist() for answer in answers if isinstance(answer, dict)]
    assert good == [[[3, 3, 1]], [[10, 5, 1]], [[6, 2, 1]]]
