"""Random sequences in random batches: every answer has the bits of onnxruntime run by hand on that sequence alone."""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime
import pytest
from executor import Executor, isolate
from onnx import TensorProto, helper, numpy_helper
from states import States, with_states

START, END = 1, 2
WIDTH, SLOTS = 8, 4
TYPES = {"S": TensorProto.FLOAT, "H": TensorProto.FLOAT16, "B": TensorProto.BOOL}
ZEROS = {"S": np.float32, "H": np.float16, "B": np.bool_}
CONFIG: dict[str, Any] = {
    "name": "m",
    "max_batch_size": SLOTS,
    "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [WIDTH]}],
    "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [WIDTH]}],
    "sequence_batching": {
        "direct": {},
        "state": [
            {"input_name": name, "output_name": f"{name}2", "data_type": data_type, "dims": [WIDTH]}
            for name, data_type in (("S", "TYPE_FP32"), ("H", "TYPE_FP16"), ("B", "TYPE_BOOL"))
        ],
    },
}


@pytest.fixture(scope="module")
def session() -> onnxruntime.InferenceSession:
    """Three states, each of another type; y is of all, and an x above 3 is outside the table."""
    nodes = [
        helper.make_node("Cast", ["x"], ["index"], to=TensorProto.INT32),
        helper.make_node("Gather", ["table", "index"], ["taken"]),
        helper.make_node("Add", ["taken", "S"], ["sum"]),
        helper.make_node("Mul", ["sum", "scale"], ["scaled"]),
        helper.make_node("Sin", ["scaled"], ["S2"]),
        helper.make_node("Cast", ["S2"], ["half"], to=TensorProto.FLOAT16),
        helper.make_node("Add", ["H", "half"], ["H2"]),
        helper.make_node("Greater", ["S2", "zero"], ["positive"]),
        helper.make_node("Xor", ["positive", "B"], ["B2"]),
        helper.make_node("Cast", ["H2"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("Where", ["B2", "wide", "S2"], ["y"]),
    ]
    tensors = {name: helper.make_tensor_value_info(name, kind, ["b", WIDTH]) for name, kind in TYPES.items()}
    tensors |= {
        f"{name}2": helper.make_tensor_value_info(f"{name}2", kind, ["b", WIDTH]) for name, kind in TYPES.items()
    }
    tensors |= {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["b", WIDTH]) for name in "xy"}
    table = np.random.default_rng(1).standard_normal(4).astype(np.float32)
    constants = [
        numpy_helper.from_array(value, name)
        for name, value in (("table", table), ("scale", np.array([1.7], np.float32)), ("zero", np.zeros(1, np.float32)))
    ]
    names = (["x", *TYPES], ["y", *(f"{name}2" for name in TYPES)])
    inputs, outputs = ([tensors[name] for name in some] for some in names)
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


class Request:
    """A request of a sequence; Triton sends undefined states with it, since it keeps none of a Python backend."""

    def __init__(self, sequence: int | str, flags: int, x: np.ndarray[Any, Any]) -> None:
        self.correlation_id, self.flags, self.x = lambda: sequence, lambda: flags, x

    def read(self) -> dict[str, Any]:
        return {"x": self.x, **{name: np.ones((1, WIDTH), kind) for name, kind in ZEROS.items()}}


class ByHand:
    """One sequence alone: the answers, and the states that the next request gets."""

    def __init__(self, session: onnxruntime.InferenceSession) -> None:
        self._session, self.left = session, 0
        self.states = {name: np.zeros((1, WIDTH), kind) for name, kind in ZEROS.items()}

    def answer(self, x: np.ndarray[Any, Any]) -> bytes | None:
        """The bytes of y; None if the graph refuses x, which changes no state."""
        try:
            y, *states = self._session.run(["y", "S2", "H2", "B2"], {"x": x, **self.states})
        except Exception:
            return None
        self.states = dict(zip(ZEROS, states, strict=True))
        return bytes(y.tobytes())


@pytest.mark.parametrize("seed", range(20))
def test_answers_are_those_of_each_sequence_alone(session: onnxruntime.InferenceSession, seed: int) -> None:
    """At most as many sequences at a time as there are slots; some begin again, and some requests fail."""
    rng = random.Random(seed)
    states = States(CONFIG, Executor(with_states(CONFIG), session))
    read = states.reader(lambda request: request.read())
    live = dict[int | str, ByHand]()

    def run(requests: Sequence[Request]) -> list[Any]:
        return states.run([*map(read, requests)])

    for step in range(60):
        requests, expected = list[Request](), list[bytes | None]()
        while len(live) < SLOTS:
            live[rng.choice([step * 10 + len(live) + 1, f"{step}-{len(live)}"])] = ByHand(session)
        for sequence in rng.sample(list(live), rng.randint(1, SLOTS)):
            one = live[sequence]
            flags = 0
            if not one.left or rng.random() < 0.1:
                live[sequence] = one = ByHand(session)
                one.left, flags = rng.randint(1, 6), START
            one.left -= 1
            flags |= END if not one.left else 0
            x = np.array([rng.choices(range(9 if rng.random() < 0.05 else 4), k=WIDTH)], np.float32)
            requests.append(Request(sequence, flags, x))
            expected.append(one.answer(x))
            if not one.left:
                del live[sequence]
        got = isolate(requests, run)
        assert [None if isinstance(each, Exception) else each[0].tobytes() for each in got] == expected
    assert set(states._kept) <= set(live)
