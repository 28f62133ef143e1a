"""The one measure of answers: graphs that mix rows or let padding in are refused, and no others."""

import numpy as np
import onnx
import onnx.parser
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from random_graphs import with_lengths, with_rows
from tiny_models import model_of

from export.add.notes import by_size
from export.graph.axis_proof import Proof
from export.graph.batched import BatchAxisError, Batched, ProofSettings, batched
from export.graph.error_measure import ROUNDINGS, SINGLE, Difference, Measure, Scale
from export.graph.input_values import Range, parse_range, ranges
from export.graph.lengths import check_counts, declared
from export.graph.padding_axes import PaddingError, Variation
from export.graph.padding_proof import Padding, prove
from export.graph.rounding import noise, roundings
from export.graph.source import Source
from triton_batching.terminal import Mistake

# A draw is 0.1 s, and of variable length 0.2 s: 60 graphs in all, 500 in `make test-properties`.
GRAPHS = settings(max_examples=min(settings().max_examples, 250))
SEEDS = st.integers(0, 2**32 - 1)


def by_rows(model: onnx.ModelProto, chosen: dict[str, Range] | None = None, *, largest: int = 8) -> Batched:
    settings = ProofSettings(largest=largest, ranges=chosen or {}, samples=None, tolerance=None)
    return batched(Source(model=model, origin="m.onnx"), settings)


def by_lengths(model: onnx.ModelProto, chosen: dict[str, Range] | None = None, *, length: int = 16) -> Padding:
    valid, variation = ranges(model, chosen or {}, {}), Variation.of(model, {})
    check_counts(model, valid, variation)
    model = declared(model, valid, length)
    return prove(model, valid, length=length, roundings=roundings(model), variation=Variation.of(model, {}))


@pytest.mark.slow
@GRAPHS
@given(SEEDS)
def test_rows_that_mix_are_refused_and_others_are_not(seed: int) -> None:
    model, how = with_rows(seed)
    note(f"rows mix by: {how or 'nothing'}")
    if not how:
        assert not by_rows(model).proof.largest.exceeds
        return
    with pytest.raises(BatchAxisError, match=r"first axis is not a batch axis"):
        by_rows(model)


@pytest.mark.slow
@GRAPHS
@given(SEEDS)
def test_padding_that_reaches_an_answer_is_refused_and_other_is_not(seed: int) -> None:
    model, how = with_lengths(seed)
    note(f"padding reaches the answer by: {how or 'nothing'}")
    if not how:
        assert not by_lengths(model).difference.exceeds
        return
    with pytest.raises(PaddingError, match=r"differs from its answer alone"):
        by_lengths(model)


BOXES = """(float[b, 4] x) => (float[b, 2, 3] y)
<float scale = {8192}, int64[1] one = {1}, int64[1] three = {3}, int64[1] zero = {0}> {
  m = ReduceMean <axes = [0], keepdims = 1> (x)
  d = Sub(x, m)
  s = Sigmoid(d)
  big = Mul(x, scale)
  scores = Slice(s, zero, three, one)
  boxes = Slice(big, zero, three, one)
  a = Unsqueeze(boxes, one)
  b = Unsqueeze(scores, one)
  y = Concat <axis = 1> (a, b)
}"""
SCORES = """(float[b, t] x) => (float[b, 2, t] y) <float scale = {8192}, int64[1] one = {1}> {
  m = ReduceMean <axes = [1], keepdims = 1> (x)
  d = Sub(x, m)
  s = Sigmoid(d)
  big = Mul(x, scale)
  a = Unsqueeze(big, one)
  b = Unsqueeze(s, one)
  y = Concat <axis = 1> (a, b)
}"""
# The mean of a convolution of width 3 over the frames that `number` counts: the last of them sees the frame after it.
FRAMES = """(float[b, t] speech, int32[b] number) => (float[b, 1] y)
<int64 zero = {0}, int64 two = {2}, int64 step = {1}, int64[1] one = {1}, float[1, 1, 3] w = {1, 2, 3},
 float[1] bias = {0.5}> {
  x = Unsqueeze(speech, one)
  before = Conv <kernel_shape = [1]> (x, w1, bias)
  c3 = Conv <kernel_shape = [3], pads = [1, 1]> (before, w)
  c = Squeeze(c3, one)
  shape = Shape(c)
  t = Gather(shape, step)
  places = Range(zero, t, step)
  whole = Cast <to = 7> (number)
  n = Unsqueeze(whole, one)
  own = Less(places, n)
  mask = Cast <to = 1> (own)
  kept = Mul(c, mask)
  sum = ReduceSum(kept, one)
  count = Cast <to = 1> (n)
  y = Div(sum, count)
}"""
SOUND = """(float[b, t] x) => (float[b, 1, f] y) <int64[1] one = {1}> {
  u = Unsqueeze(x, one)
  y = Conv <strides = [160]> (u, w1)
}"""


