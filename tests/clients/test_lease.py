"""No shared memory of a client stays after it ends, in whichever way it ends, and none but its own user can use it."""

import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from client_calls import Gate, counted, registered
from other_user import as_nobody, needs_root
from processes import alive, wait_until
from tritonclient.grpc import service_pb2 as pb

from clients import AsyncModel, Model, ServerFailureError, regions
from clients.connection import BlockingConnection
from clients.endpoint import Endpoint
from clients.lease import _address
from clients.regions import PREFIX
from clients.shared_memory import UNKNOWN_REGION
from clients.steps import Step
from serve.launcher import Server
from serve.management.statistics import Counters

pytestmark = pytest.mark.server
ROOT = Path(__file__).parents[2]
ONE = np.ones((1, 1), np.float32)
LEASE_S = 10.0
CLIENT = """
import sys, time, numpy; from clients import Model
url, name, number = sys.argv[1:]
model = Model(name, url=url, transport="shared_memory")
print(model.predict(numpy.zeros((1, 1), numpy.float32)).item(), flush=True)
if int(number): model.predict(numpy.full((1, 1), int(number), numpy.float32))
time.sleep(60)
"""
"""A client in a process of its own, to be killed."""


def files() -> list[str]:
    return sorted(path.name for path in regions.FOLDER.glob(f"{PREFIX}*"))


def client(server: Server, number: int = 0, *command: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*command, sys.executable, "-c", CLIENT, server.grpc_url, "slow", str(number)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_one_region_serves_many_calls_and_goes_with_close(client_server: Server) -> None:
    assert registered(client_server.grpc_url) == []
    with Model("slow", url=client_server.grpc_url, transport="shared_memory") as model:
        for _ in range(20):
            model.predict(0 * ONE)
        assert len(registered(client_server.grpc_url)) == 1
        assert wait_until(lambda: not files(), seconds=1)
    assert registered(client_server.grpc_url) == []

    async def four() -> int:
        async with AsyncModel("slow", url=client_server.grpc_url, transport="shared_memory") as other:
            for _ in range(5):
                await asyncio.gather(*(other.predict(0 * ONE) for _ in range(4)))
            return len(registered(client_server.grpc_url))

    assert asyncio.run(four()) == 4
    assert registered(client_server.grpc_url) == []


def test_regions_of_a_client_that_is_killed_during_its_request_are_removed(client_server: Server, gate: Gate) -> None:
    before = Counters.read(client_server.grpc_url, "slow")
    killed = client(client_server, gate.number)
    assert gate.has()
    killed.kill()
    _, errors = killed.communicate()
    assert (killed.returncode, errors) == (-signal.SIGKILL, "")
    assert wait_until(lambda: not files(), seconds=LEASE_S)
    gate.open()
    # Others go on at once, and the memory goes as soon as the model has let go of it.
    with Model("slow", url=client_server.grpc_url, transport="shared_memory") as model:
        assert model.predict(0 * ONE).item() > 0
    assert wait_until(lambda: not registered(client_server.grpc_url), seconds=LEASE_S)
    assert client_server.running()
    assert counted(client_server, "slow", before, rows=3).failed_requests <= 1


def test_regions_of_many_clients_that_are_killed_at_once_are_removed(client_server: Server) -> None:
    clients = [client(client_server) for _ in range(3)]
    assert all(client.stdout and client.stdout.readline() for client in clients)
    assert len(registered(client_server.grpc_url)) == 3
    for process in clients:
        process.kill()
    assert [process.communicate()[1] for process in clients] == [""] * 3
    assert wait_until(lambda: not registered(client_server.grpc_url), seconds=LEASE_S)
    assert wait_until(lambda: not files(), seconds=1)


def test_a_client_with_its_own_shared_memory_uses_the_connection(client_server: Server) -> None:
    elsewhere = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs tmpfs /dev/shm && exec "$@"', "sh")
    if subprocess.run([*elsewhere, "true"], capture_output=True).returncode:
        pytest.skip("this user may not mount another /dev/shm")
    refused = client(client_server, 0, *elsewhere)
    assert "TransportError" in refused.communicate()[1]
    script = (
        "import numpy, sys; from clients import Model\n"
        "with Model('wide', url=sys.argv[1]) as model:\n"
        "    print(model.predict(numpy.full((1, 1), 7, numpy.float32)).sum())"
    )
    auto = subprocess.run(
        [*elsewhere, sys.executable, "-c", script, client_server.grpc_url],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert (auto.stdout.split(), auto.stderr) == ([str(7.0 * (1 << 20))], "")
    assert registered(client_server.grpc_url) == []


def test_the_name_of_a_file_opens_no_region(client_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    unlink = regions.Region.unlink

    def watched(region: regions.Region) -> None:
        seen.extend(files())
        unlink(region)

    monkeypatch.setattr(regions.Region, "unlink", watched)
    connection = BlockingConnection(client_server.grpc_url)
    try:
        with Model("slow", url=client_server.grpc_url, transport="shared_memory") as model:
            model.predict(np.zeros((1, 1), np.float32))
            status = connection.call(Step("SystemSharedMemoryStatus", b""), "")
            (region,) = status.regions.values()
            assert seen == [region.key.removeprefix("/")]
            # What another user can ask who saw the file.
            request = pb.ModelInferRequest(model_name="slow")
            tensor = request.inputs.add(name=model.metadata.inputs[0].name, datatype="FP32", shape=[1, 1])
            tensor.parameters["shared_memory_region"].string_param = seen[0]
            tensor.parameters["shared_memory_byte_size"].int64_param = 4
            with pytest.raises(ServerFailureError, match=UNKNOWN_REGION):
                connection.call(Step("ModelInfer", request.SerializeToString(), timeout_s=5.0), "slow")
    finally:
        connection.close()
    assert files() == []


def connected(server: Server, name: str = "") -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.connect(name or _address(Endpoint.of(server.grpc_url).target))  # waits while the listener's queue is full
    client.settimeout(10)
    return client


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
