"""Implicit state of ONNX models, on a real server and without one, with the answers of an independent calculation."""

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnxruntime
import pytest
import state_models
import tritonclient.grpc as triton
from backend_inputs import config, tensor
from bench import Bench
from executor import Executor, isolate
from state_models import BEGIN, STRATEGIES
from states import LostStateError, States, with_states
from tiny_models import model_of
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

Array = np.ndarray[Any, Any]
START, END = 1, 2
ROUNDS = 200
"""The first few are answered whole, since the limit learns from them how fast the model is."""


@pytest.fixture(scope="module")
def client(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Iterator[triton.InferenceServerClient]:
    repository = tmp_path_factory.mktemp("states")
    with (
        bench.serving(state_models.build(repository), repository) as server,
        triton.InferenceServerClient(server.grpc_url) as opened,
    ):
        yield opened


def infer(client: Any, model: str, x: Array, sequence: int | str, flags: int = 0) -> Any:
    sent = triton.InferInput("x", list(x.shape), np_to_triton_dtype(x.dtype))
    sent.set_data_from_numpy(x)
    start, end = bool(flags & START), bool(flags & END)
    return client.infer(model, [sent], sequence_id=sequence, sequence_start=start, sequence_end=end)


def summed(client: Any, model: str, value: float, sequence: int | str, flags: int = 0) -> Any:
    """The sum and the counts that a request of a sequence got, or its error."""
    try:
        answer = infer(client, model, np.array([[value]], np.float32), sequence, flags)
    except InferenceServerException as error:
        return str(error)
    assert {output.name for output in answer.get_response().outputs} == {"y", "counted"}
    return answer.as_numpy("y").item(), answer.as_numpy("counted")[0].tolist()


@pytest.mark.server
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_each_sequence_has_its_own_state(client: Any, strategy: str) -> None:
    """Three sequences take turns, one of them with an id of text; a failed request changes no state.

    With "direct" Triton fills the slots of the others with empty requests.
    """
    rng = random.Random(strategy)
    values: dict[int | str, list[int]] = {}  # those that were summed since the start of the sequence
    ids: list[int | str] = [31, "text", 33]
    for _ in range(80):
        sequence = rng.choice(ids)
        flags = (START if sequence not in values or rng.random() < 0.1 else 0) | (END if rng.random() < 0.2 else 0)
        value = rng.choice([0, 1, 2, 3, 9])
        own = values[sequence] = [] if flags & START else values[sequence]
        answer = summed(client, strategy, value, sequence, flags)
        if value == 9:
            assert "indices element out of data bounds" in answer
        else:
            own.append(value)
            assert answer == (sum(own), [BEGIN[0] + len(own), BEGIN[1] + len(own)])
        if flags & END:
            del values[sequence]
            assert "must specify the START flag" in summed(client, strategy, 1, sequence)


@pytest.mark.server
def test_a_state_may_grow(client: Any) -> None:
    for count in range(1, 5):
        for sequence in (51, 52):
            x = np.array([[10 * sequence + count]], np.float32)
            answer = infer(client, "history", x, sequence, START * (count == 1) | END * (count == 4))
            # Triton begins a state of open size with one element.
            assert answer.as_numpy("y").tolist() == [[0, *(10 * sequence + each for each in range(1, count + 1))]]


@pytest.mark.server
def test_a_state_without_a_batch_axis_and_one_of_texts(client: Any) -> None:
    texts = ["", "première", "two", "three"]
    for count in range(1, 4):
        flags = START * (count == 1) | END * (count == 3)
        answer = infer(client, "unbatched", np.array([count], np.float32), 61, flags)
        assert answer.as_numpy("y").tolist() == [count * (count + 1) / 2]
        answer = infer(client, "previous", np.array([[texts[count].encode()]], np.object_), 71, flags)
        assert answer.as_numpy("y")[0, 0].decode() == texts[count - 1]


@pytest.mark.server
def test_a_start_that_a_queue_limit_refuses_ends_what_was_there(client: Any) -> None:
    """32 sequences are begun again together, until some are refused: those have no state, and the others go on."""
    sequences = range(81, 113)
    for sequence in sequences:
        assert summed(client, "limited", 2, sequence, START)[0] == 2
    with ThreadPoolExecutor(len(sequences)) as threads:
        for _ in range(ROUNDS):
            begun = list(threads.map(lambda each: summed(client, "limited", 2, each, START), sequences))
            if refused := any("queue_limit_ms: refused" in answer for answer in begun):
                break
    assert refused
    for sequence, answer in zip(sequences, begun, strict=True):
        after = summed(client, "limited", 2, sequence)
        assert after[0] == 4 if answer[0] == 2 else f"the state of sequence {sequence} is not in this" in after


BAD_RUN, BAD_READ, BAD_EVER = 7, 8, 9


class Adder:
    """An executor whose graph gives y = S + x, and S = y, with values that fail in the graph, and in any batch."""

    outputs = ("y", "S2")

    def run(self, requests: Sequence[Any]) -> list[Any]:
        if any(request["x"] == BAD_RUN for request in requests):
            raise RuntimeError("the graph")
        return [[request["S"] + request["x"]] * 2 for request in requests]

    def faults(self, requests: Sequence[Any]) -> dict[int, ValueError]:
        return {index: ValueError("x") for index, request in enumerate(requests) if request["x"] == BAD_EVER}


class Request:
    """Triton sends undefined states with a request of a sequence, since it keeps none of a Python backend."""

    def __init__(self, sequence: int | str, flags: int = 0, x: Any = 1) -> None:
        self.correlation_id, self.flags, self.x = lambda: sequence, lambda: flags, x


class Adding:
    """Two slots, so the states of four sequences are kept."""

    def __init__(self) -> None:
        state = {"input_name": "S", "output_name": "S2", "data_type": "TYPE_FP32"}
        made = config(max_batch_size=2, output=[{"name": "y"}], sequence_batching={"state": [state]})
        adder: Any = Adder()
        self.states = States(made, adder)
        self._read = self.states.reader(self._tensors)

    @staticmethod
    def _tensors(request: Request) -> dict[str, Any]:
        if request.x == BAD_READ:
            raise ValueError("unreadable")
        return {"x": np.full((1, 1), request.x), "S": np.full((1, 1), 99.0)}

    def run(self, *requests: Request) -> list[float]:
        return [answer[0].item() for answer in self.states.run([*map(self._read, requests)])]

    def faults(self, *requests: Request) -> list[int]:
        return list(self.states.faults([*map(self._read, requests)]))


def test_the_newest_sequences_are_kept() -> None:
    """The one that was left idle first is not, and says so; a request without a sequence has no state."""
    adding = Adding()
    assert adding.run(*(Request(number, START) for number in (1, 2, 3, 4))) == [1, 1, 1, 1]
    assert adding.run(Request(1), Request(2)) == [2, 2]
    assert adding.run(Request(5, START)) == [1]
    with pytest.raises(LostStateError, match=r"state of sequence 3 is not in this instance.*4 newer"):
        adding.run(Request(3))
    assert adding.run(Request(4), Request(1, END), Request("", 0), Request(0)) == [2, 3, 1, 1]
    with pytest.raises(LostStateError):
        adding.run(Request(1))
    assert adding.run(Request(2), Request(4), Request(5)) == [3, 3, 2]


ENDS: dict[str, Callable[[Adding, int], object]] = {
    "the graph fails": lambda adding, number: adding.run(Request(number, END, BAD_RUN)),
    "it cannot be read": lambda adding, number: adding.run(Request(number, END, BAD_READ)),
    "it cannot run in any batch": lambda adding, number: adding.faults(Request("a"), Request(number, END, BAD_EVER)),
    "a queue limit refuses it": lambda adding, number: adding.states.leave([Request(number, END)]),
}


@pytest.mark.parametrize("end", ENDS)
def test_sequences_whose_end_fails_take_no_place_of_live_ones(end: str) -> None:
    """Eight of them come between two requests of others, and none leaves its state to one with its id."""
    adding = Adding()
    assert adding.run(Request("a", START), Request("b", START)) == [1, 1]
    for number in range(10, 18):
        assert adding.run(Request(number, START)) == [1]
        with contextlib.suppress(RuntimeError, ValueError):
            ENDS[end](adding, number)
        with pytest.raises(LostStateError):
            adding.run(Request(number))
    assert adding.run(Request("a"), Request("b")) == [2, 2]


@pytest.mark.parametrize("refused", [False, True])
def test_a_start_that_fails_ends_what_was_there(refused: bool) -> None:
    """Triton has begun the sequence again, so its next request must not get the state of the one before."""
    adding = Adding()
    assert adding.run(Request(1, START)) == [1]
    if refused:
        adding.states.leave([Request(1, START)])
    else:
        with pytest.raises(ValueError, match="unreadable"):
            adding.run(Request(1, START, BAD_READ))
    with pytest.raises(LostStateError):
        adding.run(Request(1))


WIDTH, SLOTS = 8, 4
TYPES = {"S": ("FP32", np.float32), "H": ("FP16", np.float16), "B": ("BOOL", np.bool_)}


@pytest.fixture(scope="module")
def session() -> onnxruntime.InferenceSession:
    """Three states, each of another type; y is of all, and an x above 3 is outside the table."""
    graph = f"""g (float[b, {WIDTH}] x, float[b, {WIDTH}] S, float16[b, {WIDTH}] H, bool[b, {WIDTH}] B)
=> (float[b, {WIDTH}] y, float[b, {WIDTH}] S2, float16[b, {WIDTH}] H2, bool[b, {WIDTH}] B2)
<float[4] table = {{0.3, -1.2, 0.7, 2.1}}, float zero = {{0}}> {{
  index = Cast <to = 6> (x)
  taken = Gather(table, index)
  sum = Add(taken, S)
  S2 = Sin(sum)
  half = Cast <to = 10> (S2)
  H2 = Add(H, half)
  positive = Greater(S2, zero)
  B2 = Xor(positive, B)
  wide = Cast <to = 1> (H2)
  y = Where(B2, wide, S2)
}}"""
    return onnxruntime.InferenceSession(model_of(graph).SerializeToString(), providers=["CPUExecutionProvider"])


class ByHand:
    """One sequence alone: the answers, and the states that the next request gets."""

    def __init__(self, session: onnxruntime.InferenceSession, left: int) -> None:
        self._session, self.left = session, left
        self._states = {name: np.zeros((1, WIDTH), kind) for name, (_, kind) in TYPES.items()}

    def answer(self, x: Array) -> bytes | None:
        """The bytes of y; None if the graph refuses x, which changes no state."""
        try:
            y, *states = self._session.run(["y", "S2", "H2", "B2"], {"x": x, **self._states})
        except Exception:
            return None
        self._states = dict(zip(TYPES, states, strict=True))
        return bytes(y.tobytes())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_random_batches_answer_as_each_sequence_alone(session: onnxruntime.InferenceSession, seed: int) -> None:
    """Bit by bit, at most as many sequences at a time as there are slots; some begin again, and some requests fail."""
    kept = [
        {"input_name": name, "output_name": f"{name}2", "data_type": f"TYPE_{kind}", "dims": [WIDTH]}
        for name, (kind, _) in TYPES.items()
    ]
    batching = {"direct": {}, "state": kept}
    tensors = {"input": [tensor("x", [WIDTH])], "output": [tensor("y", [WIDTH])]}
    made = config(max_batch_size=SLOTS, sequence_batching=batching, **tensors)
    states = States(made, Executor(with_states(made), session))
    undefined = {name: np.ones((1, WIDTH), kind) for name, (_, kind) in TYPES.items()}
    read = states.reader(lambda request: {"x": request.x, **undefined})
    rng = random.Random(seed)
    live = dict[int | str, ByHand]()
    for step in range(60):
        requests, expected = list[Request](), list[bytes | None]()
        while len(live) < SLOTS:
            number = step * 10 + len(live) + 1
            live[number if rng.random() < 0.5 else f"text {number}"] = ByHand(session, 0)
        for sequence in rng.sample(list(live), rng.randint(1, SLOTS)):
            begins = not live[sequence].left or rng.random() < 0.1
            one = live[sequence] = ByHand(session, rng.randint(1, 6)) if begins else live[sequence]
            one.left -= 1
            x = np.array([rng.choices(range(9 if rng.random() < 0.05 else 4), k=WIDTH)], np.float32)
            requests.append(Request(sequence, START * begins | END * (not one.left), x))
            expected.append(one.answer(x))
            if not one.left:
                del live[sequence]
        got = isolate(requests, lambda some: states.run([*map(read, some)]))
        assert [None if isinstance(each, Exception) else each[0].tobytes() for each in got] == expected