def parsed(text: str, **constants: list[float]) -> onnx.ModelProto:
    graph = onnx.parser.parse_graph(f"g {text}")
    arrays = {name: np.array(values, dtype=np.float32)[None, None] for name, values in constants.items()}
    graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
    return model_of(graph)


def test_a_score_beside_coordinates_of_thousands_counts() -> None:
    with pytest.raises(BatchAxisError, match=r"m \(ReduceMean\) reduces over axis 0, the batch axis"):
        by_rows(parsed(BOXES))
    with pytest.raises(PaddingError, match=r"m \(ReduceMean\) takes padding into its sum, mean or maximum"):
        by_lengths(parsed(SCORES))


def test_a_length_is_not_guessed() -> None:
    frames = parsed(FRAMES, w1=[2.0])
    with pytest.raises(Mistake, match=r"may be the length of a request or a count.*--range number=speech\[1\]\."):
        by_lengths(frames)
    with pytest.raises(PaddingError, match=r"Conv\) looks beyond the last own element"):
        by_lengths(frames, dict([parse_range("number=speech[1]")]))
    with pytest.raises(Mistake, match=r"number=other\[1\]: no input has an open axis of that name.*: speech\[1\]"):
        by_lengths(frames, dict([parse_range("number=other[1]")]))


def test_lengths_are_tried_until_a_frame_of_sound_is_added() -> None:
    sound = parsed(SOUND, w1=np.random.default_rng(0).standard_normal(400).tolist())
    assert by_rows(sound).proof.open_dim == 512
    assert by_lengths(sound, length=512).parameters["cut"] == "y[2]=(x[1]-240)/160"


HALF_WEIGHTS = """(float[b, 4] x) => (float[b, 4] wide, float[b, 4] narrow) {
  w = Cast <to = 1> (w16)
  wide = MatMul(x, w)
  h = Cast <to = 10> (x)
  i = Neg(h)
  narrow = Cast <to = 1> (i)
}"""


def test_the_tolerance_is_that_of_the_path_to_an_output() -> None:
    """Weights that are kept in FP16 do not make the output of FP32 one of FP16."""
    graph = onnx.parser.parse_graph(f"g {HALF_WEIGHTS}")
    graph.initializer.append(numpy_helper.from_array(np.eye(4, dtype=np.float16), "w16"))
    assert roundings(model_of(graph)) == [SINGLE, ROUNDINGS[TensorProto.FLOAT16]]


BRANCHES = """(float[b, 4] x, bool c) => (float[b, 4] y) {
  y = If (c) <
    then_branch = narrow () => (float[b, 4] t) { h = Cast <to = 10> (x)
      n = Neg(h)
      t = Cast <to = 1> (n) },
    else_branch = wide () => (float[b, 4] e) { e = Neg(x) }>
}"""


def test_a_branch_in_fp16_has_its_tolerance() -> None:
    assert roundings(parsed(BRANCHES)) == [ROUNDINGS[TensorProto.FLOAT16]]


