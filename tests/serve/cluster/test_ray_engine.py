"""Replicas on a Ray of several nodes: spread, replaced elsewhere after each kind of death, and gone at the end.

Each replica is a server of its own on its node: five starts.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import pytest

pytest.importorskip("ray", reason="ray is not installed: pip install 'triton-batching[ray]'")

import ray_nodes
from processes import alive, descendants, leftovers, wait_until
from server_processes import prefix, tritonserver
from sleepers import PLAIN

from export.repository import REPOSITORY
from serve.cluster.engine import Phase, Replica, ReplicaState
from serve.cluster.ray_engine import RayEngine
from serve.cluster.ray_nodes import Node, Placed, check_room, choose
from serve.cluster.ray_session import connected
from serve.launcher import Settings
from serve.management import api
from triton_batching.terminal import Mistake

SECONDS = 150
# It connects to the Ray at its first argument, or starts one, and starts the replica that its second argument names.
PROGRAM = """
import sys, time
from serve.cluster.engine import Phase, Replica
from serve.cluster.ray_session import connected
from serve.launcher import Settings

SETTINGS = Settings(models=("simulated_accelerator",), arguments=("--disable-auto-complete-config",))
with connected(sys.argv[1] or None):
    from serve.cluster.ray_engine import RayEngine

    engine = RayEngine()
    for name in sys.argv[2:]:
        engine.start(Replica(name=name, deployment="it", cpus=0.5, settings=SETTINGS))
        while (state := engine.states()[name]).phase is Phase.STARTING:
            time.sleep(0.05)
        print(state.problem or state.pid, flush=True)
    print("ready", flush=True)
    sys.stdin.read()
    engine.close()
"""
pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    """Two nodes with one cpu and one GPU (by name) each."""
    with ray_nodes.cluster("a", "b", cpus=1, gpus=1) as cluster:
        yield cluster


def replica(name: str, *, cpus: float = 0.5, gpus: float = 0.0, nodes: tuple[str, ...] = ()) -> Replica:
    settings = Settings(models=("simulated_accelerator",), arguments=PLAIN)
    return Replica(name=name, deployment=name.partition("-")[0], settings=settings, cpus=cpus, gpus=gpus, nodes=nodes)


def ready(engine: RayEngine, *names: str) -> list[ReplicaState]:
    assert wait_until(lambda: all(engine.states()[name].phase is not Phase.STARTING for name in names), seconds=SECONDS)
    states = [engine.states()[name] for name in names]
    assert [state.problem for state in states] == ["" for _ in names]
    assert all(api.is_ready(f"{state.host}:{state.http_port}") for state in states)
    return states


def problem(engine: RayEngine, name: str) -> str:
    """Why it ended."""
    assert wait_until(lambda: engine.states()[name].phase is Phase.ENDED, seconds=SECONDS)
    return engine.states()[name].problem


def blocked_signals(pid: int) -> int:
    """The mask of the signals that the process does not get."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("SigBlk:")[2].split()[0], 16)


def test_replicas_are_spread_die_are_replaced_and_leave_nothing(nodes: Any) -> None:
    extra = ray_nodes.add(nodes, "c", cpus=1)
    with connected(nodes.address):
        engine = RayEngine()
        for each in (
            replica("it-1"),
            replica("gpu-1", cpus=0.0, gpus=1.0, nodes=("b",)),
            replica("it-2", nodes=("c",)),
        ):
            engine.start(each)
        states = ready(engine, "it-1", "gpu-1", "it-2")
        assert [state.node for state in states] == ["a", "b", "c"]
        servers = [tritonserver(state.pid) for state in states]
        assert [state.server_pid for state in states] == servers
        environments = [psutil.Process(server).environ() for server in servers]
        assert [environment["CUDA_VISIBLE_DEVICES"] for environment in environments] == ["", "0", ""]
        assert "OMP_NUM_THREADS" not in environments[0]
        # The guard stops its server with SIGINT.
        assert not any(blocked_signals(server) & 1 << (signal.SIGINT - 1) for server in servers)
        prefixes, below = [prefix(server) for server in servers], set().union(*(descendants(s.pid) for s in states))
        assert below
        os.kill(psutil.Process(states[0].pid).ppid(), signal.SIGKILL)
        os.kill(servers[1], signal.SIGKILL)
        nodes.remove_node(extra, allow_graceful=False)
        assert problem(engine, "it-1") == "its process in Ray on node a died"
        assert problem(engine, "gpu-1") == "tritonserver was killed by SIGKILL"
        assert problem(engine, "it-2").startswith("its process in Ray on node c does not answer any more")
        engine.start(replica("it-3"))
        [new] = ready(engine, "it-3")
        assert new.node in ("a", "b")
        assert new.pid not in {state.pid for state in states}
        below |= descendants(new.pid) | {new.pid, *(state.pid for state in states)}
        prefixes.append(prefix(tritonserver(new.pid)))
        engine.close()
        assert not engine.states()
    # The guards have ended the servers of the dead actors, too.
    assert wait_until(lambda: not alive(below), seconds=30), alive(below)
    assert [leftovers(shared) for shared in prefixes] == [[]] * 4


