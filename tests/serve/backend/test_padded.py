"""Requests of different length in one batch of an unmodified graph: padded, masked, and cut back."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gpu
import numpy as np
import onnxruntime
import pytest
from executor import Executor, NanError
from hypothesis import given
from hypothesis import strategies as st
from padded import LengthError, Padded
from padded_models import TABLE, encoder, expected
from padded_settings import Axis, Cut, PaddedSettings
from parameters import ParameterError


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """A graph's input, as onnxruntime describes it."""

    name: str
    shape: list[int | str | None]
    type: str = "tensor(int64)"


TOKENS = Tensor(name="tokens", shape=["batch", "length"])
TYPES = Tensor(name="types", shape=["batch", "length"])
GRAPH_MASK = Tensor(name="mask", shape=["batch", "length"], type="tensor(float)")
IMAGE = Tensor(name="image", shape=["batch", 3, "height", "width"], type="tensor(float)")


def declared(name: str, dims: list[int], data_type: str = "TYPE_INT64", *, ragged: bool = True) -> dict[str, Any]:
    return {"name": name, "data_type": data_type, "dims": dims, "allow_ragged_batch": ragged}


def config(values: dict[str, str], *inputs: dict[str, Any], max_batch_size: int = 8) -> dict[str, Any]:
    return {
        "name": "encoder",
        "max_batch_size": max_batch_size,
        "input": list(inputs) or [declared("tokens", [-1])],
        "output": [{"name": "each", "data_type": "TYPE_FP32", "dims": [-1, 4]}],
        "parameters": {key: {"string_value": value} for key, value in values.items()},
    }


def padded(values: dict[str, str], *graph: Tensor, inputs: tuple[dict[str, Any], ...] = ()) -> Padded:
    settings = PaddedSettings.of(config(values, *inputs))
    assert settings is not None
    return Padded(settings, graph or (TOKENS,))


def test_the_parameters_are_read() -> None:
    read = PaddedSettings.of(
        config(
            {
                "pad": "image[2]=0, image[3] = -1.5",
                "cut": "each[1]=(image[3]+3)/4",
                "pad_mask": "mask=image[3]",
                "pad_lengths": "64, 16 32",
            },
            declared("image", [3, -1, -1], "TYPE_FP32"),
        )
    )
    height, width = Axis(tensor="image", index=2), Axis(tensor="image", index=3)
    assert read == PaddedSettings(
        fills={height: 0, width: -1.5},
        masks={"mask": width},
        cuts={"each": [Cut(index=1, source=width, moved=3, stride=4)]},
        lengths=(16, 32, 64),
    )
    assert PaddedSettings.of(config({})) is None


