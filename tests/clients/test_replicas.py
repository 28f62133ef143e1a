"""One model on three servers that crash, hang, restart and refuse; their statistics tell what ran where."""

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import client_models
import pytest
from processes import wait_until
from replica_servers import CALLS, HOSTS, Load, ReplicaServers, row

from clients import (
    AsyncModel,
    Hooks,
    Model,
    NotReadyError,
    RejectedError,
    ServerUnreachableError,
    TimedOutError,
)
from clients.connections import BlockingConnections
from clients.transport import Transport

EACH = 10

WAYS: tuple[Transport, ...] = ("grpc", "http")


@pytest.fixture(scope="module")
def started() -> Iterator[ReplicaServers]:
    with ReplicaServers() as servers:
        yield servers


@pytest.fixture
def replicas(started: ReplicaServers) -> ReplicaServers:
    started.complete()
    return started


def predicted(model: Model, value: float = 4) -> float:
    return float(model.predict(row(value)).item())


def settled(replicas: ReplicaServers, model: str, *, but: int | None = None) -> list[int]:
    """The requests that each server has answered; it counts one shortly after its answer."""
    counts = replicas.requests(model, but=but)
    while True:
        time.sleep(0.05)
        before, counts = counts, replicas.requests(model, but=but)
        if counts == before:
            return counts


def answered(replicas: ReplicaServers, model: str, calls: Callable[[], Any]) -> list[int]:
    """How many requests each server answered during `calls`."""
    before = settled(replicas, model)
    calls()
    return [now - then for now, then in zip(settled(replicas, model), before, strict=True)]


def all_are_used(replicas: ReplicaServers, model: Model) -> bool:
    """Whether requests soon go to all servers again."""

    def go() -> bool:
        return all(answered(replicas, "picky", lambda: [predicted(model) for _ in HOSTS]))

    return wait_until(go, seconds=20)


@pytest.mark.server
@pytest.mark.parametrize("transport", ["auto", "shared_memory", "http"])
def test_requests_go_to_all_servers_in_turn(replicas: ReplicaServers, transport: Transport) -> None:
    url = replicas.url(transport)

    def block() -> None:
        with Model("picky", url=url, transport=transport) as model:
            assert [predicted(model) for _ in range(EACH * len(HOSTS))] == [2] * EACH * len(HOSTS)

    async def call() -> None:
        async with AsyncModel("picky", url=url, transport=transport) as model:
            for _ in range(EACH * len(HOSTS)):
                assert (await model.predict(row(9))).item() == 3

    assert answered(replicas, "picky", block) == [EACH] * len(HOSTS)
    assert answered(replicas, "picky", lambda: asyncio.run(call())) == [EACH] * len(HOSTS)


@pytest.mark.server
@pytest.mark.parametrize(
    ("transport", "kind"),
    [
        ("grpc", "blocking"),
        ("grpc", "async"),
        ("grpc", "coalescing"),
        ("http", "blocking"),
        ("http", "async"),
        ("shared_memory", "blocking"),
    ],
)
def test_no_call_fails_when_a_server_crashes(replicas: ReplicaServers, transport: Transport, kind: str) -> None:
    url, load = replicas.url(transport), Load()

    def run() -> None:
        if kind == "blocking":
            with Model("picky", url=url, transport=transport) as model:
                load.block(model)
        else:
            asyncio.run(call())

    async def call() -> None:
        async with AsyncModel("picky", url=url, transport=transport, coalesce=kind == "coalescing") as model:
            await load.call(model)

    with ThreadPoolExecutor() as threads:
        loading = threads.submit(run)
        assert load.half.wait(30)
        replicas.kill(1)
        loading.result()
    replicas.start_again(1)
    assert (load.right, load.wrong) == (CALLS, [])


