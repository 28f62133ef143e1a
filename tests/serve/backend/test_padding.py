"""Ragged batches are split into the cheapest runs, with costs learned from the runs."""

import functools
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backend_inputs import config, refusals, tensor
from bench import Bench
from hypothesis import given
from hypothesis import strategies as st
from latency import PROBES, Latency
from padding import MARGIN, Padding, split
from processes import wait_until
from scrapes import scrape, value
from streams import Stream, counted
from tiny_models import parameters, ragged_padded

Sizes = list[tuple[int, int]]
RAGGED = tensor("x", [-1], allow_ragged_batch=True)


def cheapest(sizes: Sizes, cost: Any) -> float:
    """The least cost over all partitions into sets, by brute force."""

    @functools.cache
    def of(rest: tuple[int, ...]) -> float:
        if not rest:
            return 0.0
        first, *others = rest
        return min(
            price([sizes[index] for index in (first, *more)], cost) + of(tuple(i for i in others if i not in more))
            for count in range(len(rest))
            for more in itertools.combinations(others, count)
        )

    return of(tuple(range(len(sizes))))


def price(run: Sequence[tuple[int, int]], cost: Any) -> float:
    rows, elements = sum(rows for rows, _ in run), sum(rows * length for rows, length in run)
    total: float = cost.prices(max(length for _, length in run))(rows, elements)
    return total


def learned(*truth: float) -> Latency:
    """One that knows the time of every run."""
    latency = Latency()
    latency.coefficients = [*truth]
    return latency


@given(
    sizes=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 50)), min_size=1, max_size=6),
    fixed=st.integers(0, 100),
)
def test_no_partition_is_cheaper(sizes: Sizes, fixed: int) -> None:
    cost = learned(fixed, 0, 0, 1, 0)
    sizes = sorted(sizes, key=lambda size: size[1])
    ends, claimed, whole = split(sizes, cost)
    assert ends[-1] == len(sizes)
    assert whole == price(sizes, cost)
    total = sum(price(sizes[start:end], cost) for start, end in zip([0, *ends], ends, strict=False))
    least = cheapest(sizes, cost)
    assert total == claimed == (least if least < (1 - MARGIN) * whole else whole)


def request(length: int, rows: int = 1) -> dict[str, np.ndarray[Any, Any]]:
    return {"x": np.zeros((rows, length), dtype=np.float32)}


def maybe(values: dict[str, str], x: dict[str, Any] = RAGGED) -> Padding | None:
    return Padding.of(config(values, input=[x]))


def padding(*truth: float) -> Padding:
    """One that has probed, and knows the time of every run if it is given."""
    made = maybe({"padding_budget": "latency"})
    assert made is not None
    if truth:
        made._latency = learned(*truth)
        while made._latency._probes < 2 * PROBES:
            made._latency.probing()
    return made


def groups(budget: Padding, *requests: dict[str, np.ndarray[Any, Any]]) -> list[list[int]]:
    return [list(run.members) for run in budget.runs(requests)]


def test_groups_are_the_shortest_first_and_a_dear_run_is_never_added() -> None:
    batch = request(100), request(3), request(90, rows=2), request(5)
    assert groups(padding(25, 0, 0, 1, 0), *batch) == [[1, 3], [2, 0]]
    assert groups(padding(25, 0, 0, 1, 0), request(7), request(7)) == [[0, 1]]
    assert groups(padding(1000, 0, 0, 1, 0), *batch) == [[0, 1, 2, 3]]


def test_parameters(golden: Callable[..., None]) -> None:
    assert maybe({}) is maybe({"padding_budget": "off"}) is None
    cases: dict[str, tuple[Any, ...]] = {
        "a budget that does not exist": ({"padding_budget": "tokens"},),
        "no ragged input": ({"padding_budget": "latency"}, tensor("x", [-1])),
    }
    golden("backend_padding_budget", refusals(maybe, cases))


