"""Sequences of requests to a real server: several clients take turns, and each has the state of its own."""

import asyncio
import itertools
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import state_models
from bench import Bench
from client_calls import address
from processes import wait_until
from state_models import STRATEGIES

from clients import AsyncModel, InvalidInputError, Model, RequestFailedError, Sequence, TransportName
from clients.sequences import _new
from serve.launcher import Server
from serve.management.statistics import Counters

STEPS = 12
TRANSPORTS: tuple[TransportName, ...] = ("grpc", "http", "auto")
BOTH = pytest.mark.parametrize("strategy", STRATEGIES)


@pytest.fixture(scope="module")
def server(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("sequences")
    state_models.build(repository)
    with bench.serving(tuple(STRATEGIES), repository) as running:
        yield running


def row(value: int) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    return np.array([[value]], np.float32)


def values(seed: int) -> list[int]:
    return random.Random(seed).choices(range(4), k=STEPS)


@pytest.mark.server
@BOTH
def test_sequences_of_several_clients_take_turns(server: Server, strategy: str) -> None:
    """Twelve sequences over three transports, more than "direct" has slots for."""

    async def one(model: AsyncModel, seed: int) -> list[float]:
        sequence, own = model.sequence(), values(seed)
        return [(await sequence.predict(row(value), end=step == STEPS - 1))[0].item() for step, value in enumerate(own)]

    async def client(number: int) -> list[list[float]]:
        url, coalesce = address(server, TRANSPORTS[number]), number == 0
        async with AsyncModel(strategy, url=url, transport=TRANSPORTS[number], coalesce=coalesce) as model:
            return await asyncio.gather(*(one(model, 10 * number + each) for each in range(4)))

    async def scenario() -> list[list[list[float]]]:
        return await asyncio.gather(*map(client, range(3)))

    before = Counters.read(server.grpc_url, strategy).rows
    answers = asyncio.run(scenario())
    assert answers == [
        [list(itertools.accumulate(map(float, values(10 * number + each)))) for each in range(4)] for number in range(3)
    ]
    assert wait_until(lambda: Counters.read(server.grpc_url, strategy).rows - before == 12 * STEPS, seconds=10)


@pytest.mark.server
@BOTH
@pytest.mark.parametrize("transport", ["grpc", "http"])
def test_sequences_of_several_threads_take_turns(server: Server, strategy: str, transport: TransportName) -> None:
    with Model(strategy, url=address(server, transport), transport=transport) as model:

        def one(seed: int) -> list[float]:
            sequence, own = model.sequence(), values(seed)
            return [sequence.predict(row(value), end=step == STEPS - 1)[0].item() for step, value in enumerate(own)]

        with ThreadPoolExecutor(3) as pool:
            answers = list(pool.map(one, range(6)))
    assert answers == [list(itertools.accumulate(map(float, values(seed)))) for seed in range(6)]


@pytest.mark.server
def test_requests_of_one_sequence_keep_their_order(server: Server) -> None:
    async def scenario() -> list[float]:
        async with AsyncModel("oldest", url=server.grpc_url) as model:
            sequence = model.sequence()
            answers = await asyncio.gather(*(sequence.predict(row(value)) for value in (3, 0, 1, 2, 2)))
            return [answer[0].item() for answer in answers]

    assert asyncio.run(scenario()) == [3, 3, 4, 6, 8]


@pytest.mark.server
def test_a_failed_request_leaves_the_sequence_as_it_was(server: Server) -> None:
    with Model("direct", url=server.grpc_url) as model:
        sequence = model.sequence(sequence_id=77)
        assert sequence.id == 77
        with pytest.raises(InvalidInputError):
            sequence.predict(np.zeros((1, 2), np.float32))
        assert sequence.predict(row(3))[0].item() == 3
        with pytest.raises(RequestFailedError, match="out of data bounds"):
            sequence.predict(row(9))
        assert sequence.predict(row(2), request_id="a", timeout_s=10, end=True)[0].item() == 5
        with pytest.raises(InvalidInputError, match="has ended"):
            sequence.predict(row(1))


@pytest.mark.server
@pytest.mark.parametrize("wrong", [0, "", True, 1.5])
def test_an_id_is_a_number_or_a_text(server: Server, wrong: object) -> None:
    with Model("direct", url=server.grpc_url) as model, pytest.raises(InvalidInputError, match="sequence_id is"):
        model.sequence(wrong)  # type: ignore[arg-type]


@pytest.mark.server
def test_several_addresses_have_no_sequences(server: Server) -> None:
    with Model("direct", url=f"ipv4:{server.grpc_url}") as model, pytest.raises(InvalidInputError, match="one server"):
        model.sequence()


@pytest.mark.server
def test_other_models_have_no_sequences(client_server: Server) -> None:
    with Model("slow", url=client_server.grpc_url) as model:
        with pytest.raises(InvalidInputError, match="no sequence_batching"):
            model.sequence()
        with pytest.raises(InvalidInputError, match="no sequence_batching"):
            Sequence(model, 1)


def test_a_text_is_drawn_for_a_model_that_takes_texts() -> None:
    assert isinstance(_new("STRING"), str)
