"""The behaviour of the C++ onnxruntime backend on the real server: loading, completion, types and errors."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tritonclient.grpc as triton
from all_types import EXTREMES, NUMPY, echo
from onnx import TensorProto, helper, numpy_helper
from streams import Stream, counted
from tiny_models import parameters, ragged_padded, save
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from serve.launcher import Server, Settings, launch
from serve.management import admin

pytestmark = pytest.mark.server

FLOAT = TensorProto.FLOAT
HOLD = "dynamic_batching { max_queue_delay_microseconds: 5000000 }"
"""A batch runs as soon as it is full, so tests that fill it wait for nothing."""

Shape = Sequence[int | str]


def identity(x: Shape, y: Shape, kind: int = FLOAT) -> onnx.GraphProto:
    return helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", kind, x)],
        [helper.make_tensor_value_info("y", kind, y)],
    )


def tensors(dims: str = "3", kind: str = "FP32") -> str:
    return (
        f'input [ {{ name: "x" data_type: TYPE_{kind} dims: [ {dims} ] }} ]\n'
        f'output [ {{ name: "y" data_type: TYPE_{kind} dims: [ {dims} ] }} ]\n'
    )


def loadable_models(repository: Path) -> None:
    rows, batch = identity(["b", 3], ["b", 3]), "max_batch_size: 8\n" + tensors()
    strings = identity(["b", 2], ["b", 2], TensorProto.STRING)
    save(repository, "text", strings, f"max_batch_size: 2\n{tensors('2', 'STRING')}{HOLD}")
    save(repository, "nothing", rows, "")
    save(repository, "only_input", rows, "max_batch_size: 2\n" + tensors().split("\n")[0])
    save(repository, "one_value", identity(["b"], ["b"]), "")
    save(repository, "scalar", identity([], []), "")
    save(repository, "fixed", identity([1, 3], [1, 3]), "")
    save(repository, "full", rows, batch)
    (save(repository, "no_config", rows, "") / "config.pbtxt").unlink()
    folder = save(repository, "directory", rows, batch)
    (folder / "1" / "model.onnx").rename(folder / "1" / "file")
    (folder / "1" / "model.onnx").mkdir()
    (folder / "1" / "file").rename(folder / "1" / "model.onnx" / "model.onnx")
    folder = save(repository, "named", rows, f'default_model_filename: "n.onnx"\n{batch}')
    (folder / "1" / "model.onnx").rename(folder / "1" / "n.onnx")
    optional_model(repository)
    sequence_model(repository)
    settings = parameters(
        intra_op_thread_count="1",
        inter_op_thread_count="1",
        execution_mode="1",
        enable_mem_arena="on",
        enable_mem_pattern="0",
        **{
            "memory.enable_memory_arena_shrinkage": "cpu:0",
            "session.use_device_allocator_for_initializers": "1",
            "cudnn_conv_algo_search": "1",
        },
    )
    save(repository, "tuned", rows, f"{batch}{settings}optimization {{ graph {{ level: 2 }} }}\n")


def optional_model(repository: Path) -> None:
    """y = x + z, where z has the default 10 in the graph."""
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "z"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", FLOAT, [3]), helper.make_tensor_value_info("z", FLOAT, [1])],
        [helper.make_tensor_value_info("y", FLOAT, [3])],
        [numpy_helper.from_array(np.array([10], dtype=np.float32), "z")],
    )
    optional = 'input [ { name: "z" data_type: TYPE_FP32 dims: [ 1 ] optional: true } ]\n'
    save(repository, "optional", graph, "max_batch_size: 0\n" + tensors() + optional)


def sequence_model(repository: Path) -> None:
    """y = x + 100 at the start of a sequence."""
    graph = helper.make_graph(
        [
            helper.make_node("Mul", ["START", "hundred"], ["more"]),
            helper.make_node("Add", ["x", "more"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info(name, FLOAT, ["b", 1]) for name in ("x", "START")],
        [helper.make_tensor_value_info("y", FLOAT, ["b", 1])],
        [numpy_helper.from_array(np.array([100], dtype=np.float32), "hundred")],
    )
    control = (
        'control_input [ { name: "START" control [ { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } ] } ]'
    )
    save(repository, "sequence", graph, f"max_batch_size: 8\n{tensors('1')}sequence_batching {{ {control} }}\n")


REFUSED = {
    "bad_autofill": "autofill failed for model 'bad_autofill': model does not support batching while non-zero",
    "bad_rank": "model 'bad_rank', tensor 'x': the model expects 2 dimensions (shape [-1,3]) but the model",
    "bad_type": "configuration expects datatype TYPE_INT32 for input 'x', model provides TYPE_FP32",
    "bad_ragged": "provides input with shape [-1]  for ragged input 'x', model provides [-1,3]",
    "bad_accelerator": "unknown Execution Accelerator 'magic' is requested",
    "bad_parameter": "Expected values for  execution_mode are 0 or 1 but got 7",
    "bad_file": "unable to find '",
    "bad_stream": "unable to load model 'bad_stream', model_transaction_policy says decoupled",
    "bad_mix": "model 'bad_mix' has BF16 tensors and a STRING input",
}


def refused_models(repository: Path) -> None:
    def refused(name: str, config: str, shape: Shape = ("b", 3)) -> Path:
        return save(repository, name, identity(shape, shape), config)

    batch = "max_batch_size: 8\n"
    refused("bad_autofill", batch, [1, 3])
    refused("bad_rank", batch + tensors("3, 1"))
    refused("bad_type", batch + tensors("3", "INT32"))
    refused("bad_ragged", batch + tensors("-1").replace("]", "] allow_ragged_batch: true", 1))
    accelerator = 'optimization { execution_accelerators { cpu_execution_accelerator [ { name: "magic" } ] } }\n'
    refused("bad_accelerator", batch + tensors() + accelerator)
    refused("bad_parameter", batch + tensors() + parameters(execution_mode="7"))
    refused("bad_stream", f"{batch}{tensors()}model_transaction_policy {{ decoupled: true }}\n")
    echo(repository, "bad_mix", ["BF16", "STRING"], batch, width=3)
    (refused("bad_file", batch + tensors()) / "1" / "model.onnx").rename(repository / "bad_file" / "1" / "other.onnx")


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("zoo")
    echo(repository, "numpy", NUMPY, f"max_batch_size: 2\n{HOLD}", width=2)
    echo(repository, "bf16", ["BF16"], f"max_batch_size: 2\n{HOLD}", width=2)
    loadable_models(repository)
    refused_models(repository)
    ragged_padded(repository, "guarded", guard=True, rows=4)
    with launch(Settings(models=(), repository=repository)) as running:
        loaded = load(running, sorted(path.name for path in repository.iterdir()))
        assert {model for model, done in loaded.items() if not done} == set(REFUSED)
        yield running


def load(server: Server, models: Sequence[str]) -> dict[str, bool]:
    """Load models on a running server, because the launcher would refuse their incomplete configurations."""
    with triton.InferenceServerClient(server.grpc_url) as client, ThreadPoolExecutor(4) as pool:
        headers = admin.headers(server.grpc_url)
        return dict(zip(models, pool.map(lambda model: _load(client, model, headers), models), strict=True))


def _load(client: triton.InferenceServerClient, model: str, headers: Mapping[str, str]) -> bool:
    try:
        client.load_model(model, headers=headers)
    except InferenceServerException:
        return False
    return True


@pytest.fixture(scope="module")
def client(zoo: Server) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(zoo.grpc_url) as opened:
        yield opened


def infer(client: Any, model: str, array: np.ndarray[Any, Any], name: str = "x", **options: Any) -> Any:
    tensor = triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    tensor.set_data_from_numpy(array)
    return client.infer(model, [tensor], **options).as_numpy("y")


@pytest.mark.parametrize("types", [NUMPY, ["BF16"]], ids=["numpy", "BF16"])
def test_every_type_comes_back_from_a_batch(zoo: Server, types: list[str]) -> None:
    model = "bf16" if types == ["BF16"] else "numpy"
    requests = [{f"x_{kind}": EXTREMES[kind][None, ::step].copy() for kind in types} for step in (1, -1)]
    with Stream(zoo.grpc_url) as stream:
        answers = stream.send(model, requests)
    assert counted(zoo.grpc_url, model, executions=1).batches == {2: 1}
    for answer, request in zip(answers, requests, strict=True):
        assert isinstance(answer, dict), answer
        for name, array in request.items():
            np.testing.assert_array_equal(answer[name.replace("x_", "y_")], array)


@pytest.mark.parametrize(
    ("model", "limit", "dims", "batching"),
    [
        ("nothing", 4, [3], True),
        ("no_config", 4, [3], True),
        ("only_input", 2, [3], True),
        ("one_value", 4, [1], True),
        ("scalar", 0, [1], False),
        ("fixed", 0, [1, 3], False),
        ("full", 8, [3], False),
    ],
)
def test_auto_complete(client: Any, model: str, limit: int, dims: list[int], batching: bool) -> None:
    config = client.get_model_config(model).config
    assert config.max_batch_size == limit
    assert [list(tensor.dims) for tensor in (*config.input, *config.output)] == [dims, dims]
    assert config.HasField("dynamic_batching") == batching
    array = np.arange(np.prod(dims), dtype=np.float32).reshape([1, *dims] if limit else dims)
    np.testing.assert_array_equal(infer(client, model, array), array)


def test_the_servers_default_batch_size_is_read(tmp_path: Path) -> None:
    save(tmp_path, "nothing", identity(["b", 3], ["b", 3]), "")
    arguments = ("--backend-config=onnxruntime,default-max-batch-size=7",)
    settings = Settings(models=(), repository=tmp_path, arguments=arguments)
    with launch(settings) as running, triton.InferenceServerClient(running.grpc_url) as client:
        assert load(running, ["nothing"]) == {"nothing": True}
        assert client.get_model_config("nothing").config.max_batch_size == 7


@pytest.mark.parametrize("model", ["directory", "named", "tuned"])
def test_files_and_parameters(client: Any, model: str) -> None:
    array = np.ones((2, 3), dtype=np.float32)
    np.testing.assert_array_equal(infer(client, model, array), array)


@pytest.mark.parametrize("model", REFUSED)
def test_refused_with_the_same_words(zoo: Server, model: str) -> None:
    log = zoo.log.read_text()
    assert f"failed to load '{model}'" in log
    assert REFUSED[model] in log


def test_an_optional_input_takes_its_default(client: Any) -> None:
    x = np.ones(3, dtype=np.float32)
    assert infer(client, "optional", x).tolist() == [11, 11, 11]
    both = [triton.InferInput(name, [size], "FP32") for name, size in (("x", 3), ("z", 1))]
    both[0].set_data_from_numpy(x)
    both[1].set_data_from_numpy(np.array([5], dtype=np.float32))
    assert client.infer("optional", both).as_numpy("y").tolist() == [6, 6, 6]


def test_sequence_controls_reach_the_graph(client: Any) -> None:
    x = np.ones((1, 1), dtype=np.float32)
    answers = [
        infer(client, "sequence", x, sequence_id=5, sequence_start=step == 0, sequence_end=step == 2)
        for step in range(3)
    ]
    assert [answer.item() for answer in answers] == [101, 1, 1]


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.ones((1, 3), dtype=np.int32), "inference input 'x' data-type is 'INT32', but model 'full' expects 'FP32'"),
        (np.ones(3, dtype=np.float32), "unexpected shape for input 'x' for model 'full'"),
        (np.ones((9, 3), dtype=np.float32), "inference request batch-size must be <= 8 for 'full'"),
    ],
)
def test_wrong_requests_never_reach_the_backend(client: Any, array: np.ndarray[Any, Any], message: str) -> None:
    with pytest.raises(InferenceServerException, match=message):
        infer(client, "full", array)


def test_a_text_that_cannot_be_read_fails_alone(zoo: Server) -> None:
    texts = [np.array([[text, b"b"]], dtype=np.object_) for text in (b"\xff\xfe", b"good")]
    with Stream(zoo.grpc_url) as stream:
        bad, good = stream.send("text", [{"x": text} for text in texts])
    assert isinstance(bad, str)
    assert "input 'x' holds bytes that are not UTF-8" in bad
    assert isinstance(good, dict)
    assert good["y"].tolist() == [[b"good", b"b"]]


def test_a_ragged_batch_blames_the_right_request(zoo: Server) -> None:
    """A first element of 7 is outside of the graph's table, so onnxruntime fails the whole run."""
    values = [1, 2, 7, 3]
    requests = [
        {"X": np.full((1, length), value, dtype=np.float32)} for length, value in zip([3, 5, 4, 2], values, strict=True)
    ]
    with Stream(zoo.grpc_url) as stream:
        answers = stream.send("guarded", requests)
    assert counted(zoo.grpc_url, "guarded", executions=1).batches == {4: 1}
    assert isinstance(answers[2], str)
    assert "idx=7" in answers[2]
    # Run alone: their own length is the longest, and they are one item.
    good = [answer["Y"].tolist() for answer in answers if isinstance(answer, dict)]
    assert good == [[[3, 3, 1]], [[10, 5, 1]], [[6, 2, 1]]]
