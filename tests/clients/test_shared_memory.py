"""Shared memory: what travels in it, and that nothing of it is left behind."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from client_calls import registered
from grpc_server import GrpcServer
from newer_answers import MEMORY_REFUSED
from relay import PREFACE, relay

from clients import AccessError, AsyncModel, Model, RequestFailedError, ServerUnreachableError, TransportError
from clients._inference import GRPC_BYTES, LARGE_BYTES
from clients._options import CallOptions
from clients._shared_memory import FOLDER, PREFIX, _in_use
from clients._steps import deadline_after
from serve.launcher import Server
from serve.management import client_memory

ROOT = Path(__file__).parents[2]
LARGE = np.arange(1 << 19, dtype=np.float32)[:, None]
ONE = np.ones((1, 1), np.float32)
CLIENTS = pytest.mark.parametrize("kind", ["blocking", "async"])


@pytest.fixture
def swept(client_server: Server) -> Server:
    """The server without what other tests have left: regions that a request used when its client was closed."""
    with Model("wide", url=client_server.grpc_url, transport="shared_memory"):
        pass
    return client_server


def reverses(kind: str, url: str, count: int, regions_at: str, **options: Any) -> int:
    """Let the server reverse `count` numbers of 8 bytes; returns how many regions more it knows then."""
    row, before = np.arange(count), set(registered(regions_at))

    def check(answer: Any) -> int:
        np.testing.assert_array_equal(answer, row[::-1])
        return len(set(registered(regions_at)) - before)

    async def call() -> int:
        async with AsyncModel("unbatched", url=url, **options) as model:
            return check(await model.predict(row))

    if kind == "async":
        return asyncio.run(call())
    with Model("unbatched", url=url, **options) as model:
        return check(model.predict(row))


@pytest.mark.server
@CLIENTS
@pytest.mark.parametrize("scheme", ["", "grpc://", "http://"])
@pytest.mark.parametrize(("size", "regions"), [(LARGE_BYTES // 2 - 8, 0), (LARGE_BYTES, 1)])
def test_large_tensors_travel_in_shared_memory(swept: Server, kind: str, scheme: str, size: int, regions: int) -> None:
    """The output is as large as the input, but of unknown size."""
    url = scheme + (swept.http_url if scheme == "http://" else swept.grpc_url)
    before = set(registered(swept.grpc_url))
    assert reverses(kind, url, size // 8, swept.grpc_url) == regions
    assert set(registered(swept.grpc_url)) <= before


@pytest.mark.server
@CLIENTS
def test_with_both_protocols_small_tensors_take_http_and_large_ones_grpc_to_another_machine(
    swept: Server, kind: str
) -> None:
    """A relay has no secret, so the server refuses to register memory through it."""
    with relay(swept.http_url) as http, relay(swept.grpc_url) as front:
        url = f"http://{http.url},grpc://{front.url}"
        reverses(kind, url, 5, swept.grpc_url)
        assert front.sent == []
        assert reverses(kind, url, GRPC_BYTES // 8, swept.grpc_url) == 0
        assert front.sent[0].startswith(PREFACE)
        assert len(front.sent[0]) > GRPC_BYTES


@pytest.mark.server
@CLIENTS
def test_the_port_of_http_without_a_scheme_is_refused_with_the_remedy(client_server: Server, kind: str) -> None:
    with pytest.raises(ServerUnreachableError, match="if this is the HTTP port, write http:// before it"):
        reverses(kind, client_server.http_url, 5, client_server.grpc_url)


def test_tensors_travel_in_messages_where_shared_memory_is_refused(answering: GrpcServer) -> None:
    """The words of 26.04 and later are told. A server is asked once, and no file is left."""
    refused = grpc.StatusCode.UNIMPLEMENTED, MEMORY_REFUSED[1]
    answering.refused["SystemSharedMemoryRegister"] = refused
    with pytest.raises(TransportError) as caught, Model("m", url=answering.url, transport="shared_memory"):
        pass
    assert str(caught.value).endswith(f'Use transport="auto". It said: {MEMORY_REFUSED[1]}')
    answering.asked.clear()
    with Model("m", url=answering.url) as model:
        for _ in range(2):
            assert np.array_equal(model.predict(LARGE), 2 * LARGE)
    asked = ["SystemSharedMemoryStatus", "SystemSharedMemoryRegister", "ModelInfer", "ModelInfer"]
    assert answering.asked == ["ServerMetadata", "ModelConfig", *asked]
    assert not list(FOLDER.glob(f"{PREFIX}*_{os.getpid()}_*"))


def test_a_region_whose_request_may_still_run_is_not_used_again(answering: GrpcServer) -> None:
    with Model("m", url=answering.url, transport="shared_memory") as model:
        shared = model._inference._shared
        assert shared
        for status, text, is_free in (
            (grpc.StatusCode.UNAVAILABLE, "Exceeds maximum queue size", True),
            (grpc.StatusCode.INVALID_ARGUMENT, "wrong", True),
            (grpc.StatusCode.RESOURCE_EXHAUSTED, "Received RST_STREAM with error code 11", False),
            (grpc.StatusCode.INTERNAL, "Received RST_STREAM with error code 2", False),
        ):
            answering.refused["ModelInfer"] = status, text
            with pytest.raises(RequestFailedError):
                model.predict(ONE)
            assert (len(shared._free), len(shared._retired)) == (int(is_free), int(not is_free)), text
        (region,) = shared._retired
        for _ in range(2):  # two threads that release it
            shared._discard(region)
        assert shared._bytes == 0


def test_the_sweep_goes_on_after_a_file_of_another_user(answering: GrpcServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clients._shared_memory.stale", lambda names: [*names] and ["a", "b"])
    unlinked = list[str]()

    def unlink(path: Path, *, missing_ok: bool) -> None:
        unlinked.append(path.name)
        if path.name == "a":
            raise PermissionError

    left = FOLDER / f"{PREFIX}left"
    left.touch()
    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", unlink)
        with contextlib.suppress(TransportError):
            Model("m", url=answering.url, transport="shared_memory").close()
    for path in FOLDER.glob(f"{PREFIX}*_{os.getpid()}_*"):
        path.unlink()
    left.unlink()
    assert unlinked[:2] == ["a", "b"]


def test_shared_memory_and_the_message_have_one_deadline(answering: GrpcServer) -> None:
    with Model("m", url=answering.url) as model:
        options = CallOptions(timeout_s=1.0)
        steps = model._inference.share(model._inference.check((LARGE,), options), options)
        step = next(steps)
        begun = deadline_after(1.0)
        time.sleep(0.05)
        while step.method != "ModelInfer":
            step = steps.throw(AccessError("no")) if "Register" in step.method else steps.send([])
        assert step.deadline
        assert begun
        assert step.deadline <= begun


KILLED = """
import numpy as np, sys
from clients import Model
model = Model("wide", url=sys.argv[1], transport="shared_memory")
print(model.predict(np.ones((1, 1), np.float32)).shape, flush=True)
input()
"""


def killed(url: str, server: Server) -> str:
    """The region of a client that was killed."""
    before = set(registered(server.grpc_url))
    command = [sys.executable, "-c", KILLED, url]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "(1, 1048576)\n"
        (left,) = set(registered(server.grpc_url)) - before
        process.send_signal(signal.SIGKILL)
    return left


@pytest.mark.server
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_next_client_removes_what_a_killed_one_left(swept: Server, protocol: str) -> None:
    url = f"{protocol}://{swept.http_url if protocol == 'http' else swept.grpc_url}"
    left = killed(url, swept)
    stale = FOLDER / left.replace(left[-8:], "0" * 8)
    stale.touch()  # what one that was killed in the middle of its registration leaves
    with Model("wide", url=url, transport="shared_memory") as model:
        assert (model.predict(3 * ONE) == 3).all()
        assert left not in registered(swept.grpc_url)
        assert not stale.exists()
        own = _in_use & set(registered(swept.grpc_url))
        assert own
    assert not own & set(registered(swept.grpc_url))


@pytest.mark.server
def test_the_supervisor_removes_what_a_killed_client_left(swept: Server) -> None:
    left = killed(swept.grpc_url, swept)
    assert left in registered(swept.grpc_url)
    client_memory.sweep(swept.http_url)
    assert left not in registered(swept.grpc_url)
    with Model("wide", url=swept.grpc_url, transport="shared_memory"):
        own = _in_use & set(registered(swept.grpc_url))
        client_memory.sweep(swept.http_url)
        assert own <= set(registered(swept.grpc_url))  # this process runs


@pytest.mark.server
def test_the_memory_of_another_namespace_is_left_alone(client_server: Server) -> None:
    """Nobody can tell whether the process with that number still runs there."""
    foreign = FOLDER / f"{PREFIX}0123456789ab_1_1_{'0' * 32}"
    foreign.touch()
    try:
        with Model("wide", url=client_server.grpc_url, transport="shared_memory") as model:
            assert (model.predict(3 * ONE) == 3).all()
        assert foreign.exists()
    finally:
        foreign.unlink()
