"""Implicit state of ONNX models on a real server, with the answers of an independent calculation."""

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import state_models
import tritonclient.grpc as triton
from bench import Bench
from numpy.typing import NDArray
from state_models import BEGIN, STRATEGIES
from states import LostStateError, Sequenced, States
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from serve.launcher import Server
from serve.policies.queue_limit import QueueLimit

START, END = 1, 2
ROUNDS = 200
"""The first few are answered whole, since the limit learns from them how fast the model is."""
BOTH = pytest.mark.parametrize("strategy", STRATEGIES)


@pytest.fixture(scope="module")
def server(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("states")
    with bench.serving(state_models.build(repository), repository) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(server.grpc_url) as opened:
        yield opened


def infer(client: Any, model: str, x: NDArray[Any], sequence: int | str, flags: int = 0) -> Any:
    tensor = triton.InferInput("x", list(x.shape), np_to_triton_dtype(x.dtype))
    tensor.set_data_from_numpy(x)
    return client.infer(
        model,
        [tensor],
        sequence_id=sequence,
        sequence_start=bool(flags & START),
        sequence_end=bool(flags & END),
    )


def summed(client: Any, model: str, value: float, sequence: int | str, flags: int = 0) -> tuple[float, list[int]]:
    """The sum and the counts that a request of a sequence got."""
    answer = infer(client, model, np.array([[value]], np.float32), sequence, flags)
    assert {output.name for output in answer.get_response().outputs} == {"y", "counted"}
    return answer.as_numpy("y").item(), answer.as_numpy("counted")[0].tolist()


@pytest.mark.server
@BOTH
def test_each_sequence_has_its_own_state(client: Any, strategy: str) -> None:
    """Three sequences of different values and lengths take turns, one of them with an id of text."""
    values: Mapping[int | str, Sequence[int]] = {31: [1, 2, 3, 1], "text": [3, 3, 3, 3, 3, 3], 33: [2, 0, 1, 2, 3]}
    answers: dict[int | str, list[Any]] = {sequence: [] for sequence in values}
    for step in range(6):
        for sequence, own in values.items():
            if step < len(own):
                flags = START * (step == 0) | END * (step == len(own) - 1)
                answers[sequence].append(summed(client, strategy, own[step], sequence, flags))
    for sequence, own in values.items():
        expected = [
            (total, [BEGIN[0] + count, BEGIN[1] + count]) for count, total in enumerate(itertools.accumulate(own), 1)
        ]
        assert answers[sequence] == expected


@pytest.mark.server
@BOTH
def test_a_start_begins_anew(client: Any, strategy: str) -> None:
    assert summed(client, strategy, 3, 7, START)[0] == 3
    assert summed(client, strategy, 2, 7)[0] == 5
    assert summed(client, strategy, 1, 7, START) == (1, [101, 1001])
    assert summed(client, strategy, 1, 7, END) == (2, [102, 1002])
    assert summed(client, strategy, 2, 7, START | END) == (2, [101, 1001])
    with pytest.raises(InferenceServerException, match="must specify the START flag"):
        summed(client, strategy, 1, 7)


@pytest.mark.server
@BOTH
def test_a_failed_request_changes_no_state(client: Any, strategy: str) -> None:
    assert summed(client, strategy, 3, 8, START)[0] == 3
    with pytest.raises(InferenceServerException, match="indices element out of data bounds"):
        summed(client, strategy, 9, 8)
    assert summed(client, strategy, 2, 8, END) == (5, [102, 1002])
    with pytest.raises(InferenceServerException, match="indices element out of data bounds"):
        summed(client, strategy, 9, 8, START)
    assert summed(client, strategy, 2, 8, END) == (2, [101, 1001])


@pytest.mark.server
def test_free_slots_change_no_state(client: Any) -> None:
    """With "direct" Triton fills the slots of idle sequences with empty requests."""
    for sequence in (41, 42, 43):
        assert summed(client, "direct", 1, sequence, START)[0] == 1
    for count in range(2, 6):
        assert summed(client, "direct", 2, 43)[0] == 1 + 2 * (count - 1)
    for sequence in (41, 42):
        assert summed(client, "direct", 3, sequence, END) == (4, [102, 1002])
    assert summed(client, "direct", 0, 43, END)[0] == 9


@pytest.mark.server
def test_a_state_may_grow(client: Any) -> None:
    for count in range(1, 5):
        for sequence in (51, 52):
            x = np.array([[10 * sequence + count]], np.float32)
            flags = START * (count == 1) | END * (count == 4)
            answer = infer(client, "history", x, sequence, flags).as_numpy("y")
            # Triton begins a state of open size with one element.
            assert answer.tolist() == [[0, *(10 * sequence + each for each in range(1, count + 1))]]


@pytest.mark.server
def test_a_model_without_a_batch_axis(client: Any) -> None:
    for count in range(1, 4):
        flags = START * (count == 1) | END * (count == 3)
        answer = infer(client, "unbatched", np.array([count], np.float32), 61, flags)
        assert answer.as_numpy("y").tolist() == [count * (count + 1) / 2]


@pytest.mark.server
def test_a_state_of_texts(client: Any) -> None:
    texts = ["", "première", "two", "three"]
    for count in range(1, 4):
        flags = START * (count == 1) | END * (count == 3)
        answer = infer(client, "previous", np.array([[texts[count].encode()]], np.object_), 71, flags)
        assert answer.as_numpy("y")[0, 0].decode() == texts[count - 1]


def outcome(client: Any, sequence: int, flags: int) -> float | str:
    """The sum after another 2, or why there is none."""
    try:
        return summed(client, "limited", 2, sequence, flags)[0]
    except InferenceServerException as error:
        return "refused" if "queue_limit_ms: refused" in str(error) else str(error)


@pytest.mark.server
def test_a_start_that_a_queue_limit_refuses_ends_what_was_there(client: Any) -> None:
    """32 sequences are begun again together, until some are refused: those have no state, and the others go on."""
    sequences = range(81, 113)
    for sequence in sequences:
        assert outcome(client, sequence, START) == 2
    with ThreadPoolExecutor(len(sequences)) as threads:
        for _ in range(ROUNDS):
            begun = dict(zip(sequences, threads.map(lambda each: outcome(client, each, START), sequences), strict=True))
            if "refused" in begun.values():
                break
    assert set(begun.values()) == {2, "refused"}
    for sequence, answer in begun.items():
        after = outcome(client, sequence, 0)
        assert after == 4 if answer == 2 else f"the state of sequence {sequence} is not in this" in str(after)


class Adder:
    """An executor whose graph gives y = S + x, and S = y."""

    outputs = ("y", "S2")

    def run(self, requests: Sequence[Mapping[str, Any]]) -> list[Any]:
        return [[request["S"] + request["x"]] * 2 for request in requests]

    def faults(self, requests: Sequence[Mapping[str, Any]]) -> dict[int, ValueError]:
        return {}


BAD_RUN, BAD_READ, BAD_EVER = 7, 8, 9


class Picky(Adder):
    """The same, with values that fail when the graph runs, and some that cannot run in any batch."""

    def run(self, requests: Sequence[Mapping[str, Any]]) -> list[Any]:
        if any(request["x"] == BAD_RUN for request in requests):
            raise RuntimeError("the graph")
        return super().run(requests)

    def faults(self, requests: Sequence[Mapping[str, Any]]) -> dict[int, ValueError]:
        return {index: ValueError("x") for index, request in enumerate(requests) if request["x"] == BAD_EVER}


class Request:
    def __init__(self, sequence: int | str, flags: int = 0, x: int = 1) -> None:
        self.correlation_id, self.flags, self.x = lambda: sequence, lambda: flags, x


def read_one(request: Request) -> dict[str, Any]:
    if request.x == BAD_READ:
        raise ValueError("unreadable")
    return {"x": np.full((1, 1), request.x), "S": np.full((1, 1), 99.0)}


CONFIG = {
    "max_batch_size": 2,
    "output": [{"name": "y"}],
    "sequence_batching": {"state": [{"input_name": "S", "output_name": "S2", "data_type": "TYPE_FP32"}]},
}


def test_the_newest_sequences_are_kept() -> None:
    """Two slots: four sequences are kept, the one that was left idle first is not, and says so."""
    states = States(CONFIG, Adder())
    read = states.reader(lambda _: {"x": np.ones((1, 1)), "S": np.full((1, 1), 99.0)})

    def run(*requests: Request) -> list[float]:
        return [answer[0].item() for answer in states.run([*map(read, requests)])]

    assert run(*(Request(number, START) for number in (1, 2, 3, 4))) == [1, 1, 1, 1]
    assert run(Request(1), Request(2)) == [2, 2]
    assert run(Request(5, START)) == [1]
    with pytest.raises(LostStateError, match=r"state of sequence 3 is not in this instance.*4 newer"):
        read(Request(3))
    assert run(Request(4), Request(1, END), Request("", 0), Request(0)) == [2, 3, 1, 1]
    with pytest.raises(LostStateError):
        read(Request(1))
    assert isinstance(read(Request(2)), Sequenced)
    assert run(Request(2), Request(4), Request(5)) == [3, 3, 2]


def test_sequences_that_fail_at_their_end_take_no_place_of_live_ones() -> None:
    """Two slots: four states are kept, and eight sequences of each kind come between two requests of others."""
    states = States(CONFIG, Picky())
    read = states.reader(read_one)

    def run(*requests: Request) -> list[float]:
        return [answer[0].item() for answer in states.run([*map(read, requests)])]

    assert run(Request("a", START), Request("b", START)) == [1, 1]
    for number in range(10, 18):
        with pytest.raises(RuntimeError, match="the graph"):
            run(Request(number, START | END, BAD_RUN))
    assert run(Request("a"), Request("b")) == [2, 2]
    for number in range(20, 28):
        assert run(Request(number, START)) == [1]
        with pytest.raises(RuntimeError, match="the graph"):
            run(Request(number, END, BAD_RUN))
    assert run(Request("a"), Request("b")) == [3, 3]
    for number in range(30, 38):
        assert run(Request(number, START)) == [1]
        with pytest.raises(ValueError, match="unreadable"):
            read(Request(number, END, BAD_READ))
    assert run(Request("a"), Request("b")) == [4, 4]
    for number in range(40, 48):
        assert run(Request(number, START)) == [1]
        assert list(states.faults([*map(read, (Request("a"), Request(number, END, BAD_EVER)))])) == [1]
    assert run(Request("a"), Request("b")) == [5, 5]


def test_a_start_that_cannot_be_read_ends_what_was_there() -> None:
    """Triton has begun the sequence again, so its next request must not get the state of the one before."""
    states = States(CONFIG, Picky())
    read = states.reader(read_one)
    assert states.run([read(Request(1, START))])[0][0].item() == 1
    with pytest.raises(ValueError, match="unreadable"):
        read(Request(1, START, BAD_READ))
    with pytest.raises(LostStateError):
        read(Request(1))


class Refusal:
    """An error, and the response that has it."""

    UNAVAILABLE = 14

    def __init__(self, *_: object, **__: object) -> None:
        pass


TRITON = SimpleNamespace(TritonError=Refusal, InferenceResponse=Refusal)


def test_no_sequence_gets_the_state_of_one_whose_end_was_refused() -> None:
    """A queue limit refuses the end of a sequence, and then the start of another with its id."""
    states = States(CONFIG, Adder())
    read = states.reader(read_one)
    limit = QueueLimit(limit_s=1.0, instances=1, pending=lambda: 0, triton=TRITON)

    def answer(*requests: Request, refused: bool = False) -> None:
        limit._looked_s, limit._excess = time.monotonic() + 60, len(requests) if refused else 0
        limit.apply(requests, lambda those: states.run([*map(read, those)]), states.leave)

    answer(Request(1, START), Request(2, START))
    answer(Request(1, END), Request(2), refused=True)
    answer(Request(2))
    with pytest.raises(LostStateError):
        answer(Request(1))
    answer(Request(2, START), refused=True)
    with pytest.raises(LostStateError):
        answer(Request(2))


def test_a_sequence_goes_on_after_a_failure_of_the_whole_batch() -> None:
    """Each request of a failed batch is run again alone, so the state of the one that ends is still there."""
    states = States(CONFIG, Picky())
    read = states.reader(read_one)
    states.run([*map(read, (Request(1, START), Request(2, START)))])
    with pytest.raises(RuntimeError, match="the graph"):
        states.run([*map(read, (Request(1, END), Request(2, 0, BAD_RUN)))])
    assert states.run([read(Request(1, END))])[0][0].item() == 2
    assert states.run([read(Request(2, START | END, 3))])[0][0].item() == 3
    for sequence in (1, 2):
        with pytest.raises(LostStateError):
            read(Request(sequence))
