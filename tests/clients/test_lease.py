"""No shared memory of a client stays after it ends, in whichever way it ends."""

import asyncio
import mmap
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from client_calls import registered
from processes import alive, wait_until

from clients import AsyncModel, Model, TransportError, regions
from clients.regions import PREFIX, Region, stale
from serve.launcher import Server
from serve.management.statistics import Counters

ROOT = Path(__file__).parents[2]
ONE = np.ones((1, 1), np.float32)
LEASE_S = 5.0


def files() -> list[str]:
    return sorted(path.name for path in regions.FOLDER.glob(f"{PREFIX}*"))


def client(server: Server, model: str, seconds: float, *command: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [
            *command,
            sys.executable,
            str(ROOT / "tests" / "helpers" / "client_process.py"),
            server.grpc_url,
            model,
            str(seconds),
        ],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.server
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


@pytest.mark.server
def test_regions_of_a_client_that_is_killed_during_its_request_are_removed(client_server: Server) -> None:
    before = Counters.read(client_server.grpc_url, "slow")
    killed = client(client_server, "slow", 1.0)
    assert killed.stdout is not None
    assert killed.stdout.readline()
    assert wait_until(lambda: bool(registered(client_server.grpc_url)), seconds=2)
    time.sleep(0.3)
    killed.kill()
    _, errors = killed.communicate()
    assert (killed.returncode, errors) == (-signal.SIGKILL, "")
    assert wait_until(lambda: not files(), seconds=1)
    # Others go on at once, and the memory goes as soon as the model has let go of it.
    with Model("slow", url=client_server.grpc_url, transport="shared_memory", timeout_s=2) as model:
        assert model.predict(0 * ONE).item() > 0
    assert wait_until(lambda: not registered(client_server.grpc_url), seconds=LEASE_S)
    assert client_server.running()
    assert (Counters.read(client_server.grpc_url, "slow") - before).failed_requests <= 1


@pytest.mark.server
def test_regions_of_many_clients_that_are_killed_at_once_are_removed(client_server: Server) -> None:
    clients = [client(client_server, "slow", 0) for _ in range(6)]
    assert all(client.stdout and client.stdout.readline() for client in clients)
    assert len(registered(client_server.grpc_url)) == 6
    for process in clients:
        process.kill()
    assert [process.communicate()[1] for process in clients] == [""] * 6
    assert wait_until(lambda: not registered(client_server.grpc_url), seconds=LEASE_S)
    assert wait_until(lambda: not files(), seconds=1)


@pytest.mark.server
def test_regions_of_a_client_killed_with_its_reaper_go_with_the_next_client(client_server: Server) -> None:
    killed = client(client_server, "slow", 0)
    assert killed.stdout is not None
    assert killed.stdout.readline()
    reaper = reaper_of(client_server)
    os.kill(reaper, signal.SIGKILL)
    assert wait_until(lambda: not alive({reaper}), seconds=2)
    killed.kill()
    killed.communicate()
    assert len(registered(client_server.grpc_url)) == 1
    # The next client finds it by its name, and a reaper of its own.
    with Model("slow", url=client_server.grpc_url, transport="shared_memory") as model:
        assert model.predict(0 * ONE).item() > 0
        assert len(registered(client_server.grpc_url)) == 1
        assert reaper_of(client_server) != reaper
    assert registered(client_server.grpc_url) == []


@pytest.mark.server
def test_a_client_with_its_own_shared_memory_uses_the_connection(client_server: Server) -> None:
    elsewhere = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs tmpfs /dev/shm && exec "$@"', "sh")
    if subprocess.run([*elsewhere, "true"], capture_output=True).returncode:
        pytest.skip("this user may not mount another /dev/shm")
    refused = client(client_server, "slow", 0, *elsewhere)
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


@pytest.mark.server
def test_memory_of_the_same_name_that_is_not_ours_is_noticed(
    client_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server maps another file of that name: the first answer shows it, and comes over the connection."""
    unlink = Region.unlink

    def replaced(region: Region) -> None:
        unlink(region)
        region.memory = mmap.mmap(-1, region.size)

    monkeypatch.setattr(Region, "unlink", replaced)
    with Model("slow", url=client_server.grpc_url, transport="auto") as model:
        assert model.predict(0 * ONE).item() > 0
    with Model("wide", url=client_server.grpc_url) as model:
        assert (model.predict(5 * ONE) == 5).all()
        assert (model.predict(6 * ONE) == 6).all()
    with Model("slow", url=client_server.grpc_url, transport="shared_memory") as model:
        for _ in range(2):
            with pytest.raises(TransportError, match="cannot open this machine's shared memory"):
                model.predict(0 * ONE)


def test_files_of_the_dead_are_swept_and_those_of_the_living_stay() -> None:
    mine = Region(1)
    own, pid, start, random = mine.file.removeprefix(PREFIX).split("_")
    finished = subprocess.Popen(["true"])
    finished.wait()
    dead = f"{PREFIX}{own}_{finished.pid}_{start}_{random}"
    reused = f"{PREFIX}{own}_{pid}_1_{random}"
    foreign = f"{PREFIX}0123456789ab_{finished.pid}_{start}_{random}"
    others = [regions.FOLDER / name for name in (dead, reused, foreign)]
    try:
        for path in others:
            path.touch()
        assert set(stale([mine.name, mine.file, dead, reused, foreign, "other"])) == {dead, reused}
        regions.sweep()
        assert set(files()) >= {mine.file, foreign}
        assert not {dead, reused} & set(files())
    finally:
        mine.unlink()
        mine.close()
        others[2].unlink()


def reaper_of(server: Server) -> int:
    """The process number of the reaper for this server, from the command lines in /proc."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if server.grpc_url.encode() in words and any(word.endswith(b"/reaper.py") for word in words):
            return int(path.parent.name)
    raise AssertionError("no reaper runs")
