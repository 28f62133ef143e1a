"""Every value passed to `predict` ends in an answer or a `ClientError`, with every client and transport."""

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from client_calls import address
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from clients import AsyncModel, ClientError, Model
from serve.launcher import Server

pytestmark = pytest.mark.server

WAYS = [("blocking", "http"), ("blocking", "grpc"), ("async", "auto"), ("coalesce", "shared_memory")]
Ask = Callable[..., Any]
ONE = np.ones((1, 1), np.float32)
HALF = "a\ud800b"
"""Half of a character: no UTF-8 has it."""


@pytest.fixture(scope="module", params=WAYS, ids="-".join)
def ask(client_server: Server, request: pytest.FixtureRequest) -> Iterator[Ask]:
    """One call of `asked`, or of the model that `of` names: `queued` takes deadlines along, `texts` takes strings."""
    way, transport = request.param
    url = address(client_server, transport)
    names = ("asked", "queued", "texts")
    with asyncio.Runner() as runner:
        if way == "blocking":
            blocking = {name: Model(name, url=url, transport=transport) for name in names}
            yield lambda *arrays, of="asked", **terms: blocking[of].predict(*arrays, **terms)
            for model in blocking.values():
                model.close()
            return
        models = {name: AsyncModel(name, url=url, transport=transport, coalesce=way == "coalesce") for name in names}

        async def together(coroutines: list[Any]) -> None:
            await asyncio.gather(*coroutines)

        runner.run(together([model.__aenter__() for model in models.values()]))
        yield lambda *arrays, of="asked", **terms: runner.run(models[of].predict(*arrays, **terms))
        runner.run(together([model.close() for model in models.values()]))


odd_texts = st.one_of(st.text(st.characters(), max_size=5), st.sampled_from([HALF, "\0", "", "x" * 1000]))
# By their exponents: hypothesis writes down what it chooses from, and Python refuses to write the last one.
integers = st.one_of(
    st.integers(),
    st.sampled_from([-1, 1 << 63, (1 << 63) - 1, -(1 << 63) - 1, 1 << 64]),
    st.just(5000).map(lambda digits: 10**digits),
)
numbers = st.one_of(integers, st.floats(), st.fractions(), st.booleans(), st.none())
odd = st.one_of(numbers, odd_texts, st.binary(max_size=3), st.lists(st.integers(0, 9), max_size=2))
shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
kinds = st.sampled_from(["f4", ">f4", "f8", "i8", "u1", "?", "S3", "U2", "O", "c8", "M8[s]", "i4,f4", "V2"])
arrays = st.one_of(
    st.just(ONE),
    st.builds(lambda shape, kind: np.zeros(shape, kind), shapes, kinds),
    st.lists(st.one_of(odd, st.lists(odd, max_size=2)), max_size=3),
    odd,
    st.dictionaries(st.sampled_from(["x", "y", HALF]), st.just(ONE)),
)
terms = st.fixed_dictionaries(
    {},
    optional={
        "timeout_s": odd,
        "priority": odd,
        "request_id": odd,
        "parameters": st.one_of(odd, st.dictionaries(st.one_of(odd_texts, integers), odd, max_size=2)),
    },
)


# Of each way there is one server for all examples.
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.one_of(st.just([ONE]), st.lists(arrays, max_size=2)), terms)
@example([ONE], {"timeout_s": math.inf})
@example([ONE], {"timeout_s": 1e-320})
@example([ONE], {"parameters": {"priority": -1}})
@example([ONE], {"parameters": {"timeout": "x"}})
@example([ONE], {"parameters": {"sequence_id": 1}})
def test_any_value_ends_in_an_answer_or_an_error_of_the_client(
    ask: Ask, given_arrays: list[Any], odd_terms: dict[str, Any]
) -> None:
    with contextlib.suppress(ClientError):
        assert isinstance(ask(*given_arrays, **odd_terms), np.ndarray)


@pytest.mark.parametrize("endless", [math.inf, 1e13, 1e300, 10**400, Fraction(10**9)])
def test_a_time_without_end_is_no_deadline(ask: Ask, endless: Any) -> None:
    # The queue of this model takes the deadline along, in microseconds of 64 bits.
    assert ask(0 * ONE, of="queued", timeout_s=endless).item() > 0


def test_the_largest_numbers_that_a_request_can_carry(ask: Ask) -> None:
    numbers = {"low": -(1 << 63), "high": (1 << 63) - 1}
    received = ask(ONE, parameters=numbers, priority=(1 << 64) - 1).item().decode()
    assert str(numbers["low"]) in received
    assert str(numbers["high"]) in received
