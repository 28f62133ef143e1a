"""Tensors that numpy or a transport treats in a special way: BF16, and strings by their real size."""

import asyncio
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from bench import Bench
from client_calls import TRANSPORTS, address, registered
from onnx import TensorProto, helper
from tiny_models import PYTHON_MODEL

from clients import AsyncModel, InvalidInputError, Model, TransportName
from clients._inference import LARGE_BYTES
from serve.launcher import Server

pytestmark = pytest.mark.server

LENGTHS = """return [
            pb_utils.InferenceResponse([pb_utils.Tensor("y", np.array([[len(text) for text in row] for row in
                pb_utils.get_input_tensor_by_name(one, "x").as_numpy()], dtype=np.int64))]) for one in requests]"""


@pytest.fixture(scope="module")
def tensor_server(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`triple`: y = 3 x in BF16, `lengths`: how many bytes each string has."""
    repository = tmp_path_factory.mktemp("tensors")
    nodes = [
        helper.make_node("Cast", ["x"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["wide", "three"], ["tripled"]),
        helper.make_node("Cast", ["tripled"], ["y"], to=TensorProto.BFLOAT16),
    ]
    places = [helper.make_tensor_value_info(name, TensorProto.BFLOAT16, ["batch", "length"]) for name in "xy"]
    three = helper.make_tensor("three", TensorProto.FLOAT, [], [3.0])
    graph = helper.make_graph(nodes, "triple", places[:1], places[1:], [three])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (repository / "triple" / "1").mkdir(parents=True)
    onnx.save(model, repository / "triple" / "1" / "model.onnx")
    (repository / "triple" / "config.pbtxt").write_text(
        'name: "triple"\nbackend: "onnxruntime"\nmax_batch_size: 8\n'
        'input [ { name: "x" data_type: TYPE_BF16 dims: [ -1 ] } ]\n'
        'output [ { name: "y" data_type: TYPE_BF16 dims: [ -1 ] } ]\n'
    )
    (repository / "lengths" / "1").mkdir(parents=True)
    (repository / "lengths" / "1" / "model.py").write_text(
        "import numpy as np\n" + PYTHON_MODEL.replace("{body}", LENGTHS)
    )
    (repository / "lengths" / "config.pbtxt").write_text(
        'name: "lengths"\nbackend: "python"\nmax_batch_size: 8\n'
        'input [ { name: "x" data_type: TYPE_STRING dims: [ -1 ] } ]\n'
        'output [ { name: "y" data_type: TYPE_INT64 dims: [ -1 ] } ]\n'
    )
    with bench.serving(("triple", "lengths"), repository) as running:
        yield running


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("length", [1, 7, 50_000])
def test_bf16_goes_in_and_comes_out(tensor_server: Server, transport: TransportName, length: int) -> None:
    url = address(tensor_server, transport)
    array = np.random.default_rng(length).normal(size=(2, length)).astype(ml_dtypes.bfloat16)
    right = (array.astype(np.float32) * 3).astype(ml_dtypes.bfloat16)
    with Model("triple", url=url, transport=transport) as model:
        answer = model.predict(array)
        assert answer.dtype == ml_dtypes.bfloat16
        np.testing.assert_array_equal(answer.view(np.uint16), right.view(np.uint16))
        with pytest.raises(InvalidInputError, match=r"is BF16, got float32. Convert it: array.astype\(ml_dtypes.bfl"):
            model.predict(array.astype(np.float32))

    async def merged() -> list[Any]:
        async with AsyncModel("triple", url=url, transport=transport, coalesce=True) as model:
            return await asyncio.gather(*(model.predict(array[[row]]) for row in (0, 1)))

    together = np.concatenate(asyncio.run(merged()))
    np.testing.assert_array_equal(together.view(np.uint16), right.view(np.uint16))


@pytest.mark.parametrize("dtype", [object, "S"])
def test_large_strings_travel_in_shared_memory(tensor_server: Server, dtype: Any) -> None:
    sizes = [5_000_000, 4_000_000, 7]
    with Model("lengths", url=tensor_server.grpc_url) as model:
        assert model.predict(np.array([[b"x" * size for size in sizes]], dtype=dtype)).tolist() == [sizes]
        assert len(registered(tensor_server.grpc_url)) == 1
    assert len(registered(tensor_server.grpc_url)) == 0


def test_small_strings_travel_in_the_message(tensor_server: Server) -> None:
    with Model("lengths", url=tensor_server.grpc_url) as model:
        # More than the limit as numpy's pointers, less as what is sent; and as many bytes as there may be.
        for sizes in ([7] * 4, [LARGE_BYTES - 13]):
            assert model.predict(np.array([[b"x" * size for size in sizes]], dtype=object)).tolist() == [sizes]
            assert len(registered(tensor_server.grpc_url)) == 0
        assert model.predict(np.array([["é" * (LARGE_BYTES // 2)]])).tolist() == [[LARGE_BYTES]]
        assert len(registered(tensor_server.grpc_url)) == 1


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_bytes_of_numpys_own_class_are_bytes(tensor_server: Server, transport: TransportName) -> None:
    with Model("lengths", url=address(tensor_server, transport), transport=transport) as model:
        array = np.empty((1, 2), dtype=object)
        array[0] = [np.bytes_(b"abc"), np.str_("é")]
        assert model.predict(array).tolist() == [[3, 2]]
