"""One model at several addresses that crash, hang, come back and refuse; hooks tell where each request went."""

import asyncio
import contextlib
import itertools
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from client_calls import Gate, counted, waiting
from h2_server import CONFIG, H2Server, h2_server
from processes import wait_until
from relay import HOSTS, relay, replicas, with_secret

from clients import (
    AsyncModel,
    Hooks,
    Model,
    NotReadyError,
    RejectedError,
    ServerUnreachableError,
    TimedOutError,
)
from clients import protocol as pb
from clients.transport import Transport
from serve.launcher import Server
from serve.management.statistics import Counters

EACH, CALLERS, CALLS = 10, 8, 160
WAYS: tuple[Transport, ...] = ("grpc", "http")


def row(value: float) -> Any:
    return np.full((1, 1), value, np.float32)


def predicted(model: Model, value: float = 4) -> float:
    return float(model.predict(row(value)).item())


def watching(went: list[str]) -> Hooks:
    """Hooks that note where each request goes."""
    return {"request": [lambda request: went.append(request.url)]}


def is_used(model: Model, went: list[str], urls: list[str]) -> bool:
    """Whether requests soon go to exactly these addresses; a look at an address that was down may come later."""

    def go() -> bool:
        went.clear()
        for _ in HOSTS:
            predicted(model)
        return set(went) == set(urls)

    return wait_until(go, seconds=20)


@pytest.mark.server
@pytest.mark.parametrize("transport", ["auto", "shared_memory", "http"])
def test_requests_go_to_all_servers_in_turn(client_server: Server, transport: Transport) -> None:
    went: list[str] = []
    hooks = watching(went)
    target = client_server.http_url if transport == "http" else client_server.grpc_url

    async def call(url: str) -> None:
        async with AsyncModel("picky", url=url, transport=transport, hooks=hooks) as model:
            for _ in range(EACH * len(HOSTS)):
                assert (await model.predict(row(9))).item() == 3

    with contextlib.ExitStack() as stack:
        fronts = [stack.enter_context(relay(target)) for _ in HOSTS]
        stack.enter_context(with_secret(client_server, fronts))
        url = ",".join(front.url for front in fronts)
        with Model("picky", url=url, transport=transport, hooks=hooks) as model:
            assert [predicted(model) for _ in range(EACH * len(HOSTS))] == [2] * EACH * len(HOSTS)
        assert Counter(went) == {front.url: EACH for front in fronts}
        went.clear()
        asyncio.run(call(url))
        assert Counter(went) == {front.url: EACH for front in fronts}


@pytest.mark.server
@pytest.mark.parametrize(
    ("transport", "kind"),
    [("grpc", "blocking"), ("grpc", "async"), ("grpc", "coalescing"), ("http", "blocking"), ("http", "async")],
)
def test_no_call_fails_when_a_server_crashes(client_server: Server, transport: Transport, kind: str) -> None:
    numbers, half, ends = itertools.count(), threading.Event(), dict[int, Any]()

    def ended(number: int, end: Any) -> None:
        ends[number] = end
        if len(ends) == CALLS // 2:
            half.set()

    async def call(url: str) -> None:
        async with AsyncModel("picky", url=url, transport=transport, coalesce=kind == "coalescing") as model:

            async def caller() -> None:
                while (number := next(numbers)) < CALLS:
                    ended(number, (await model.predict(row(number**2))).item())

            await asyncio.gather(*(caller() for _ in range(CALLERS)))

    def block(url: str) -> None:
        def caller() -> None:
            while (number := next(numbers)) < CALLS:
                ended(number, predicted(model, number**2))

        with Model("picky", url=url, transport=transport) as model, ThreadPoolExecutor() as threads:
            for done in [threads.submit(caller) for _ in range(CALLERS)]:
                done.result()

    with replicas(client_server, transport) as fronts, ThreadPoolExecutor() as threads:
        url = ",".join(front.url for front in fronts)
        loading = threads.submit(block, url) if kind == "blocking" else threads.submit(asyncio.run, call(url))
        assert half.wait(30)
        fronts[1].crash()
        loading.result()
        fronts[1].start()
    assert ends == {number: number for number in range(CALLS)}