@pytest.mark.parametrize(
    ("values", "inputs", "message"),
    [
        ({"pad": "tokens=0"}, (), r"whose part 'tokens=0' does not have the form tokens\[1\]=0"),
        ({"pad": "tokens[1]=zero"}, (), "whose value 'zero' is no number"),
        ({"pad": "other[1]=0"}, (), "and no input 'other'. The inputs are: tokens"),
        ({"pad": "tokens[2]=0"}, (), r"with dims \[-1\], which are not -1 for axis 2"),
        ({"pad": "tokens[1]=0"}, (declared("tokens", [-1], ragged=False),), "without allow_ragged_batch"),
        ({"pad": "tokens[1]=0"}, (declared("tokens", [-1], "TYPE_STRING"),), "of TYPE_STRING, which cannot be padded"),
        ({"pad": "a[1]=0"}, (declared("a", [-1]), declared("b", [-1])), r"ragged inputs that it does not name \(b\)"),
        ({"pad": "tokens[1]=0", "pad_mask": "tokens=tokens[1]"}, (), "and an input 'tokens', which clients would send"),
        ({"pad": "tokens[1]=0", "cut": "none[1]=tokens[1]"}, (), "and no output 'none'. The outputs are: each"),
        ({"pad": "tokens[1]=0", "cut": "each[3]=tokens[1]"}, (), "'each' has no axis 3 beside the batch axis"),
        ({"pad": "tokens[1]=0", "cut": "each[1]=other[1]"}, (), r"pad does not name other\[1\]"),
        ({"pad": "tokens[1]=0", "pad_lengths": "16 many"}, (), "which are not whole numbers of 1 or more"),
        ({"pad": "tokens[1]=0.5"}, (), "of TYPE_INT64, which cannot hold 0.5"),
        ({"pad": "tokens[1]=-1"}, (declared("tokens", [-1], "TYPE_UINT8"),), "of TYPE_UINT8, which cannot hold -1"),
        (
            {"pad": "tokens[1]=0", "pad_lengths": "16", "padding_budget": "latency"},
            (),
            "has padding_budget, and pad_lengths or several axes in pad",
        ),
        ({"cut": "each[1]=tokens[1]"}, (), "and no parameter pad, so nothing is padded"),
        ({"pad": "tokens[1]=inf"}, (), "of TYPE_INT64, which cannot hold inf"),
        ({"pad": "tokens[1]=nan"}, (), "whose value 'nan' is no number"),
        ({"pad": "tokens[1]=1e400"}, (), "whose value '1e400' no type can hold"),
        ({"pad": f"tokens[1]={5000 * '9'}"}, (), "does not have the form"),
        ({"pad": "tokens[1]=9223372036854775808"}, (), "of TYPE_INT64, which cannot hold"),
        ({"pad": "tokens[1]=nan"}, (declared("tokens", [-1], "TYPE_FP32"),), "whose value 'nan' is no number"),
        ({"pad": "tokens[1]=1e400"}, (declared("tokens", [-1], "TYPE_FP64"),), "whose value '1e400' no type can hold"),
        (
            {"pad": "tokens[1]=1e10"},
            (declared("tokens", [-1], "TYPE_FP16"),),
            r"of TYPE_FP16, which cannot hold 1e\+10",
        ),
        ({"pad": "tokens[1]=-1e39"}, (declared("tokens", [-1], "TYPE_FP32"),), r"of TYPE_FP32, .* hold -1e\+39"),
        ({"pad": "tokens[1]=7"}, (declared("tokens", [-1], "TYPE_BOOL"),), "of TYPE_BOOL, which cannot hold 7"),
        ({"pad": f"tokens[{5000 * '9'}]=0"}, (), "does not have the form"),
        ({"pad": "tokens[1]=0", "pad_lengths": 5000 * "9"}, (), "whole numbers of 1 or more, of 9 digits at most"),
        ({"pad": "tokens[1]=0", "cut": f"each[1]=(tokens[1]+{5000 * '9'})"}, (), "does not have the form"),
        ({"pad": "tokens[1]=0", "cut": f"each[1]=tokens[1]/{5000 * '9'}"}, (), "does not have the form"),
        ({"pad": "tokens[1]=0, tokens[01]=5"}, (), r"which names tokens\[1\] twice"),
        ({"pad": "tokens[1]=0", "cut": "each[1]=tokens[1], each[1]=tokens[1]/2"}, (), r"which names each\[1\] twice"),
        ({"pad": "tokens[1]=0", "pad_mask": "mask=tokens[1], mask=tokens[1]"}, (), "which names mask twice"),
    ],
)
def test_a_wrong_parameter_is_refused(values: dict[str, str], inputs: tuple[dict[str, Any], ...], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        PaddedSettings.of(config(values, *inputs))


@pytest.mark.parametrize(
    ("data_type", "dtype", "text", "fill"),
    [
        ("TYPE_FP16", "float16", "-inf", -np.inf),
        ("TYPE_FP16", "float16", "-65504", -65504),
        ("TYPE_FP32", "float32", "-3.4028235e38", np.finfo(np.float32).min),
        ("TYPE_FP64", "float64", "1e300", 1e300),
        ("TYPE_BOOL", "bool", "1", True),
        ("TYPE_UINT64", "uint64", "18446744073709551615", 2**64 - 1),
        ("TYPE_INT8", "int8", "-128", -128),
    ],
)
def test_values_at_the_ends_of_a_type_fill(data_type: str, dtype: str, text: str, fill: float) -> None:
    joiner = padded({"pad": f"tokens[1]={text}"}, inputs=(declared("tokens", [-1], data_type),))
    joined = joiner.gather([{"tokens": np.zeros((1, length), dtype=dtype)} for length in (1, 2)])["tokens"]
    assert joined[0, 1] == np.dtype(dtype).type(fill)


@given(
    shapes=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=5),
    lengths=st.sampled_from(["", "4 8", "6"]),
)
def test_own_elements_stay_and_the_rest_is_filled(shapes: list[tuple[int, int, int]], lengths: str) -> None:
    """Compared with a loop over rows, twice, as the second batch reuses the buffer of the first."""
    values = {"pad": "image[2]=7,image[3]=9"} | ({"pad_lengths": lengths} if lengths else {})
    joiner = padded(values, IMAGE, inputs=(declared("image", [3, -1, -1], "TYPE_FP32"),))
    rng = np.random.default_rng(len(shapes))
    for _ in range(2):
        arrays = [rng.normal(size=(rows, 3, height, width)).astype(np.float32) for rows, height, width in shapes]
        joined = joiner.gather([{"image": array} for array in arrays])["image"]
        allowed = [int(word) for word in lengths.split()] or [*range(100)]
        high, wide = (min(n for n in allowed if n >= max(a.shape[i] for a in arrays)) for i in (2, 3))
        assert joined.shape == (sum(rows for rows, _, _ in shapes), 3, high, wide)
        row = 0
        for array in arrays:
            for item in array:
                wanted = np.full((3, high, wide), 7, dtype=np.float32)
                wanted[:, : item.shape[1], :] = 9
                wanted[:, : item.shape[1], : item.shape[2]] = item
                np.testing.assert_array_equal(joined[row], wanted)
                row += 1


