"""What clients see when replicas and the proxy die, drain and hang: nothing, wherever a request may run twice."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from doors import (
    GRPC,
    HTTP,
    SIMULATED,
    Answer,
    Caller,
    door,
    endpoint,
    endpoints,
    is_right,
    opened,
    start,
)
from processes import wait_until
from server_processes import tritonserver

from export.repository import REPOSITORY
from serve.front import envoy
from serve.front.door import FrontDoor
from serve.front.process import ProxyError
from serve.launcher import Server
from serve.management.statistics import Counters
from triton_batching.processes import is_running

pytestmark = pytest.mark.server
CLIENTS = 8
# Of one request over HTTP.
METRIC = 'envoy_cluster_upstream_rq_total{envoy_cluster_name="simulated_accelerator/http"} 1\n'


def offer(front: FrontDoor, requests: int, meanwhile: Callable[[], None]) -> list[Answer]:
    """The wrong and failed answers to that many requests of each client, half of the clients over each protocol.

    `meanwhile` runs when a fifth of them is answered.
    """
    answered, fifth = [0], threading.Event()

    def client(number: int) -> list[Answer]:
        bad = []
        with Caller(front) as caller:
            for seed in range(number, number + requests):
                answer = caller.infer((GRPC, HTTP)[number % 2], SIMULATED, seed=seed)
                if not is_right(answer, seed=seed):
                    bad.append(answer)
                answered[0] += 1
                if answered[0] > CLIENTS * requests // 5:
                    fifth.set()
        return bad

    with ThreadPoolExecutor() as threads:
        clients = [threads.submit(client, number) for number in range(CLIENTS)]
        assert fifth.wait(60.0)
        meanwhile()
        return [answer for one in clients for answer in one.result()]


def test_a_replica_dies_and_one_hangs_and_nobody_sees_it(replicas: Sequence[Server]) -> None:
    with contextlib.ExitStack() as stack:
        victim, sleeper = start(stack, SIMULATED, SIMULATED)
        front = door(SIMULATED, slowest_s=1.0)
        with opened(front, simulated_accelerator=endpoints([*replicas[:2], victim, sleeper])) as proxy:

            def harm() -> None:
                os.kill(tritonserver(victim.pid), signal.SIGKILL)
                os.kill(tritonserver(sleeper.pid), signal.SIGSTOP)

            try:
                assert offer(front, 30, harm) == []
            finally:
                os.kill(tritonserver(sleeper.pid), signal.SIGCONT)
            traffic = proxy.traffic()
            assert all(traffic[f"r{number}"].requests > 0 for number in range(4))
            assert sum(replica.requests for replica in traffic.values()) >= CLIENTS * 30


def test_a_replica_that_is_told_to_stop_refuses_and_nobody_sees_it(replicas: Sequence[Server]) -> None:
    """After SIGTERM tritonserver answers over gRPC that it stops, until its ports close."""
    with contextlib.ExitStack() as stack:
        [victim] = start(stack, SIMULATED)
        front = door(SIMULATED)
        with opened(front, simulated_accelerator=endpoints([*replicas[:2], victim])):
            assert offer(front, 50, lambda: os.kill(tritonserver(victim.pid), signal.SIGTERM)) == []
            assert wait_until(lambda: not victim.running(), seconds=30.0)


def test_a_draining_replica_gets_nothing_new(replicas: Sequence[Server]) -> None:
    front = door(SIMULATED)
    ready = endpoints(replicas[:3])
    with opened(front, simulated_accelerator=ready) as proxy:
        before: list[int] = []

        def drain() -> None:
            proxy.route({SIMULATED: [endpoint(replicas[0], "r0", is_draining=True), *ready[1:]]})
            before.append(proxy.traffic()["r0"].requests)

        assert offer(front, 30, drain) == []
        assert before[0] > 0
        assert proxy.traffic()["r0"].requests == before[0]
        assert proxy.traffic()["r0"].in_flight == 0
        proxy.route({SIMULATED: ready[1:]})
        assert set(proxy.traffic()) == {"r1", "r2"}
        with Caller(front) as caller:
            assert caller.infer(GRPC, SIMULATED).ok


def test_a_replica_in_the_place_of_another_counts_from_0(replicas: Sequence[Server]) -> None:
    first, second, third = endpoints(replicas[:3])
    front = door(SIMULATED)
    with opened(front, simulated_accelerator=[first, second]) as proxy, Caller(front) as caller:
        assert all(caller.infer(protocol, SIMULATED).ok for protocol in (GRPC, HTTP) * 4)
        proxy.route({SIMULATED: [second]})
        proxy.route({SIMULATED: [second, third]})
        assert proxy.traffic()["r2"].requests == 0
        proxy.route({SIMULATED: [third]})
        assert all(caller.infer(protocol, SIMULATED).ok for protocol in (GRPC, HTTP) * 2)
        assert proxy.traffic()["r2"].requests == 4


def test_a_proxy_that_hung_takes_what_it_was_told_meanwhile(
    replicas: Sequence[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(envoy, "TAKEN_S", 0.2)
    monkeypatch.setattr(envoy, "ADMIN_TIMEOUT_S", 0.1)
    first, second, third = endpoints(replicas[:3])
    front = door(SIMULATED)
    with opened(front, simulated_accelerator=[first]) as proxy, Caller(front) as caller:
        _, process = proxy.pids()
        os.kill(process, signal.SIGSTOP)
        try:
            with pytest.raises(ProxyError, match="did not take the endpoints"):
                proxy.route({SIMULATED: [second, third]})
        finally:
            os.kill(process, signal.SIGCONT)
        monkeypatch.undo()
        proxy.route({SIMULATED: [third]})
        assert all(caller.infer(protocol, SIMULATED).ok for protocol in (GRPC, HTTP) * 4)
        assert {name: replica.requests for name, replica in proxy.traffic().items()} == {"r2": 8}


def test_the_door_is_ready_when_each_pool_has_a_replica(replicas: Sequence[Server]) -> None:
    front = door(SIMULATED)
    with opened(front) as proxy, Caller(front) as caller:
        unready = caller.http("GET", "/v2/health/ready")
        assert (unready.code, b"no replica" in unready.body) == ("503", True)
        assert caller.infer(GRPC, SIMULATED).code == "UNAVAILABLE"
        assert caller.infer(HTTP, SIMULATED).code == "503"
        proxy.route({SIMULATED: endpoints(replicas[:1])})
        assert caller.http("GET", "/v2/health/ready").ok
        assert caller.infer(HTTP, SIMULATED).ok
        assert METRIC in proxy.metrics()


def test_requests_in_flight_are_answered_when_the_door_closes(replicas: Sequence[Server]) -> None:
    front = door(SIMULATED)
    with ThreadPoolExecutor(16) as threads, Caller(front) as caller:
        with opened(front, simulated_accelerator=endpoints(replicas[:1])) as proxy:
            # Each is an execution of its own.
            calls = [threads.submit(caller.infer, protocol, SIMULATED, rows=8) for protocol in (GRPC, HTTP) * 8]
            assert wait_until(lambda: proxy.traffic()["r0"].requests >= len(calls), seconds=20)
        assert {call.result().code for call in calls} == {"OK", "200"}


@pytest.mark.parametrize("is_retried", [True, False])
def test_a_request_that_must_not_run_twice_does_not(replicas: Sequence[Server], is_retried: bool) -> None:
    def executed() -> int:
        return Counters.read(f"http://{replicas[0].http_url}", SIMULATED).requests

    with contextlib.ExitStack() as stack:
        [victim] = start(stack, SIMULATED)
        front = door(SIMULATED, is_retried=is_retried)
        with (
            opened(front, simulated_accelerator=[endpoint(victim, "victim")]) as proxy,
            ThreadPoolExecutor() as threads,
        ):
            os.kill(tritonserver(victim.pid), signal.SIGSTOP)
            caller = stack.enter_context(Caller(front))
            calls = [threads.submit(caller.infer, protocol, SIMULATED) for protocol in (GRPC, HTTP)]
            assert wait_until(lambda: proxy.traffic()["victim"].in_flight == 2, seconds=10)
            before = executed()
            proxy.route({SIMULATED: [endpoint(victim, "victim", is_draining=True), endpoint(replicas[0], "other")]})
            os.kill(tritonserver(victim.pid), signal.SIGKILL)
            codes = [call.result().code for call in calls]
        assert codes == (["OK", "200"] if is_retried else ["UNAVAILABLE", "503"])
        assert executed() - before == (2 if is_retried else 0)


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sequence[Server]]:
    """Two replicas with room for one request in the queue."""
    folder = tmp_path_factory.mktemp("crowded") / SIMULATED
    shutil.copytree(REPOSITORY / SIMULATED, folder)
    config = folder / "config.pbtxt"
    policy = "dynamic_batching { default_queue_policy { max_queue_size: 1 } }"
    config.write_text(config.read_text().replace("dynamic_batching { }", policy))
    with contextlib.ExitStack() as stack:
        yield start(stack, SIMULATED, SIMULATED, repository=folder.parent)


def test_an_answer_is_final_even_if_it_is_unavailable(crowded: Sequence[Server]) -> None:
    front = door(SIMULATED)
    with opened(front, simulated_accelerator=endpoints(crowded)) as proxy, Caller(front) as caller:
        for number, (protocol, expected) in enumerate({GRPC: {"OK", "UNAVAILABLE"}, HTTP: {"200", "503"}}.items(), 1):
            with ThreadPoolExecutor(16) as threads:
                calls = [threads.submit(caller.infer, protocol, SIMULATED) for _ in range(32)]
                assert {call.result().code for call in calls} == expected
            assert sum(replica.requests for replica in proxy.traffic().values()) == 32 * number


@pytest.mark.parametrize(
    ("victim", "end"), [("the proxy", signal.SIGKILL), ("its parent", signal.SIGKILL), ("the proxy", signal.SIGSTOP)]
)
def test_a_proxy_that_dies_or_hangs_comes_back_with_its_endpoints(
    replicas: Sequence[Server], victim: str, end: signal.Signals
) -> None:
    front = door(SIMULATED)
    with opened(front, simulated_accelerator=endpoints(replicas[:2])) as proxy, Caller(front) as caller:
        assert caller.infer(HTTP, SIMULATED).ok
        parent, process = proxy.pids()
        os.kill(process if victim == "the proxy" else parent, end)
        assert wait_until(lambda: proxy.restarts == 1, seconds=20)
        for protocol in (HTTP, GRPC):
            assert wait_until(lambda: caller.infer(protocol, SIMULATED).ok, seconds=20)  # noqa: B023
        assert set(proxy.traffic()) == {"r0", "r1"}
        assert not is_running(process)


PROGRAM = """
import sys, time
from serve.front.door import FrontDoor, Pool
from serve.front.envoy import open_door
pool = Pool(name="a", models=("a",), slowest_s=1.0, is_retried=True, most_in_flight=1)
http_port, grpc_port = map(int, sys.argv[1:])
with open_door(FrontDoor(host="127.0.0.1", http_port=http_port, grpc_port=grpc_port, pools=(pool,))) as proxy:
    print(*proxy.pids(), flush=True)
    time.sleep(60)
"""


def test_a_killed_program_leaves_no_proxy_and_no_file() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        _check_killed_program(Path(folder))


def test_a_long_temporary_directory_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket's path has 107 characters at most."""
    long = tmp_path / ("x" * 60)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with opened(door(SIMULATED)):
        assert not list(long.iterdir())


def _check_killed_program(tmp_path: Path) -> None:
    front = door(SIMULATED)
    command = [sys.executable, "-c", PROGRAM, str(front.http_port), str(front.grpc_port)]
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[3])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as program:
        assert program.stdout is not None
        pids = [int(pid) for pid in program.stdout.readline().split()]
        [folder] = tmp_path.iterdir()
        files = [path for path in folder.iterdir() if path.is_file()]
        assert files
        assert not any(path.stat().st_mode & 0o077 for path in files)
        program.kill()
    assert wait_until(lambda: not any(map(is_running, pids)), seconds=20)
    assert wait_until(lambda: not list(tmp_path.iterdir()), seconds=20)