@pytest.mark.server
@pytest.mark.parametrize("transport", WAYS)
def test_all_servers_are_named_when_none_answers_and_used_when_they_are_back(
    client_server: Server, transport: Transport
) -> None:
    went: list[str] = []
    with replicas(client_server, transport) as fronts:
        urls = [front.url for front in fronts]
        url = ",".join(urls)
        with Model("picky", url=url, transport=transport, hooks=watching(went)) as model:
            for front in fronts:
                front.crash()
            for open_or_call in (lambda: predicted(model), lambda: Model("picky", url=url, transport=transport)):
                with pytest.raises(ServerUnreachableError) as failure:
                    open_or_call()
                assert all(f"{each}: " in str(failure.value) for each in urls), failure.value
                assert (failure.value.url, failure.value.model) == (url, "picky")
            fronts[0].start()
            assert predicted(model) == 2  # the next call finds it
            # A client that is opened while others are down looks for them, too.
            with Model("picky", url=url, transport=transport, hooks=watching(went)) as late:
                assert predicted(late) == 2
                for front in fronts[1:]:
                    front.start()
                assert is_used(late, went, urls)


@pytest.mark.server
@pytest.mark.parametrize(
    ("transport", "way"), [("grpc", "idempotent"), ("http", "not idempotent"), ("grpc", "sequence")]
)
def test_a_request_that_may_have_run_is_sent_again_only_if_that_is_allowed(
    client_server: Server, transport: Transport, way: str, gate: Gate
) -> None:
    """The server runs what the crashed one had, too: three requests, and those that were sent again."""
    went: list[str] = []
    parameters = {"sequence_id": 7} if way == "sequence" else None
    before = Counters.read(client_server.grpc_url, "slow")
    with replicas(client_server, transport) as fronts, ThreadPoolExecutor() as threads:
        url = ",".join(front.url for front in fronts)
        options: Any = {"idempotent": way != "not idempotent", "hooks": watching(went)}
        with Model("slow", url=url, transport=transport, **options) as model:
            calls = [threads.submit(model.predict, gate.rows(), parameters=parameters)]
            assert gate.has()
            calls += [threads.submit(model.predict, gate.rows(), parameters=parameters) for _ in HOSTS[1:]]
            assert waiting(client_server, "slow", 2)
            (victim,) = (front for front in fronts if front.url == went[0])
            victim.crash()
            gate.open()
            failures: list[Any] = [error for call in calls if (error := call.exception())]
            expected = {"idempotent": (0, 4), "not idempotent": (1, 3), "sequence": (3, 3)}
            assert len(failures) == expected[way][0]
            counted(client_server, "slow", before, rows=expected[way][1])
    assert all(type(error) is ServerUnreachableError and not error.retryable for error in failures), failures
    assert all(error.url == went[0] for error in failures)
    # All requests of a sequence go to one server.
    assert len(set(went[:3])) == (1 if way == "sequence" else 3)


@pytest.mark.server
@pytest.mark.parametrize("transport", WAYS)
def test_a_server_that_hangs_costs_one_call_its_time_for_a_try(client_server: Server, transport: Transport) -> None:
    ends: list[tuple[str, BaseException | None]] = []
    hooks: Hooks = {"response": [lambda response: ends.append((response.request.url, response.error))]}
    with replicas(client_server, transport) as fronts:
        urls = [front.url for front in fronts]
        with Model("picky", url=",".join(urls), transport=transport, try_timeout_s=2, hooks=hooks) as model:
            assert [predicted(model) for _ in HOSTS] == [2] * len(HOSTS)
            ends.clear()
            fronts[2].hangs = True
            assert [predicted(model) for _ in range(30)] == [2] * 30
            assert [type(error) for url, error in ends if url == urls[2]] == [TimedOutError]
            fronts[2].hangs = False

            def is_back() -> bool:
                ends.clear()
                return [predicted(model) for _ in HOSTS] == [2] * len(HOSTS) and (urls[2], None) in ends

            assert wait_until(is_back, seconds=20)