def test_a_mask_marks_own_elements_in_the_graphs_type() -> None:
    joiner = padded({"pad": "tokens[1]=0", "pad_mask": "mask=tokens[1]"}, TOKENS, GRAPH_MASK)
    requests = [{"tokens": np.ones((2, 1), dtype=np.int64)}, {"tokens": np.ones((1, 3), dtype=np.int64)}]
    mask = joiner.gather(requests)["mask"]
    assert mask.dtype == np.float32
    assert mask.tolist() == [[1, 0, 0], [1, 0, 0], [1, 1, 1]]


def test_inputs_with_one_dimension_in_the_graph_need_one_length() -> None:
    """Padded to the same size, a shorter one would go unnoticed."""
    joiner = padded(
        {"pad": "tokens[1]=0, types[1]=0"}, TOKENS, TYPES, inputs=(declared("tokens", [-1]), declared("types", [-1]))
    )
    right = {"tokens": np.ones((1, 5), dtype=np.int64), "types": np.ones((1, 5), dtype=np.int64)}
    wrong = {"tokens": np.ones((1, 5), dtype=np.int64), "types": np.ones((1, 3), dtype=np.int64)}
    assert joiner.gather([right])["types"].shape == (1, 5)
    with pytest.raises(LengthError, match="input 'types' has 3 elements along axis 1 and 'tokens' has 5"):
        joiner.gather([right, wrong])


def test_a_request_beyond_the_largest_length_is_refused() -> None:
    joiner = padded({"pad": "tokens[1]=0", "pad_lengths": "4 8"})
    assert joiner.gather([{"tokens": np.ones((1, 5), dtype=np.int64)}])["tokens"].shape == (1, 8)
    with pytest.raises(LengthError, match=r"has 9 elements along a padded axis, and the largest .* is 8"):
        joiner.gather([{"tokens": np.ones((1, 9), dtype=np.int64)}])


@pytest.mark.parametrize("lengths", ["", "4 8"])
def test_a_request_without_elements_is_refused_alone_and_beside_others(lengths: str) -> None:
    """Alone it would run with length 0, and beside others as a row of padding only, which has another answer."""
    joiner = padded({"pad": "tokens[1]=0"} | ({"pad_lengths": lengths} if lengths else {}))
    empty, other = ({"tokens": np.ones((1, length), dtype=np.int64)} for length in (0, 3))
    assert isinstance(joiner.fault(empty), LengthError)
    assert joiner.fault(other) is None
    for requests in ([empty], [empty, other]):
        with pytest.raises(LengthError, match="input 'tokens' has no elements along axis 1, which is padded"):
            joiner.gather(requests)


