"""The backend's small parts without a server: text, BF16, GPU binding, the server's options, auto-completion."""

from typing import Any

import bfloat16
import gpu
import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from backend_inputs import Node, config, tensor
from complete import complete, is_complete
from executor import Executor, isolate
from parameters import backend_options, default_max_batch_size
from tensor_types import ContractError, TextError, to_bytes, to_text
from tiny_models import model_of

CPU = ["CPUExecutionProvider"]


def session(graph: str) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(model_of(graph).SerializeToString(), providers=CPU)


def test_text_goes_there_and_back() -> None:
    array = np.array([["é".encode(), b""], [b"a\x00b", b"long " * 50]], dtype=np.object_)
    made = to_text("x", array)
    assert made.tolist() == [["é", ""], ["a\x00b", "long " * 50]]
    assert to_bytes(made).tolist() == array.tolist()
    assert to_text("x", np.empty((0, 2), dtype=np.object_)).shape == (0, 2)
    with pytest.raises(TextError, match="input 'x' holds bytes that are not UTF-8"):
        to_text("x", np.array([b"\xff"], dtype=np.object_))


def test_bfloat16_is_passed_in_and_out_by_its_bits() -> None:
    opened = session("g (bfloat16[b] x) => (bfloat16[b] y, float[b] z) { y = Identity(x) z = Cast <to = 1> (x) }")
    assert bfloat16.is_used(opened)
    bits = np.array([1.5, -2, 0], dtype=ml_dtypes.bfloat16).view(np.uint16)
    same, wide = bfloat16.Bfloat16Session(opened).run(["y", "z"], {"x": bits})
    assert same.tolist() == bits.tolist()
    assert wide.tolist() == [1.5, -2, 0]


class Device:
    """A session on a GPU that this machine has not: notes what is bound; y is the sum of each row."""

    def __init__(self) -> None:
        self.inputs: dict[str, Any] = {}
        self.outputs: list[Any] = []

    def get_inputs(self) -> list[Node]:
        return [Node("x", ["b", "n"]), Node("mask", ["b", "n"])]

    def get_outputs(self) -> list[Any]:
        """Those of the graph, and once it ran, their values."""
        return [self] if self.inputs else [Node("y", ["b"])]

    def io_binding(self) -> "Device":
        return self

    def bind_cpu_input(self, name: str, array: Any) -> None:
        self.inputs[name] = array

    def bind_output(self, *place: Any) -> None:
        self.outputs.append(place)

    def run_with_iobinding(self, binding: "Device", options: Any) -> None:
        pass

    def numpy(self) -> Any:
        return (self.inputs["x"] * self.inputs["mask"]).sum(1)


def test_an_instance_on_a_gpu_binds_to_its_device() -> None:
    """Padded inputs and their masks are bound from memory that the next batch uses again."""
    device, seen = Device(), []
    parameters = {"pad": "x[1]=7", "pad_mask": "mask=x[1]"}
    made = config(parameters, input=[tensor("x", [-1], allow_ragged_batch=True)], output=[tensor("y", [])])
    executor = Executor.of(made, device, None, {"model_instance_kind": "GPU", "model_instance_device_id": "1"})
    for lengths in ((9, 2, 5), (1, 7)):
        answers = executor.run([{"x": np.ones((1, length), dtype=np.float32)} for length in lengths])
        assert [answer[0].tolist() for answer in answers] == [[length] for length in lengths]
        seen.append(dict(device.inputs))
    assert device.outputs == [("y", "cuda", 1)] * 2
    assert all(np.shares_memory(seen[0][name], seen[1][name]) for name in ("x", "mask"))


@pytest.mark.parametrize(
    ("graph", "kind"),
    [
        ("(float[b, 1] x) => (float[b, 1] y) { y = Neg(x) }", "number"),
        ("(float[b, 1] x) => (float[b, 1] z, string[b, 1] y) { z = Neg(x) y = Cast <to = 8> (x) }", "number"),
        ("(string[b, 1] x) => (float[b, 1] z, string[b, 1] y) { y = Identity(x) z = Cast <to = 1> (x) }", "text"),
    ],
)
def test_a_bound_session_answers_as_a_plain_one(graph: str, kind: str) -> None:
    """The CPU in place of the device, with memory that is ordinary where CUDA is missing; texts in and out."""
    opened = session(f"g {graph}")
    feed = {"x": gpu.pinned_memory(["libnowhere.so"])(2, np.dtype(np.float32)).reshape(2, 1)}
    feed["x"][:] = [[1], [3]]
    if kind == "text":
        feed["x"] = np.array([["1"], ["3"]], dtype=np.object_)
    names = [output.name for output in opened.get_outputs()]
    bound = gpu.BoundSession(opened, "cpu", 0).run(names, feed)
    assert [array.tolist() for array in bound] == [array.tolist() for array in opened.run(names, feed)]


def test_options_of_the_server_are_read_from_its_command_line() -> None:
    key = "default-max-batch-size"
    for arguments, options, limit in (
        ([], {}, 4),
        ([f"--backend-config={key}=8"], {key: "8"}, 8),
        (["--backend-config", f"onnxruntime,{key}=0"], {key: "0"}, 0),
        ([f"--backend-config={key}=--5"], {key: "--5"}, 4),
        ([f"--backend-config={key}=²"], {key: "²"}, 4),
        (["--backend-config=onnxruntime,a=1", "--backend-config=a=2", "--backend-config=python,a=3"], {"a": "1"}, 4),
    ):
        assert backend_options(["tritonserver", *arguments]) == options
        assert default_max_batch_size(options) == limit


def completed(x: list[Any], y: Node, **changes: Any) -> dict[str, Any]:
    made = config(**({"max_batch_size": 0} | changes))
    complete(made, [Node("x", x)], [y], default_max_batch_size=4)
    return made


def test_complete_only_what_is_missing() -> None:
    inputs = [tensor("x", [-1])]
    made = completed(["b", 3], Node("y", ["b"]), input=inputs, max_batch_size=1)
    assert (made["input"], made["max_batch_size"]) == (inputs, 1)
    assert "dynamic_batching" not in made  # a limit of 1 row needs no batcher
    for scheduler in ("sequence_batching", "dynamic_batching"):
        made = completed(["b"], Node("y", ["b"]), **{scheduler: {"kept": True}})
        assert made[scheduler] == {"kept": True}
        assert ("dynamic_batching" in made) == (scheduler == "dynamic_batching")
    with pytest.raises(ContractError, match="autofill failed for model 'm': model does not support batching while"):
        completed([1], Node("y", ["b"]), max_batch_size=8)
    assert is_complete({"batch_input": [{}], "output": [{}]})
    assert not is_complete({"input": [{}], "output": []})


def test_nan_fails_alone_where_it_is_an_error() -> None:
    """A batch that fails is run one by one."""
    opened = session("g (float[b] x) => (float[b] y) { y = Sqrt(x) }")
    made = {"input": [tensor("x", [])], "output": [tensor("y", [])]}
    requests = [{"x": np.full(1, value, dtype=np.float32)} for value in (4, -1, 9)]
    strict, runs = Executor(config({"nan_outputs": "error"}, **made), opened), []

    def run(some: Any) -> Any:
        runs.append(len(some))
        return strict.run(some)

    good, bad, other = isolate(requests, run)
    assert runs == [3, 1, 1, 1]
    assert "output 'y' holds NaN for this request" in str(bad)
    assert [answer[0].tolist() for answer in (good, other) if isinstance(answer, list)] == [[2], [3]]
    assert np.isnan(Executor(config(**made), opened).run(requests)[1][0]).all()