@pytest.fixture
def servers() -> Iterator[list[H2Server]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(h2_server()) for _ in HOSTS]


def test_a_refused_request_goes_to_one_other_server(servers: list[H2Server]) -> None:
    went: list[str] = []
    urls = [server.url for server in servers]
    servers[0].on_infer = lambda peer, stream, _: peer.refuse(stream, 14, "Exceeds maximum queue size")
    with Model("m", url=",".join(urls), transport="grpc", hooks=watching(went)) as model:
        assert [predicted(model) for _ in HOSTS] == [8] * len(HOSTS)
        assert urls[0] in went
        assert len(went) > len(HOSTS)
        for server in servers:
            server.on_infer = servers[0].on_infer
        went.clear()
        with pytest.raises(RejectedError):
            predicted(model)
    assert len(set(went)) == len(went) == 2


def test_servers_with_different_models_are_refused_or_left_out(servers: list[H2Server]) -> None:
    other = pb.ModelConfig()
    other.CopyFrom(CONFIG)
    other.input[0].dims[:] = [2]
    with relay(servers[2].url) as front:
        urls = [servers[0].url, servers[1].url, front.url]
        with Model("m", url=",".join(urls), transport="grpc") as model:
            front.crash()
            assert [predicted(model) for _ in HOSTS] == [8] * len(HOSTS)
            servers[2].config = other
            before = servers[2].infers
            front.start()
            assert [predicted(model) for _ in range(EACH)] == [8] * EACH
            assert servers[2].infers == before
            with pytest.raises(NotReadyError, match=f"{front.url}.* has other inputs or outputs"):
                Model("m", url=",".join(urls), transport="grpc")
            servers[2].config = CONFIG
            assert wait_until(lambda: predicted(model) == 8 and servers[2].infers > before, seconds=20)


@pytest.fixture
def addresses(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses of the name "replicas.test" now."""
    now, resolve = [*HOSTS[:2]], socket.getaddrinfo

    def look_up(host: str, port: int, *rest: Any, **more: Any) -> Any:
        found = [resolve(address, port, *rest, **more)[0] for address in now]
        return found if host == "replicas.test" else resolve(host, port, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr("clients.replicas.RENEW_S", 0.0)
    return now


@pytest.mark.server
@pytest.mark.parametrize("transport", WAYS)
def test_a_name_stands_for_its_addresses_of_now(
    client_server: Server, addresses: list[str], transport: Transport
) -> None:
    went: list[str] = []
    with replicas(client_server, transport) as fronts:
        urls = [front.url for front in fronts]
        url = f"dns:///replicas.test:{fronts[0].port}"
        with Model("picky", url=url, transport=transport, hooks=watching(went)) as model:
            assert is_used(model, went, urls[:2])
            addresses[:] = HOSTS[1:]
            assert is_used(model, went, urls[1:])


@pytest.mark.server
def test_a_sequence_stays_with_its_server_when_others_come(client_server: Server, addresses: list[str]) -> None:
    went: list[str] = []
    sequences = range(1, 31)

    def servers(**parameters: Any) -> dict[int, str]:
        """The server that got a request of each sequence."""
        went.clear()
        for number in sequences:
            model.predict(row(4), parameters={"sequence_id": number, **parameters})
        return dict(zip(sequences, went, strict=True))

    with replicas(client_server) as fronts:
        urls = [front.url for front in fronts]
        url = f"dns:///replicas.test:{fronts[0].port}"
        with Model("picky", url=url, transport="grpc", hooks=watching(went)) as model:
            began = servers(sequence_start=True)
            assert set(began.values()) == set(urls[:2])
            addresses[:] = HOSTS
            assert is_used(model, went, urls)
            assert servers() == began
            assert servers(sequence_end=True) == began
            again = servers(sequence_start=True)
            assert set(again.values()) == set(urls)
            # A sequence whose server is gone goes on at another.
            addresses[:] = HOSTS[1:]
            assert is_used(model, went, urls[1:])
            after = servers()
            assert set(after.values()) == set(urls[1:])
            assert all(after[number] == where for number, where in again.items() if where != urls[0])