@pytest.mark.parametrize(
    "truth",
    [
        (2e-3, 0.0, 0.0, 2e-6, 0.0),
        (1e-4, 3e-5, 0.0, 1e-6, 4e-9),
        (5e-3, 0.0, 0.0, 0.0, 0.0),
        (1e-3, 0.0, 1e-5, 0.0, 4e-8),
    ],
)
def test_the_latency_is_learned_from_noisy_runs(truth: tuple[float, ...]) -> None:
    rng = np.random.default_rng(1)
    latency = Latency()

    def features(rows: int, length: int, filled: float) -> tuple[int, list[float]]:
        elements = round(filled * rows * length)
        return elements, [1, rows, elements, rows * length, rows * length**2]

    for _ in range(400):
        rows, length = int(rng.integers(1, 33)), int(rng.integers(1, 400))
        elements, known = features(rows, length, rng.uniform(0.2, 1))
        # A shared machine only ever makes a run slower, now and then by much.
        slower = 1 + abs(rng.normal(0, 0.03)) + 3 * (rng.random() < 0.02)
        latency.observe(rows, elements, length, float(np.dot(truth, known)) * slower)
    for rows, length, filled in [(1, 300, 1.0), (8, 20, 0.5), (32, 50, 1.0), (32, 400, 0.3)]:
        elements, known = features(rows, length, filled)
        assert latency.prices(length)(rows, elements) == pytest.approx(float(np.dot(truth, known)), rel=0.2)


def test_the_first_batches_are_probed_and_then_only_gain_splits() -> None:
    budget = padding()
    long_tail = [request(20)] * 15 + [request(1000)]
    splits = []
    for _ in range(60):
        splits.append(budget.runs(long_tail))
        for run in splits[-1]:
            budget.observe(run, 1e-3 + 1e-6 * run.rows * run.length)
    assert [len(runs) for runs in splits[:4]] == [1, 2, 1, 2]
    assert groups(budget, *long_tail) == [list(range(15)), [15]]
    even = [request(20)] * 8 + [request(22)] * 8
    assert len(groups(budget, *even)) == 1


def items(answers: Sequence[Any]) -> list[list[float]]:
    assert all(isinstance(answer, dict) for answer in answers), answers
    return [answer["Y"][0].tolist() for answer in answers]


@pytest.mark.server
def test_the_server_runs_a_batch_in_parts(bench: Bench, tmp_path: Path) -> None:
    """The first batch runs whole, the second in two halves, to learn; `Y` has the longest and the number of its run.

    In the third one request fails, so the others run alone, and only that counts.
    """
    delay = "dynamic_batching { max_queue_delay_microseconds: 5000000 }"
    ragged_padded(tmp_path, "parts", config=parameters(padding_budget="latency", nan_outputs="error") + delay)
    ragged_padded(tmp_path, "whole", config=delay)
    lengths = [3, 40, 5, 4, 41, 4, 90, 5]
    requests = [{"X": np.full((1, length), 2, dtype=np.float32)} for length in lengths]
    with bench.serving(("parts", "whole"), tmp_path) as running, Stream(running.grpc_url) as stream:
        answers = [items(stream.send(model, requests)) for model in ("whole", "parts", "parts")]
        # To Triton it is one execution of 8 rows either way.
        assert counted(running.grpc_url, "parts", executions=2).batches == {8: 2}

        def computed(model: str) -> list[float]:
            """Elements of the items that ran, and elements computed for them."""
            page, name = scrape(running.metrics_url), "onnxruntime_ragged_elements_total"
            return [value(page, name, model=model, kind=kind) for kind in ("own", "computed")]

        padded = 8 * 90 + 4 * 5 + 4 * 90
        assert wait_until(lambda: computed("parts") == [2 * sum(lengths), padded], seconds=20)
        failed = stream.send("parts", [*requests[:7], {"X": np.full((1, 5), np.nan, dtype=np.float32)}])
        assert [isinstance(answer, dict) for answer in failed] == [True] * 7 + [False]
        alone = sum(lengths[:7])
        assert wait_until(lambda: computed("parts") == [2 * sum(lengths) + alone, padded + alone], seconds=20)
        assert not any(
            name.startswith("onnxruntime_ragged") and ("model", "whole") in labels
            for name, labels in scrape(running.metrics_url)
        )
    short = sorted(range(8), key=lambda index: lengths[index])[:4]
    assert answers[0] == answers[1] == [[2 * length, 90, 8] for length in lengths]
    assert answers[2] == [[2 * length, 5 if index in short else 90, 4] for index, length in enumerate(lengths)]
