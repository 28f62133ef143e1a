"""Requests of different length in one batch of an unmodified graph: padded, masked, and cut back."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from backend_inputs import Node, config, refusals, tensor
from executor import Executor, NanError
from hypothesis import given
from hypothesis import strategies as st
from padded import LengthError, Padded
from padded_settings import PaddedSettings

TOKENS, TYPES = (Node(name, ["batch", "length"], "tensor(int64)") for name in ("tokens", "types"))
MASK = Node("mask", ["batch", "length"])
IMAGE = Node("image", ["batch", 3, "height", "width"])
IMAGES = tensor("image", [3, -1, -1], allow_ragged_batch=True)
EACH = tensor("each", [-1, 4])
MANY_DIGITS = 5000 * "9"


def tokens_of(data_type: str = "INT64", name: str = "tokens") -> dict[str, Any]:
    return tensor(name, [-1], data_type, allow_ragged_batch=True)


def made(parameters: dict[str, str], *inputs: dict[str, Any]) -> dict[str, Any]:
    return config(parameters, input=list(inputs) or [tokens_of()], output=[EACH])


def read(parameters: dict[str, str], *inputs: dict[str, Any]) -> PaddedSettings | None:
    return PaddedSettings.of(made(parameters, *inputs))


def padded(parameters: dict[str, str], graph: tuple[Node, ...] = (TOKENS,), *inputs: dict[str, Any]) -> Padded:
    found = read(parameters, *inputs)
    assert found is not None
    return Padded(found, graph)


def ones(rows: int, length: int, name: str = "tokens") -> dict[str, Any]:
    return {name: np.ones((rows, length), dtype=np.int64)}


def with_pad(value: str = "0", **parameters: str) -> dict[str, str]:
    return {"pad": f"tokens[1]={value}", **parameters}


REFUSED: dict[str, tuple[Any, ...]] = {
    "pad without an axis": ({"pad": "tokens=0"},),
    "a fill that is no number": (with_pad("zero"),),
    "an input that is not there": ({"pad": "other[1]=0"},),
    "an axis that is not open": ({"pad": "tokens[2]=0"},),
    "an input that is not ragged": (with_pad(), tensor("tokens", [-1], "INT64")),
    "a ragged input that pad does not name": ({"pad": "a[1]=0"}, tokens_of(name="a"), tokens_of(name="b")),
    "an axis that is named twice": ({"pad": "tokens[1]=0, tokens[01]=5"},),
    "texts": (with_pad(), tokens_of("STRING")),
    **{
        f"{value[:12]} in {data_type}": (with_pad(value), tokens_of(data_type))
        for value, data_type in (
            ("0.5", "INT64"),
            ("inf", "INT64"),
            ("9223372036854775808", "INT64"),
            (MANY_DIGITS, "INT64"),
            ("7", "BOOL"),
            ("-1e39", "FP32"),
            ("nan", "FP32"),
            ("1e400", "FP64"),
        )
    },
    "a mask that clients would send": (with_pad(pad_mask="tokens=tokens[1]"),),
    "a mask that is named twice": (with_pad(pad_mask="mask=tokens[1], mask=tokens[1]"),),
    "a cut of an output that is not there": (with_pad(cut="none[1]=tokens[1]"),),
    "a cut of an axis that is not there": (with_pad(cut="each[3]=tokens[1]"),),
    "a cut by an axis that pad does not name": (with_pad(cut="each[1]=other[1]"),),
    "a cut that is named twice": (with_pad(cut="each[1]=tokens[1], each[1]=tokens[1]/2"),),
    "a cut that divides by 5000 digits": (with_pad(cut=f"each[1]=tokens[1]/{MANY_DIGITS}"),),
    "a cut without pad": ({"cut": "each[1]=tokens[1]"},),
    "lengths that are no numbers": (with_pad(pad_lengths="16 many"),),
    "a length of 5000 digits": (with_pad(pad_lengths=MANY_DIGITS),),
    "a longest length of 0": (with_pad(pad_longest="0"),),
    "two longest lengths": (with_pad(pad_longest="64 128"),),
    "lengths above the longest": (with_pad(pad_longest="100", pad_lengths="64 128"),),
    "a longest length without pad": ({"pad_longest": "16"},),
    "lengths with a padding budget": (with_pad(pad_lengths="16", padding_budget="latency"),),
}


def test_a_wrong_parameter_is_refused(golden: Callable[..., None]) -> None:
    golden("backend_pad", refusals(read, REFUSED), masks={"9{100,}": "999..."})
    assert read({}) is None


def test_values_at_the_ends_of_a_type_fill() -> None:
    for data_type, dtype, text in (
        ("FP16", np.float16, "-inf"),
        ("FP32", np.float32, "-3.4028235e38"),
        ("BOOL", np.bool_, "1"),
        ("UINT64", np.uint64, "18446744073709551615"),
        ("INT8", np.int8, "-128"),
    ):
        joiner = padded(with_pad(text), (TOKENS,), tokens_of(data_type))
        joined = joiner.gather([{"tokens": np.zeros((1, length), dtype=dtype)} for length in (1, 2)])["tokens"]
        assert joined[0, 1] == dtype(text if data_type != "BOOL" else 1)


@given(
    shapes=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=5),
    lengths=st.sampled_from(["", "8, 4", "6"]),
)
def test_own_elements_stay_and_the_rest_is_filled(shapes: list[tuple[int, int, int]], lengths: str) -> None:
    """Compared with a loop over rows, twice, as the second batch reuses the buffer of the first."""
    values = {"pad": "image[2]=7, image[3] = 9.5"} | ({"pad_lengths": lengths} if lengths else {})
    joiner = padded(values, (IMAGE,), IMAGES)
    rng = np.random.default_rng(len(shapes))
    for _ in range(2):
        arrays = [rng.normal(size=(rows, 3, height, width)).astype(np.float32) for rows, height, width in shapes]
        joined = joiner.gather([{"image": array} for array in arrays])["image"]
        allowed = [int(word) for word in lengths.split(", ") if word] or [*range(100)]
        high, wide = (min(n for n in allowed if n >= max(a.shape[i] for a in arrays)) for i in (2, 3))
        wanted = []
        for item in (item for array in arrays for item in array):
            wanted.append(np.full((3, high, wide), 7, dtype=np.float32))
            wanted[-1][:, : item.shape[1], :] = 9.5
            wanted[-1][:, : item.shape[1], : item.shape[2]] = item
        np.testing.assert_array_equal(joined, wanted)


def test_a_mask_marks_own_elements_in_the_graphs_type() -> None:
    mask = padded(with_pad(pad_mask="mask=tokens[1]"), (TOKENS, MASK)).gather([ones(2, 1), ones(1, 3)])["mask"]
    assert mask.dtype == np.float32
    assert mask.tolist() == [[1, 0, 0], [1, 0, 0], [1, 1, 1]]


def test_requests_that_cannot_be_padded_are_refused_alone_and_beside_others(golden: Callable[..., None]) -> None:
    """One without elements would be a row of padding only; a shorter input would go unnoticed beside its partner."""
    plain, steps = padded(with_pad()), padded(with_pad(pad_lengths="4 8"))
    two = padded({"pad": "tokens[1]=0, types[1]=0"}, (TOKENS, TYPES), tokens_of(), tokens_of(name="types"))
    right = ones(1, 5) | ones(1, 5, "types")
    assert two.gather([right])["types"].shape == (1, 5)
    assert steps.gather([ones(1, 5)])["tokens"].shape == (1, 8)
    assert (plain.fault(ones(1, 3)), type(plain.fault(ones(1, 0)))) == (None, LengthError)
    cases: dict[str, tuple[Any, ...]] = {
        "no elements": (plain, [ones(1, 0)]),
        "no elements beside another request": (plain, [ones(1, 0), ones(1, 3)]),
        "no elements where lengths are given": (steps, [ones(1, 0)]),
        "more elements than the largest length": (steps, [ones(1, 9)]),
        "more elements than were proved": (padded(with_pad(pad_longest="8")), [ones(1, 9)]),
        "fewer elements than an output needs": (padded(with_pad(cut="each[1]=(tokens[1]-4)/1")), [ones(1, 4)]),
        "two inputs of different length": (two, [right, ones(1, 5) | ones(1, 3, "types")]),
    }
    golden("backend_lengths", refusals(lambda joiner, requests: joiner.gather(requests), cases))


class Roots:
    """A session that answers the square roots of its inputs."""

    def get_inputs(self) -> list[Node]:
        return [Node("tokens", ["batch", "length"])]

    def run(self, names: Any, feed: dict[str, Any], options: Any) -> list[Any]:
        with np.errstate(invalid="ignore"):
            return [np.sqrt(feed["tokens"])]


def test_nan_in_padding_is_no_fault_of_a_request() -> None:
    values = with_pad("-1", pad_lengths="4", cut="each[1]=tokens[1]", nan_outputs="error")
    executor = Executor(made(values, tokens_of("FP32")), Roots())
    right, wrong = ({"tokens": np.array([row], dtype=np.float32)} for row in ([4, 9], [4, -9, 16]))
    assert [[part.tolist() for part in answer] for answer in executor.run([right, right])] == [[[[2, 3]]]] * 2
    for requests in ([wrong], [right, wrong]):
        with pytest.raises(NanError, match="output 'each' holds NaN"):
            executor.run(requests)


def test_outputs_are_cut_to_what_a_request_is_due() -> None:
    """A stride of 4 over 9 and 6 columns leaves 3 and 2 steps of 3; a missing step is an error."""
    values = {"pad": "image[3]=0", "cut": "each[1]=(image[3]+3)/4"}
    joiner = padded(values, (IMAGE,), tensor("image", [3, 8, -1], allow_ragged_batch=True))
    requests = [{"image": np.zeros((1, 3, 8, width), dtype=np.float32)} for width in (9, 6)]
    output = np.arange(2 * 3 * 4).reshape(2, 3, 4)
    first, second = joiner.cut(["each"], [[output[:1]], [output[1:]]], requests)
    assert first[0].shape == (1, 3, 4)
    np.testing.assert_array_equal(second[0], output[1:, :2])
    with pytest.raises(LengthError, match="output 'each' has 2 elements along axis 1 and the request is due 3"):
        joiner.cut(["each"], [[output[:1, :2]]], requests[:1])
