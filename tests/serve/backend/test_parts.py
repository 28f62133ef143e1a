"""The backend's small parts without a server: text, BF16, GPU binding, the server's options, auto-completion."""

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import bfloat16
import gpu
import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from complete import complete, is_complete
from executor import Executor, isolate
from onnx import TensorProto, helper
from parameters import backend_options, default_max_batch_size
from tensor_types import ContractError, TextError, to_bytes, to_text
from tiny_models import lookup

Array = np.ndarray[Any, Any]


def session(nodes: list[onnx.NodeProto], inputs: list[Any], outputs: list[Any]) -> onnxruntime.InferenceSession:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(*tensor) for tensor in inputs],
        [helper.make_tensor_value_info(*tensor) for tensor in outputs],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def test_text_goes_there_and_back() -> None:
    array = np.array([["é".encode(), b""], [b"a\x00b", b"long " * 50]], dtype=np.object_)
    made = to_text("x", array)
    assert made.tolist() == [["é", ""], ["a\x00b", "long " * 50]]
    assert to_bytes(made).tolist() == array.tolist()
    assert to_text("x", np.empty((0, 2), dtype=np.object_)).shape == (0, 2)


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(TextError, match="input 'x' holds bytes that are not UTF-8"):
        to_text("x", np.array([b"\xff"], dtype=np.object_))


def test_bfloat16_is_passed_in_and_out_by_its_bits() -> None:
    opened = session(
        [helper.make_node("Identity", ["x"], ["y"]), helper.make_node("Cast", ["x"], ["z"], to=TensorProto.FLOAT)],
        [("x", TensorProto.BFLOAT16, ["b"])],
        [("y", TensorProto.BFLOAT16, ["b"]), ("z", TensorProto.FLOAT, ["b"])],
    )
    assert bfloat16.is_used(opened)
    bits = np.array([1.5, -2, 0], dtype=ml_dtypes.bfloat16).view(np.uint16)
    same, wide = bfloat16.Bfloat16Session(opened).run(["y", "z"], {"x": bits})
    assert same.tolist() == bits.tolist()
    assert wide.tolist() == [1.5, -2, 0]
    # What Triton's tensors offer is the same capsule.
    capsule = bfloat16.to_dlpack(bits).__dlpack__()
    assert bfloat16.from_triton(SimpleNamespace(to_dlpack=lambda: capsule)).tolist() == bits.tolist()


def test_a_bound_session_answers_as_a_plain_one(tmp_path: Path) -> None:
    opened = onnxruntime.InferenceSession(
        str(lookup(tmp_path) / "1" / "model.onnx"), providers=["CPUExecutionProvider"]
    )
    bound = gpu.BoundSession(opened, "cpu", 0)
    feed = {"x": np.array([[1], [3]], dtype=np.float32)}
    assert bound.get_inputs()[0].name == "x"
    assert bound.run(["y"], feed)[0].tolist() == opened.run(["y"], feed)[0].tolist() == [[11], [13]]


def test_pinned_memory_without_cuda_is_ordinary() -> None:
    array = gpu.pinned_memory(["libnowhere.so"])(3, np.dtype(np.float32))
    assert array.size == 3
    assert array.dtype == np.dtype(np.float32)


def test_pinned_memory_is_allocated_by_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = ctypes.create_string_buffer(12)

    def host_alloc(address: Any, size: Any, flags: int) -> int:
        assert (size.value, flags) == (12, 1)
        address._obj.value = ctypes.addressof(memory)
        return 0

    monkeypatch.setattr(gpu, "_load", lambda _: SimpleNamespace(cudaHostAlloc=host_alloc))
    array = gpu.pinned_memory()(3, np.dtype(np.int32))
    array[:] = [1, 2, 3]
    assert np.frombuffer(memory.raw, dtype=np.int32).tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("arguments", "options", "limit"),
    [
        ([], {}, 4),
        (["--backend-config=default-max-batch-size=8"], {"default-max-batch-size": "8"}, 8),
        (["--backend-config", "onnxruntime,default-max-batch-size=0"], {"default-max-batch-size": "0"}, 0),
        (
            ["--backend-config=onnxruntime,a=1", "--backend-config=a=2", "--backend-config=python,a=3"],
            {"a": "1"},
            4,
        ),
    ],
)
def test_options_of_the_server_are_read_from_its_command_line(
    arguments: list[str], options: dict[str, str], limit: int
) -> None:
    assert backend_options(["tritonserver", *arguments]) == options
    assert default_max_batch_size(options) == limit


def tensor(name: str, shape: list[Any], kind: str = "tensor(float)") -> Any:
    return SimpleNamespace(name=name, shape=shape, type=kind)


