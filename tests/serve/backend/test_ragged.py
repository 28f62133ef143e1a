"""Ragged batches: the inputs that a graph gets for them and each request's answer, compared with numpy."""

from collections.abc import Iterator

import numpy as np
import pytest
from batch_inputs import KINDS as ALL_KINDS
from batch_inputs import BatchInput, BatchInputError, batch_inputs
from bench import Bench
from hypothesis import given
from hypothesis import strategies as st
from streams import Stream, counted
from tiny_models import KINDS, ragged_echo

from serve.launcher import Server
from serve.management.statistics import Counters

ROWS = 16
MODELS = ("echo_int32", "echo_fp32", "echo_frames")
EXAMPLE: list[tuple[int, ...]] = [(1, 3), (2, 2), (1, 5)]
"""A, B and C of the backend's README."""


@pytest.fixture(scope="module")
def echo(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("ragged")
    ragged_echo(repository, "echo_int32", data_type="INT32")
    ragged_echo(repository, "echo_fp32", data_type="FP32")
    ragged_echo(repository, "echo_frames", data_type="INT32", dims="-1, 3")
    ragged_echo(repository, "echo_example", rows=4)
    with bench.serving((*MODELS, "echo_example"), repository) as running:
        yield running


@pytest.fixture(scope="module")
def stream(echo: Server) -> Iterator[Stream]:
    with Stream(echo.grpc_url) as opened:
        yield opened


@st.composite
def mixes(draw: st.DrawFn) -> list[tuple[int, int]]:
    """(rows, length) of each request of a batch of exactly ROWS rows, so that it runs at once and alone."""
    mix: list[tuple[int, int]] = []
    while (left := ROWS - sum(rows for rows, _ in mix)) > 0:
        mix.append((draw(st.integers(1, min(4, left))), draw(st.integers(0, 50))))
    return mix


def expected(shapes: list[tuple[int, ...]]) -> dict[str, list[int]]:
    """The six batch inputs, flat, computed one request and one item at a time."""
    seen: dict[str, list[int]] = {name: [] for name in KINDS}
    total = 0
    seen["STARTS"].append(0)
    for rows, *item in shapes:
        count = rows * int(np.prod(item))
        total += count
        seen["COUNT"].append(count)
        seen["ENDS"].append(total)
        seen["STARTS"].append(total)
        seen["LONGEST"] = [max([*seen["LONGEST"], count])]
        for _ in range(rows):
            seen["ITEMS"] += item
            seen["ITEMS_FLAT"] += item
    return seen


def check(server: Server, stream: Stream, model: str, shapes: list[tuple[int, ...]]) -> None:
    rng = np.random.default_rng(len(shapes))
    requests = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    before = Counters.read(server.grpc_url, model).executions
    answers = stream.send(model, [{"X": request} for request in requests])
    # One batch, so every answer saw all requests.
    assert counted(server.grpc_url, model, executions=before + 1).executions == before + 1
    wanted = expected(shapes)
    for request, answer in zip(requests, answers, strict=True):
        assert isinstance(answer, dict), answer
        np.testing.assert_array_equal(answer["DOUBLE"], 2 * request)
        np.testing.assert_array_equal(answer["PAIRS"], np.stack([request, -request], axis=-1))
        for name in KINDS:
            assert answer[f"SEEN_{name}"].tolist() == [wanted[name]] * request.shape[0], name


@pytest.mark.server
@given(mix=mixes(), model=st.sampled_from(MODELS))
def test_six_kinds_and_scatter_equal_numpy(
    stream: Stream, echo: Server, mix: list[tuple[int, int]], model: str
) -> None:
    tail = (3,) if model == "echo_frames" else ()
    check(echo, stream, model, [(rows, length, *tail) for rows, length in mix])


@pytest.mark.server
def test_the_documented_example(stream: Stream, echo: Server) -> None:
    """The numbers of the backend's README."""
    assert expected(EXAMPLE) == {
        "COUNT": [3, 4, 5],
        "ENDS": [3, 7, 12],
        "STARTS": [0, 3, 7, 12],
        "LONGEST": [5],
        "ITEMS": [3, 2, 2, 5],
        "ITEMS_FLAT": [3, 2, 2, 5],
    }
    check(echo, stream, "echo_example", EXAMPLE)


SHAPES = st.integers(1, 3).flatmap(
    lambda rank: st.lists(st.tuples(st.integers(1, 4), *[st.integers(0, 50)] * rank), min_size=1, max_size=8)
)


def batch_input(kind: str, data_type: str = "TYPE_INT32") -> BatchInput:
    return BatchInput(target="t", source="x", kind=kind, data_type=data_type)


@given(shapes=SHAPES, types=st.sampled_from([("TYPE_INT32", np.int32), ("TYPE_FP32", np.float32)]))
def test_all_kinds_equal_a_plain_count(shapes: list[tuple[int, ...]], types: tuple[str, type]) -> None:
    assert {*KINDS.values()} == {*ALL_KINDS}
    (data_type, dtype), wanted = types, expected(shapes)
    for name, kind in KINDS.items():
        made = batch_input(kind, data_type)
        tensor = made.tensor(shapes)
        assert (tensor.ndim, tensor.dtype) == (made.rank, np.dtype(dtype))
        if name == "LONGEST":
            assert tensor.tolist() == [0] * wanted[name][0]  # where the C++ backend gives undefined values
        else:
            assert tensor.reshape(-1).tolist() == wanted[name]


def test_counts_that_a_type_cannot_hold_are_refused() -> None:
    kind = "BATCH_ACCUMULATED_ELEMENT_COUNT"
    fits, too_many = [(1, 2**24)], [(1, 2**24), (1, 1)]
    assert batch_input(kind, "TYPE_FP32").tensor(fits).tolist() == [2**24]
    assert batch_input(kind, "TYPE_INT32").tensor(too_many).tolist() == [2**24, 2**24 + 1]
    with pytest.raises(BatchInputError, match=r"would hold 16777217, and TYPE_FP32 is exact only up to 16777216"):
        batch_input(kind, "TYPE_FP32").tensor(too_many)
    with pytest.raises(BatchInputError, match="TYPE_INT32 is exact only up to 2147483647"):
        batch_input("BATCH_ELEMENT_COUNT").tensor([(2, 2**30)])


def test_every_target_of_an_entry_is_one_batch_input() -> None:
    entry = {"kind": "BATCH_ELEMENT_COUNT", "target_name": ["a", "b"], "data_type": "TYPE_INT32", "source_input": ["x"]}
    assert [each.target for each in batch_inputs({"batch_input": [entry]})] == ["a", "b"]
    assert batch_inputs({}) == []