@pytest.mark.server
@pytest.mark.parametrize("transport", WAYS)
def test_all_servers_are_named_when_none_answers_and_used_when_they_are_back(
    replicas: ReplicaServers, transport: Transport
) -> None:
    urls = replicas.urls(transport, 2)
    with Model("picky", url=",".join(urls), transport=transport) as model:
        for index in (0, 1):
            replicas.kill(index)
        assert wait_until(lambda: not any(replicas.servers[index].running() for index in (0, 1)), seconds=20)
        for open_or_call in (lambda: predicted(model), lambda: Model("picky", url=model._url, transport=transport)):
            with pytest.raises(ServerUnreachableError) as failure:
                open_or_call()
            assert all(f"{url}: " in str(failure.value) for url in urls), failure.value
            assert (failure.value.url, failure.value.model) == (",".join(urls), "picky")
        replicas.start_again(0)
        assert predicted(model) == 2  # the next call finds it
        # A client that is opened while one is down looks for that, too.
        with Model("picky", url=replicas.url(transport), transport=transport) as late:
            assert predicted(late) == 2
            replicas.start_again(1)
            assert all_are_used(replicas, late)


@pytest.mark.server
@pytest.mark.parametrize(
    ("transport", "way"), [("grpc", "idempotent"), ("http", "not idempotent"), ("grpc", "sequence")]
)
def test_a_request_that_may_have_run_is_sent_again_only_if_that_is_allowed(
    replicas: ReplicaServers, transport: Transport, way: str
) -> None:
    went: list[str] = []
    hooks: Hooks = {"request": [lambda request: went.append(request.url)]}
    parameters = {"sequence_id": 7} if way == "sequence" else None
    idempotent = way != "not idempotent"
    with (
        Model("slow", url=replicas.url(transport), transport=transport, idempotent=idempotent, hooks=hooks) as model,
        ThreadPoolExecutor() as threads,
    ):
        before = {index: sum(replicas.requests("slow", but=index)) for index in range(len(HOSTS))}
        calls = [threads.submit(model.predict, row(1), parameters=parameters) for _ in HOSTS]
        assert wait_until(lambda: len(went) == len(HOSTS), seconds=10)
        time.sleep(0.2)  # all of them have been sent
        victim = replicas.urls(transport).index(went[0])
        replicas.kill(victim)
        failures: list[Any] = [error for call in calls if (error := call.exception())]
        ran = sum(settled(replicas, "slow", but=victim)) - before[victim]
    replicas.start_again(victim)
    assert all(type(error) is ServerUnreachableError and not error.retryable for error in failures), failures
    assert all(error.url == went[0] for error in failures)
    # All requests of a sequence go to one server.
    assert len(set(went[:3])) == (1 if way == "sequence" else 3)
    expected = {"idempotent": (0, 3), "not idempotent": (1, 2), "sequence": (3, 0)}
    assert (len(failures), ran) == expected[way]


@pytest.mark.server
@pytest.mark.parametrize("transport", WAYS)
def test_a_server_that_hangs_costs_one_call_its_time_for_a_try(replicas: ReplicaServers, transport: Transport) -> None:
    ends: list[tuple[str, BaseException | None]] = []
    hooks: Hooks = {"response": [lambda response: ends.append((response.request.url, response.error))]}
    url = replicas.url(transport)

    async def call() -> list[float]:
        async with AsyncModel("picky", url=url, transport=transport, try_timeout_s=1) as opened:
            answers = await asyncio.gather(*(opened.predict(row(4)) for _ in range(30)))
        return [answer.item() for answer in answers]

    with Model("picky", url=url, transport=transport, try_timeout_s=1, hooks=hooks) as model:
        with replicas.hung(2):
            assert [predicted(model) for _ in range(30)] == [2] * 30
            late = [(where, type(error)) for where, error in ends if error]
            assert late == [(replicas.urls(transport)[2], TimedOutError)]
            assert len(ends) == 31
            if transport == "http":
                assert asyncio.run(call()) == [2] * 30
        assert all_are_used(replicas, model)


