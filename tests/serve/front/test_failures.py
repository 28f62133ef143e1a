"""What clients see when replicas and the proxy die, drain and hang: nothing, wherever a request may run twice.

Two replicas serve all tests; three more are servers of their own because they end.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import client_models
import pytest
from doors import (
    GRPC,
    HTTP,
    RANKER,
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
from tritonclient.grpc import service_pb2

from export.repository import REPOSITORY
from serve.front.door import FrontDoor, Tenant
from serve.launcher import Server
from serve.management.statistics import Counters
from triton_batching.processes import is_running

pytestmark = pytest.mark.server
PAGE = Path(__file__).parents[3] / "serve" / "FRONT.md"
CLIENTS = 8
ASKED, CROWDED = "asked", "crowded"
EMPTY_REPLY = 52  # curl: the connection was closed before an answer
# Of one request over HTTP.
METRIC = 'envoy_cluster_upstream_rq_total{envoy_cluster_name="simulated_accelerator/http"} 1\n'
TRACE = {"traceparent": f"00-{'1' * 32}-b7ad6b7169203331-01", "tracestate": "a=b"}


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


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sequence[Server]]:
    """Two replicas; CROWDED has room for one request in its queue, and ASKED answers the headers of a trace."""
    repository = client_models.build(tmp_path_factory.mktemp("replicas"))
    for model in (SIMULATED, CROWDED):
        shutil.copytree(REPOSITORY / SIMULATED, repository / model)
    config = repository / CROWDED / "config.pbtxt"
    policy = "dynamic_batching { default_queue_policy { max_queue_size: 1 } }"
    text = config.read_text().replace("dynamic_batching { }", policy).replace(f'"{SIMULATED}"', f'"{CROWDED}"')
    config.write_text(text)
    forwarded = [f"--{protocol}-header-forward-pattern=trace.*" for protocol in ("http", "grpc")]
    with contextlib.ExitStack() as stack:
        servers = start(stack, SIMULATED, SIMULATED, repository=repository, more=(CROWDED, ASKED), arguments=forwarded)
        yield servers
        assert all(server.running() for server in servers)


def test_a_replica_dies_and_one_hangs_and_nobody_sees_it(replicas: Sequence[Server]) -> None:
    """It dies of the first request of serve/FRONT.md."""
    [command, *_] = re.findall(r"```bash\n(.*?)```", PAGE.read_text(), re.DOTALL)
    with contextlib.ExitStack() as stack:
        [victim] = start(stack, SIMULATED, more=(RANKER,))
        sleeper = tritonserver(replicas[1].pid)
        front = door(SIMULATED, slowest_s=1.0)
        with opened(front, simulated_accelerator=endpoints([*replicas, victim])) as proxy:

            def harm() -> None:
                environment = os.environ | {"URL": victim.http_url}
                done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, timeout=60)
                assert done.returncode == EMPTY_REPLY, done.stdout
                os.kill(sleeper, signal.SIGSTOP)

            try:
                assert offer(front, 30, harm) == []
            finally:
                os.kill(sleeper, signal.SIGCONT)
            assert wait_until(lambda: not victim.running(), seconds=30.0)
            traffic = proxy.traffic()
            assert all(traffic[f"r{number}"].requests > 0 for number in range(3))
            assert sum(replica.requests for replica in traffic.values()) >= CLIENTS * 30


def test_a_replica_that_is_told_to_stop_refuses_and_nobody_sees_it(replicas: Sequence[Server]) -> None:
    """After SIGTERM tritonserver answers over gRPC that it stops, until its ports close."""
    with contextlib.ExitStack() as stack:
        [victim] = start(stack, SIMULATED)
        front = door(SIMULATED)
        with opened(front, simulated_accelerator=endpoints([*replicas, victim])):
            assert offer(front, 50, lambda: os.kill(tritonserver(victim.pid), signal.SIGTERM)) == []
            assert wait_until(lambda: not victim.running(), seconds=30.0)


def test_a_draining_replica_gets_nothing_new(replicas: Sequence[Server]) -> None:
    front = door(SIMULATED)
    ready = endpoints(replicas)
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
        assert set(proxy.traffic()) == {"r1"}
        with Caller(front) as caller:
            assert caller.infer(GRPC, SIMULATED).ok


def test_a_replica_in_the_place_of_another_counts_from_0(replicas: Sequence[Server]) -> None:
    first, second = endpoints(replicas)
    front = door(SIMULATED)
    with opened(front, simulated_accelerator=[first]) as proxy, Caller(front) as caller:
        assert all(caller.infer(protocol, SIMULATED).ok for protocol in (GRPC, HTTP) * 2)
        proxy.route({SIMULATED: [first, second]})
        proxy.route({SIMULATED: [second]})
        assert all(caller.infer(protocol, SIMULATED).ok for protocol in (GRPC, HTTP) * 2)
        assert {name: replica.requests for name, replica in proxy.traffic().items()} == {"r1": 4}


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


def test_a_request_that_must_not_run_twice_does_not(replicas: Sequence[Server]) -> None:
    def executed() -> int:
        return Counters.read(f"http://{replicas[0].http_url}", SIMULATED).requests

    with contextlib.ExitStack() as stack:
        [victim] = start(stack, SIMULATED)
        front = door(SIMULATED, is_retried=False)
        with (
            opened(front, simulated_accelerator=[endpoint(victim, "victim")]) as proxy,
            ThreadPoolExecutor() as threads,
        ):
            os.kill(tritonserver(victim.pid), signal.SIGSTOP)
            caller = stack.enter_context(Caller(front))
            calls = [threads.submit(caller.infer, protocol, SIMULATED) for protocol in (GRPC, HTTP)]
            assert wait_until(lambda: proxy.traffic()["victim"].in_flight == 2, seconds=20)
            before = executed()
            proxy.route({SIMULATED: [endpoint(victim, "victim", is_draining=True), endpoint(replicas[0], "other")]})
            os.kill(tritonserver(victim.pid), signal.SIGKILL)
            assert [call.result().code for call in calls] == ["UNAVAILABLE", "503"]
        assert executed() == before


def test_an_answer_is_final_even_if_it_is_unavailable(replicas: Sequence[Server]) -> None:
    front = door(CROWDED)
    with opened(front, crowded=endpoints(replicas)) as proxy, Caller(front) as caller:
        for number, (protocol, expected) in enumerate({GRPC: {"OK", "UNAVAILABLE"}, HTTP: {"200", "503"}}.items(), 1):
            with ThreadPoolExecutor(16) as threads:
                calls = [threads.submit(caller.infer, protocol, CROWDED) for _ in range(32)]
                assert {call.result().code for call in calls} == expected
            assert sum(replica.requests for replica in proxy.traffic().values()) == 32 * number


def test_headers_of_a_trace_pass_from_tenants_or_if_asked_for(replicas: Sequence[Server]) -> None:
    tenant = Tenant(name="anna", token="t" * 32, requests_per_s=100.0, burst=100)
    token = {"Authorization": f"Bearer {tenant.token}"}
    for front, headers, seen in (
        (door(ASKED), {}, set()),
        (door(ASKED, passes_traces=True), {}, set(TRACE)),
        (door(ASKED, tenants=(tenant,)), token, set(TRACE)),
    ):
        with opened(front, asked=endpoints(replicas[:1])), Caller(front, TRACE | headers) as caller:
            assert headers_seen(caller) == [seen, seen]


def headers_seen(caller: Caller) -> list[set[str]]:
    """Which headers of a trace the server gets of a request over HTTP and of one over gRPC."""
    body = {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1.0]}]}
    request = service_pb2.ModelInferRequest(model_name=ASKED, raw_input_contents=[b"\0" * 4])
    request.inputs.add(name="x", datatype="FP32", shape=[1, 1])
    over_http = caller.http("POST", f"/v2/models/{ASKED}/infer", json.dumps(body).encode())
    over_grpc = caller.grpc("ModelInfer", request.SerializeToString())
    assert over_http.ok, over_http
    assert over_grpc.ok, over_grpc
    [content] = service_pb2.ModelInferResponse.FromString(over_grpc.body).raw_output_contents
    told = [json.loads(over_http.body)["outputs"][0]["data"][0], content[4:]]
    return [{name for name in TRACE if name in json.loads(text)["parameters"]} for text in told]


@pytest.mark.parametrize(("victim", "end"), [(1, signal.SIGKILL), (0, signal.SIGKILL), (1, signal.SIGSTOP)])
def test_a_proxy_that_dies_or_hangs_comes_back_with_its_endpoints(
    replicas: Sequence[Server], victim: int, end: signal.Signals
) -> None:
    """The victim is the proxy or its guard."""
    front = door(SIMULATED)
    with opened(front, simulated_accelerator=endpoints(replicas)) as proxy, Caller(front) as caller:
        assert caller.infer(HTTP, SIMULATED).ok
        pids = proxy.pids()
        os.kill(pids[victim], end)
        assert wait_until(lambda: proxy.restarts == 1, seconds=40)
        for protocol in (HTTP, GRPC):
            assert wait_until(lambda: caller.infer(protocol, SIMULATED).ok, seconds=40)  # noqa: B023
        assert set(proxy.traffic()) == {"r0", "r1"}
        assert not is_running(pids[1])


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
    front = door(SIMULATED)
    command = [sys.executable, "-c", PROGRAM, str(front.http_port), str(front.grpc_port)]
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        environment = os.environ | {"TMPDIR": name, "PYTHONPATH": str(PAGE.parents[1])}
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as program:
            assert program.stdout is not None
            pids = [int(pid) for pid in program.stdout.readline().split()]
            [folder] = Path(name).iterdir()
            files = [path for path in folder.iterdir() if path.is_file()]
            assert files
            assert not any(path.stat().st_mode & 0o077 for path in files)
            program.kill()
        assert wait_until(lambda: not any(map(is_running, pids)), seconds=40)
        assert wait_until(lambda: not list(Path(name).iterdir()), seconds=40)


def test_a_long_temporary_directory_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket's path has 107 characters at most."""
    long = tmp_path / ("x" * 60)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with opened(door(SIMULATED)):
        assert not list(long.iterdir())