class Roots:
    """A session that answers the square roots of its inputs."""

    def get_inputs(self) -> list[Tensor]:
        return [Tensor(name="tokens", shape=["batch", "length"], type="tensor(float)")]

    def run(self, names: Any, feed: dict[str, Any], options: Any) -> list[Any]:
        with np.errstate(invalid="ignore"):
            return [np.sqrt(feed["tokens"])]


def test_nan_in_padding_is_no_fault_of_a_request() -> None:
    values = {"pad": "tokens[1]=-1", "pad_lengths": "4", "cut": "each[1]=tokens[1]", "nan_outputs": "error"}
    made = config(values, declared("tokens", [-1], "TYPE_FP32"))
    executor = Executor(made, Roots())
    right, wrong = ({"tokens": np.array([row], dtype=np.float32)} for row in ([4, 9], [4, -9, 16]))
    assert [[part.tolist() for part in answer] for answer in executor.run([right, right])] == [[[[2, 3]]]] * 2
    for requests in ([wrong], [right, wrong]):
        with pytest.raises(NanError, match="output 'each' holds NaN"):
            executor.run(requests)


def test_outputs_are_cut_to_what_a_request_is_due() -> None:
    """A stride of 4 over 9 and 6 columns leaves 3 and 2 steps of 3; a missing step is an error."""
    joiner = padded(
        {"pad": "image[3]=0", "cut": "each[1]=(image[3]+3)/4"},
        IMAGE,
        inputs=(declared("image", [3, 8, -1], "TYPE_FP32"),),
    )
    requests = [{"image": np.zeros((1, 3, 8, width), dtype=np.float32)} for width in (9, 6)]
    output = np.arange(2 * 3 * 4).reshape(2, 3, 4)
    first, second = joiner.cut(["each"], [[output[:1]], [output[1:]]], requests)
    assert first[0].shape == (1, 3, 4)
    np.testing.assert_array_equal(second[0], output[1:, :2])
    with pytest.raises(LengthError, match="output 'each' has 2 elements along axis 1 and the request is due 3"):
        joiner.cut(["each"], [[output[:1, :2]]], requests[:1])


def test_a_gpu_instance_binds_padded_inputs_and_masks_from_page_locked_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CPU in place of the device, and an allocator that notes what it gave."""
    pinned: list[Any] = []
    bound: list[dict[str, Any]] = []

    def allocate(size: int, dtype: Any) -> Any:
        pinned.append(np.empty(size, dtype=dtype))
        return pinned[-1]

    class OnCpu(gpu.BoundSession):
        def __init__(self, session: Any, device: str, device_id: int) -> None:
            assert (device, device_id) == ("cuda", 1)
            super().__init__(session, "cpu", 0)

        def run(self, names: Any, feed: dict[str, Any], options: Any = None) -> Any:
            bound.append(feed)
            return super().run(names, feed, options)

    monkeypatch.setattr(gpu, "pinned_memory", lambda: allocate)
    monkeypatch.setattr(gpu, "BoundSession", OnCpu)
    path = encoder(tmp_path) / "1" / "model.onnx"
    opened = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    made = config({"pad": "tokens[1]=0", "pad_mask": "mask=tokens[1]", "cut": "each[1]=tokens[1]"})
    made["output"].append({"name": "pooled", "data_type": "TYPE_FP32", "dims": [4]})
    args = {"model_instance_kind": "GPU", "model_instance_device_id": "1"}
    executor = Executor.of(made, opened, None, args)
    rng = np.random.default_rng(4)
    for lengths in ((9, 2, 5), (1, 7)):
        tokens = [rng.integers(0, len(TABLE), size=(1, length)) for length in lengths]
        for each, (items, pooled) in zip(tokens, executor.run([{"tokens": one} for one in tokens]), strict=True):
            np.testing.assert_allclose(items.astype(np.float32), expected(each)["each"], rtol=1e-5)
            np.testing.assert_allclose(pooled.astype(np.float32), expected(each)["pooled"], rtol=1e-5)
        assert all(any(np.shares_memory(array, one) for one in pinned) for array in bound[-1].values())
    assert len(pinned) == 2  # one buffer for each input, which the second batch reuses