def completed(inputs: list[Any], outputs: list[Any], **changes: Any) -> dict[str, Any]:
    config: dict[str, Any] = {"name": "m", "max_batch_size": 0, "input": [], "output": []} | changes
    complete(config, inputs, outputs, default_max_batch_size=4)
    return config


def test_complete_a_graph_that_batches() -> None:
    config = completed([tensor("x", ["b", 3])], [tensor("y", ["b"], "tensor(int64)")])
    assert config["max_batch_size"] == 4
    assert config["dynamic_batching"] == {}
    assert config["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [3]}]
    assert config["output"] == [{"name": "y", "data_type": "TYPE_INT64", "dims": [1], "reshape": {"shape": []}}]


def test_complete_a_graph_that_does_not_batch() -> None:
    config = completed([tensor("x", [])], [tensor("y", [2, "n"])])
    assert config["max_batch_size"] == 0
    assert "dynamic_batching" not in config
    assert config["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [1]}]
    assert config["output"] == [{"name": "y", "data_type": "TYPE_FP32", "dims": [2, -1]}]
    with pytest.raises(ContractError, match="autofill failed for model 'm': model does not support batching while"):
        completed([tensor("x", [1])], [tensor("y", ["b"])], max_batch_size=8)


def test_complete_only_what_is_missing() -> None:
    inputs = [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1]}]
    config = completed([tensor("x", ["b", 3])], [tensor("y", ["b"])], input=inputs, max_batch_size=1)
    assert (config["input"], config["max_batch_size"]) == (inputs, 1)
    assert "dynamic_batching" not in config  # a limit of 1 row needs no batcher
    for scheduler in ("sequence_batching", "dynamic_batching"):
        completed_config = completed([tensor("x", ["b"])], [tensor("y", ["b"])], **{scheduler: {"kept": True}})
        assert completed_config[scheduler] == {"kept": True}
        assert ("dynamic_batching" in completed_config) == (scheduler == "dynamic_batching")
    assert is_complete({"batch_input": [{}], "output": [{}]})
    assert not is_complete({"input": [{}], "output": []})


def test_a_failing_batch_is_run_one_by_one() -> None:
    runs = []

    def run(requests: Any) -> list[Any]:
        runs.append(len(requests))
        if any(request["x"].size == 0 for request in requests):
            raise ValueError("empty")
        return [[request["x"]] for request in requests]

    requests = [{"x": np.ones(size)} for size in (1, 0, 2)]
    first, second, third = isolate(requests, run)
    assert runs == [3, 1, 1, 1]
    assert str(second) == "empty"
    assert not isinstance(first, Exception)
    assert not isinstance(third, Exception)
    assert [first[0].size, third[0].size] == [1, 2]


def test_the_executor_fits_the_graph() -> None:
    plain = session(
        [helper.make_node("Identity", ["x"], ["y"])],
        [("x", TensorProto.FLOAT, ["b"])],
        [("y", TensorProto.FLOAT, ["b"])],
    )
    config = {"name": "m", "max_batch_size": 0, "input": [{"name": "x"}], "output": [{"name": "y", "dims": [-1]}]}
    made = Executor.of(config, plain, None, {"model_instance_kind": "CPU"})
    assert made.run([{"x": np.ones(2, dtype=np.float32)}])[0][0].tolist() == [1, 1]
    on_gpu = Executor.of(config, plain, None, {"model_instance_kind": "GPU", "model_instance_device_id": "0"})
    assert isinstance(getattr(on_gpu._run, "__self__", None), gpu.BoundSession)


def test_nan_fails_alone_where_it_is_an_error() -> None:
    opened = session(
        [helper.make_node("Sqrt", ["x"], ["y"])],
        [("x", TensorProto.FLOAT, ["b", 1])],
        [("y", TensorProto.FLOAT, ["b", 1])],
    )
    config: dict[str, Any] = {"name": "m", "max_batch_size": 8, "input": [{"name": "x"}]}
    config["output"] = [{"name": "y", "dims": [1]}]
    requests = [{"x": np.array([[value]], dtype=np.float32)} for value in (4, -1, 9)]
    strict = Executor(config | {"parameters": {"nan_outputs": {"string_value": "error"}}}, opened)
    good, bad, other = isolate(requests, strict.run)
    assert "output 'y' holds NaN for this request" in str(bad)
    assert not isinstance(good, Exception)
    assert not isinstance(other, Exception)
    assert [good[0].item(), other[0].item()] == [2, 3]
    assert np.isnan(Executor(config, opened).run(requests)[1][0]).all()