def test_weights_of_bf16_move_by_a_step() -> None:
    graph = onnx.parser.parse_graph("g (float[b, 64] x) => (float[b, 64] y) { w = Cast <to = 1> (w16) y = Mul(x, w) }")
    weights = np.full(64, 1.25, dtype=helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16))
    graph.initializer.append(numpy_helper.from_array(weights, "w16"))
    assert noise(model_of(graph), {"x": np.ones((1, 64), dtype=np.float32)})[0].any()


@given(st.floats(-3, 4), st.floats(-3, 4), st.integers(1, 5))
def test_other_elements_change_nothing(own: float, other: float, rows: int) -> None:
    """An element has the same error beside any others, and in rows and answers of any scale."""
    rng = np.random.default_rng(rows)
    answers = rng.standard_normal((rows + 1, 2)) * [10**own, 10**other]
    wrong = answers.copy()
    wrong[:, 0] += 0.01 * 10**own
    errors = Scale([*answers], SINGLE).errors(wrong, answers)
    alone = Scale([*answers[:, :1]], SINGLE).errors(wrong[:, :1], answers[:, :1])
    np.testing.assert_array_equal(errors, np.concatenate([alone, np.zeros_like(alone)], axis=1))


@pytest.mark.parametrize(
    ("answer", "expected", "text"),
    [
        ([np.nan, 2.0], [np.nan, 2.0], "bit-equal"),
        ([np.nan, 2.0], [1.0, 2.0], "y[0, 0], which is nan and not 1.0"),
        ([np.inf, 2.0], [1.0, 2.0], "y[0, 0], which is inf and not 1.0"),
        ([1.0], [1.0, 2.0], "its shape, [1, 1] and not [1, 2]"),
        ([1], [2], "y[0, 0], which is 1 and not 2"),
        ([b"a"], [b"b"], "y[0, 0], which is b'a' and not b'b'"),
    ],
)
def test_answers_that_are_no_numbers_differ_by_all_or_nothing(answer: object, expected: object, text: str) -> None:
    actual, wanted = (np.array([value], dtype=object if b"a" in answer else None) for value in (answer, expected))  # type: ignore[operator]
    assert str(Measure(["y"], [[wanted]], [SINGLE]).compare([actual], [wanted])) == text


CANCELLING = """(float[b, 64] x) => (float[b, 8] y) <float[64] far = {%s}> {
  shifted = Add(x, far)
  h = MatMul(shifted, w)
  y = Relu(h)
}"""


def test_what_cancels_may_round_more_than_its_size_shows() -> None:
    """As large numbers of which a small one is left; another order of the sum moves it by more than 1e-4 of it."""
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((64, 8))
    graph = onnx.parser.parse_graph(f"g {CANCELLING % ', '.join(['3000'] * 64)}")
    weights = (weights - weights.mean(axis=0)).astype(np.float32)
    graph.initializer.append(numpy_helper.from_array(weights, "w"))
    model = model_of(graph)
    x = rng.uniform(-1, 1, (8, 64)).astype(np.float32)
    shifted = x + np.float32(3000)
    forward = np.maximum(shifted @ weights, 0)
    backward = np.zeros_like(forward)
    for column in range(64):
        backward += shifted[:, [column]] * weights[column]
    backward = np.maximum(backward, 0)
    alone = [[row[None]] for row in forward]
    assert Measure(["y"], alone, [SINGLE]).compare([backward], [forward]).exceeds
    assert not Measure(["y"], alone, [SINGLE], lambda: noise(model, {"x": x})).compare([backward], [forward]).exceeds
    assert Measure(["y"], alone, [SINGLE], lambda: noise(model, {"x": x})).compare([forward + 0.1], [forward]).exceeds


