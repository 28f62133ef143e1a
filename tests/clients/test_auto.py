"""What `transport="auto"` takes: the protocol by the address, shared memory by the size of the tensors."""

import asyncio
from typing import Any

import numpy as np
import pytest
from client_calls import registered
from relay import PREFACE, relay

from clients import AsyncModel, Model, ServerUnreachableError
from clients.exchange import LIGHT_BYTES
from serve.launcher import Server

pytestmark = pytest.mark.server

WAYS = pytest.mark.parametrize("scheme", ["", "grpc://", "http://"])
CLIENTS = pytest.mark.parametrize("kind", ["blocking", "async"])


def reverses(kind: str, url: str, count: int, regions_at: str) -> int:
    """Let the server reverse `count` numbers of 8 bytes; returns how many regions it knows then."""
    row = np.arange(count)

    def check(answer: Any) -> int:
        np.testing.assert_array_equal(answer, row[::-1])
        return len(registered(regions_at))

    async def call() -> int:
        async with AsyncModel("unbatched", url=url) as model:
            return check(await model.predict(row))

    if kind == "async":
        return asyncio.run(call())
    with Model("unbatched", url=url) as model:
        return check(model.predict(row))


@WAYS
@CLIENTS
def test_the_address_says_the_protocol(client_server: Server, kind: str, scheme: str) -> None:
    is_http = scheme == "http://"
    with relay(client_server.http_url if is_http else client_server.grpc_url) as front:
        assert reverses(kind, scheme + front.url, 5, client_server.grpc_url) == 0
    (sent,) = front.sent
    assert sent.startswith(b"GET /v2/models/" if is_http else PREFACE)


@WAYS
@CLIENTS
@pytest.mark.parametrize(("size", "large"), [(LIGHT_BYTES // 2 - 8, False), (LIGHT_BYTES, True)])
def test_large_tensors_travel_in_shared_memory_unless_the_address_is_of_http(
    client_server: Server, kind: str, scheme: str, size: int, large: bool
) -> None:
    """The output is as large as the input, but of unknown size."""
    url = client_server.http_url if scheme == "http://" else client_server.grpc_url
    found = reverses(kind, scheme + url, size // 8, client_server.grpc_url)
    assert found == (1 if large and scheme != "http://" else 0)


@CLIENTS
def test_a_server_with_other_memory_gets_large_tensors_in_the_message(client_server: Server, kind: str) -> None:
    """A relay has no secret, so the server refuses to register memory through it."""
    with relay(client_server.grpc_url) as front:
        assert reverses(kind, front.url, LIGHT_BYTES, client_server.grpc_url) == 0
        assert len(front.sent[0]) > 8 * LIGHT_BYTES


@CLIENTS
def test_the_port_of_http_without_a_scheme_is_refused_with_the_remedy(client_server: Server, kind: str) -> None:
    with pytest.raises(ServerUnreachableError, match="if this is the HTTP port, write http:// before it"):
        reverses(kind, client_server.http_url, 5, client_server.grpc_url)
