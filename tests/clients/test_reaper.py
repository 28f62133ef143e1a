"""The reaper serves only clients of its own user, and no input ends it."""

import os
import random
import socket
import threading

import numpy as np
import pytest
from client_calls import registered
from other_user import as_nobody, needs_root
from processes import alive, wait_until

from clients import Model, TransportError
from clients.endpoint import Endpoint
from clients.lease import Lease, _address
from serve.launcher import Server

ONE = np.ones((1, 1), np.float32)


def connected(server: Server, name: str = "") -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.connect(name or _address(Endpoint.of(server.grpc_url).target))  # waits while the listener's queue is full
    client.settimeout(10)
    return client


@pytest.mark.server
def test_no_bytes_end_the_reaper_or_drop_regions_of_others(client_server: Server) -> None:
    rng = random.Random(3)
    with Model("wide", url=client_server.grpc_url, transport="shared_memory") as model:
        region_names = registered(client_server.grpc_url)
        assert len(region_names) == 1
        with connected(client_server) as first:
            reaper = int(first.recv(32))
            hostile = [
                b"+\xff\n",
                b"-\xff\xfe\n",
                b"\n\n\n",
                b"=\xff\n",
                b"={\n",
                b'={"target": 1, "tls": {"ca": "/absent"}, "headers": 7}\n',
                b"+../../etc/passwd\n",
                b"+/dev/shm/x\n",
                b"+triton_client_../../x\n",
                b"+" + b"a" * 100_000 + b"\n",
                b"+triton_client_" + b"a" * 200 + b"\n",
                *(rng.randbytes(rng.randrange(1, 3000)) for _ in range(200)),
            ]
            for text in hostile:
                with connected(client_server) as client:
                    client.sendall(text)
            # A line without an end is not kept: whoever sends it is cut off.
            with connected(client_server) as endless, pytest.raises(BrokenPipeError):
                endless.sendall(b"x" * (1 << 24))
            with connected(client_server) as many:
                many.sendall(b"".join(b"+triton_client_%d\n" % number for number in range(1000)))
            assert alive({reaper}) == {reaper}
        assert registered(client_server.grpc_url) == region_names
        assert (model.predict(2 * ONE) == 2).all()
    with connected(client_server) as again:
        assert int(again.recv(32)) == reaper
    # The client lets go as it closes; if the server is slow to say so, the reaper does.
    assert wait_until(lambda: registered(client_server.grpc_url) == [], seconds=10)


@needs_root
@pytest.mark.server
def test_another_user_is_disconnected(client_server: Server) -> None:
    with Model("wide", url=client_server.grpc_url, transport="shared_memory") as model:
        (region_name,) = registered(client_server.grpc_url)
        name = _address(Endpoint.of(client_server.grpc_url).target)

        def drops() -> int:
            with connected(client_server, name) as client:
                try:
                    client.sendall(f"+{region_name}\n".encode())
                    return len(client.recv(32))
                except ConnectionError:
                    return 0

        assert as_nobody(drops) == "0"  # cut off without a word
        assert not wait_until(lambda: not registered(client_server.grpc_url), seconds=1)
        assert (model.predict(2 * ONE) == 2).all()


@needs_root
@pytest.mark.server
def test_a_reaper_of_another_user_is_not_used(client_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"\0triton-client-test-{os.getpid()}"
    monkeypatch.setattr("clients.lease._address", lambda _: name)
    ready, done = os.pipe(), os.pipe()

    def squats() -> int:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(name)
            listener.listen()
            os.write(ready[1], b"1")
            os.read(done[0], 1)
        return 0

    thread = threading.Thread(target=as_nobody, args=(squats,))
    thread.start()
    try:
        os.read(ready[0], 1)
        with pytest.raises(PermissionError, match="user 65534"):
            Lease(Endpoint.of(client_server.grpc_url))
        with Model("wide", url=client_server.grpc_url) as model:
            assert (model.predict(2 * ONE) == 2).all()  # in the message
            assert registered(client_server.grpc_url) == []
        with pytest.raises(TransportError):
            Model("wide", url=client_server.grpc_url, transport="shared_memory")
    finally:
        os.write(done[1], b"1")
        thread.join()
        for descriptor in (*ready, *done):
            os.close(descriptor)