@pytest.mark.server
def test_a_server_that_stops_answers_what_it_has(replicas: ReplicaServers) -> None:
    load = Load()
    with Model("picky", url=replicas.url("grpc"), transport="grpc") as model, ThreadPoolExecutor() as threads:
        loading = threads.submit(load.block, model)
        assert load.half.wait(30)
        replicas.stop(0)
        loading.result()
    replicas.start_again(0)
    assert (load.right, load.wrong) == (CALLS, [])


@pytest.mark.server
def test_a_refused_request_goes_to_one_other_server(replicas: ReplicaServers) -> None:
    went: list[str] = []
    hooks: Hooks = {"request": [lambda request: went.append(request.url)]}
    urls = replicas.urls("grpc")

    def fill(url: str) -> None:
        """Send one request that runs for two seconds, and more than the queue takes."""
        alone = stack.enter_context(Model("queued", url=url))
        first = threads.submit(alone.predict, row(2))
        time.sleep(0.2)
        others = [threads.submit(alone.predict, row(0)) for _ in range(5)]
        assert wait_until(lambda: sum(other.done() for other in others) == 2, seconds=10)
        assert not first.done()

    with contextlib.ExitStack() as stack:
        threads = stack.enter_context(ThreadPoolExecutor(32))
        model = stack.enter_context(Model("queued", url=",".join(urls), hooks=hooks))
        fill(urls[0])
        for _ in HOSTS:
            assert predicted(model, 0) > 0
        assert urls[0] in went
        assert len(went) > len(HOSTS)
        for url in urls[1:]:
            fill(url)
        went.clear()
        with pytest.raises(RejectedError):
            predicted(model, 0)
        assert len(set(went)) == len(went) == 2


@pytest.mark.server
def test_servers_with_different_models_are_refused_or_left_out(replicas: ReplicaServers, tmp_path: Path) -> None:
    other = client_models.build(tmp_path)
    config = other / "picky" / "config.pbtxt"
    config.write_text(config.read_text().replace("dims: [ 1 ]", "dims: [ 2 ]"))
    with Model("picky", url=replicas.url("grpc")) as model:
        replicas.kill(2)
        assert wait_until(lambda: not replicas.servers[2].running(), seconds=20)
        assert [predicted(model) for _ in HOSTS] == [2] * len(HOSTS)
        replicas.start_again(2, other)
        assert answered(replicas, "picky", lambda: [predicted(model) for _ in range(EACH)])[2] == 0
        with pytest.raises(NotReadyError, match=f"{HOSTS[2]}.* has other inputs or outputs"):
            Model("picky", url=replicas.url("grpc"))
        replicas.kill(2)
        replicas.start_again(2)
        assert all_are_used(replicas, model)


@pytest.mark.server
@pytest.mark.parametrize("transport", WAYS)
def test_a_name_stands_for_its_addresses_of_now(
    replicas: ReplicaServers, monkeypatch: pytest.MonkeyPatch, transport: Transport
) -> None:
    now, resolve = [*HOSTS[:2]], socket.getaddrinfo

    def look_up(host: str, port: int, *rest: Any, **more: Any) -> Any:
        found = [resolve(address, port, *rest, **more)[0] for address in now]
        return found if host == "replicas.test" else resolve(host, port, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr("clients.replicas.RENEW_S", 0.0)
    port = replicas.servers[0].http_port if transport == "http" else replicas.servers[0].grpc_port
    url = f"dns:///replicas.test:{port}"
    with Model("picky", url=url, transport=transport) as model:
        assert answered(replicas, "picky", lambda: [predicted(model) for _ in range(2 * EACH)]) == [EACH, EACH, 0]
        now[:] = HOSTS[1:]
        predicted(model)  # starts the look-up
        connections = model._connection
        assert isinstance(connections, BlockingConnections)
        assert wait_until(lambda: [*connections._made] == replicas.urls(transport)[1:], seconds=10)
        assert answered(replicas, "picky", lambda: [predicted(model) for _ in range(2 * EACH)]) == [0, EACH, EACH]