@contextmanager
def program(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """The program, and its folder for temporary files, whose path is short enough for Ray's sockets."""
    with TemporaryDirectory(prefix="", dir="/tmp") as folder:
        environment = {name: value for name, value in os.environ.items() if name != "RAY_TMPDIR"}
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *arguments],
            env=environment | {"PYTHONPATH": str(REPOSITORY.parent), "TMPDIR": folder},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            yield process, Path(folder)
        finally:
            process.kill()
            process.communicate()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_no_server_outlives_a_killed_program(nodes: Any) -> None:
    """The program has started Ray itself; it has another port than the one of `nodes`."""
    with program("", "it-1") as (process, _):
        guard = int(line(process))
        actor = psutil.Process(guard).ppid()
        servers, shared = descendants(guard) | {guard, actor}, prefix(tritonserver(guard))
        helpers = {pid for pid in descendants(process.pid) if ray_nodes.is_helper(pid)}
        others = descendants(process.pid) - helpers
        process.kill()
        assert wait_until(lambda: not alive(servers | others), seconds=60)
        assert leftovers(shared) == []
        # They end by themselves after a minute.
        for pid in alive(helpers):
            os.kill(pid, signal.SIGKILL)


def test_a_program_has_its_own_ray_on_loopback_and_ends_it(nodes: Any) -> None:
    with program("") as (process, folder):
        assert line(process) == "ready"
        below = descendants(process.pid)
        connections = [each for pid in below for each in psutil.Process(pid).net_connections("tcp")]
        listeners = {each.laddr.ip for each in connections if each.status == psutil.CONN_LISTEN}
        assert {address.rpartition(":")[2] for address in listeners} == {ray_nodes.LOOPBACK}
        assert list(folder.glob("triton-batching-*"))
        assert (*process.communicate("", timeout=SECONDS), process.returncode) == ("", "", 0)
        assert not alive(below)
        assert not list(folder.glob("triton-batching-*"))


def node(name: str, cpus: float, free: float, gpus: float = 0.0) -> Node:
    return Node(name=name, node_id=f"{name}-id", address=name, cpus=cpus, gpus=gpus, free_cpus=free, free_gpus=gpus)


def test_a_replica_goes_where_its_deployment_is_not_yet_and_room_is() -> None:
    present = [node("a", 2, 2), node("b", 2, 2), node("c", 2, 0)]
    on_a = Placed(replica=replica("it-1", cpus=1), node=present[0])
    other = Placed(replica=replica("other-1", cpus=1), node=present[1])
    one, two = replica("it-2", cpus=1), replica("it-2", cpus=2)
    assert choose(one, present, [on_a, other]).name == "b"
    assert choose(one, present, [on_a, other], lost=["b-id"]).name == "a"
    # Both have too little room for two cpus, and so has c: the replica waits where its deployment is not.
    assert choose(two, present, [on_a, other]).name == "c"
    assert choose(replica("it-2", cpus=1, nodes=("c",)), present, []).name == "c"


def test_of_the_nodes_of_a_deployment_one_with_room_is_chosen() -> None:
    big, small = node("big", 2, 2), node("small", 1, 1)
    asked = [replica(f"it-{number}", cpus=1, nodes=("small", "big", "away")) for number in range(3)]
    check_room(asked, [big, small])
    placed: list[Placed] = []
    for each in asked:
        placed.append(Placed(replica=each, node=choose(each, [big, small], placed)))
    assert sorted(each.node.name for each in placed) == ["big", "big", "small"]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ([replica("it-1", cpus=4)], "no node has room for a replica that takes 4 cpus .a: 2 of 2 cpus free; b: 1 of 2"),
        ([replica("it-1", gpus=1)], "no node has room for a replica that takes 0.5 cpus and 1 gpus"),
        ([replica("it-1", nodes=("z",))], "no node z. Ray has a, b"),
        ([replica(f"it-{n}", cpus=1) for n in range(4)], "4 more replicas take 4 cpus, and the nodes have too"),
    ],
)
def test_a_plan_without_room_is_refused(asked: list[Replica], said: str) -> None:
    present = [node("a", 2, 2), node("b", 2, 1)]
    check_room([replica(f"it-{n}", cpus=1) for n in range(3)], present)
    with pytest.raises(Mistake, match=said):
        check_room(asked, present)