BESIDE = """(float[b, 64] x) => (float[b, 8] y, float[b, 64] z) {
  shifted = Add(x, far)
  v = Identity(w)
  h = MatMul(shifted, v)
  y = Relu(h)
  m = ReduceMean <axes = [0], keepdims = 1> (x)
  z = Sub(x, m)
}"""


def test_a_sum_that_cancels_is_not_named() -> None:
    weights = np.random.default_rng(0).standard_normal((64, 8))
    graph = onnx.parser.parse_graph(f"g {BESIDE}")
    arrays = {"w": weights - weights.mean(axis=0), "far": np.full(64, 3e5)}
    graph.initializer.extend(numpy_helper.from_array(each.astype(np.float32), name) for name, each in arrays.items())
    with pytest.raises(BatchAxisError, match=r"m \(ReduceMean\) reduces over axis 0, the batch axis"):
        by_rows(model_of(graph))


LOUD = """(float[b, 4] x) => (float[b, 4] y) <float five = {5}> {
  most = ReduceMax(x)
  over = Sub(most, five)
  more = Relu(over)
  y = Add(x, more)
}"""


def test_a_graph_that_mixes_only_beyond_a_range_is_proved_for_the_range() -> None:
    with pytest.raises(BatchAxisError, match=r"Only values 10 times the guessed range show it. .*--range NAME=lo:hi"):
        by_rows(parsed(LOUD))
    assert not by_rows(parsed(LOUD), dict([parse_range("x=-1:1")])).proof.largest.error


NINTH = """(float[b, 4] x) => (float[b, 4] y)
<int64[1] eight = {8}, int64[1] nine = {9}, int64[1] zero = {0}> {
  ninth = Slice(x, eight, nine, zero)
  sum = ReduceSum(ninth, zero)
  y = Add(x, sum)
}"""


@pytest.mark.parametrize("operator", ["Exp", "Sqrt", "Log"])
def test_values_with_no_finite_answer_refuse_nothing(operator: str) -> None:
    assert not by_rows(parsed(f"(float[b, 64] x) => (float[b, 64] y) {{ y = {operator}(x) }}")).proof.largest.exceeds


PARSED = """<ir_version: 8, opset_import: ["" : 17]>
agraph ({kind}[N,4] x) => (float[N,4] y)
<int64 zero = {{0}}, int64[1] one = {{1}}, float ten = {{10.0}}, float none = {{0.0}}>
{{ {nodes} }}"""


@pytest.mark.parametrize(
    ("kind", "nodes"),
    [
        # Rows after one of zeros become 0.
        (
            "float",
            "a = Abs(x) m = ReduceSum(a, one) e = Equal(m, none) c = Cast<to=1>(e) d = CumSum(c, zero) "
            "g = Greater(d, none) y = Where(g, none, x)",
        ),
        # Whole numbers are divided by the largest of the batch, if that is above 10.
        ("int32", "f = Cast<to=1>(x) m = ReduceMax<axes=[0]>(f) n = Max(m, ten) y = Div(f, n)"),
    ],
)
def test_a_graph_that_mixes_after_some_rows_or_for_larger_numbers_is_refused(kind: str, nodes: str) -> None:
    model = onnx.parser.parse_model(PARSED.format(kind=kind, nodes=nodes))
    with pytest.raises(BatchAxisError):
        by_rows(model)


def test_a_graph_that_mixes_from_the_ninth_row_on_is_refused() -> None:
    with pytest.raises(BatchAxisError, match=r"of 32 rows differs"):
        by_rows(parsed(NINTH), largest=64)


def test_each_batch_size_is_said() -> None:
    found = {1: Difference(), 2: Difference(error=2e-7, output="y", element=(1, 2)), 3: Difference()}
    assert list(by_size(Proof(differences=found, varied=True, open_dim=None))) == [
        "answers in batches of 1, 3 are bit-equal to those alone",
        "answers in batches of 2 differ from those alone by 2.0e-07 of what y[1, 2] varies by (limit 1e-04)",
    ]
