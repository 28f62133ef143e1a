"""Which requests a front door lets through to a real server: sizes, JSON, time, tenants, TLS, and nothing private."""

import contextlib
import itertools
import os
import re
import signal
import socket
import ssl
import subprocess
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Literal

import certificates
import grpc
import numpy as np
import pytest
from bench import Bench
from doors import GRPC, HTTP, RANKER, SIMULATED, Caller, binary, door, endpoint, is_right, message, opened
from server_processes import tritonserver
from tritonclient.grpc import service_pb2

from clients import Model
from serve.front.door import FrontDoor, Tenant, Tls
from serve.front.envoy import open_door
from serve.front.envoy_routes import HEALTH_BYTES, HEALTH_METHOD, HEALTH_PER_S
from serve.launcher import Server

pytestmark = pytest.mark.server
PAGE = Path(__file__).parents[3] / "serve" / "FRONT.md"
COMMANDS = re.findall(r"```bash\n(.*?)```", PAGE.read_text(), re.DOTALL)
LARGEST = 20_000
CUT_OFF = (55, 56)  # curl: sending, or receiving, failed
INFER = "/v2/models/ranker/infer"
TENSOR = '{"inputs":[{"name":"features","datatype":"FP32","shape":%s,"data":[1]}]}'
ANNA = Tenant(name="anna", token="a" * 32, requests_per_s=1000.0, burst=1000)


@pytest.fixture(scope="module")
def replica(bench: Bench, ranker: Path) -> Iterator[Server]:
    assert ranker.is_file()
    with bench.serving((SIMULATED, RANKER)) as server:
        yield server


@pytest.fixture(scope="module")
def front(replica: Server) -> Iterator[FrontDoor]:
    """A door before both models, with a small limit on requests."""
    front = door(SIMULATED, RANKER, largest_request_bytes=LARGEST, retry_buffer_bytes=2 * LARGEST)
    with opened(front, simulated_accelerator=[endpoint(replica, "r0")], ranker=[endpoint(replica, "r1")]):
        yield front


@contextlib.contextmanager
def opened_for(replica: Server, model: str, front: FrontDoor) -> Iterator[FrontDoor]:
    with opened(front, **{model: [endpoint(replica, "r0")]}):
        yield front


@pytest.mark.parametrize("protocol", [GRPC, HTTP])
def test_the_name_of_a_model_chooses_the_pool(
    front: FrontDoor, replica: Server, protocol: Literal["grpc", "http"]
) -> None:
    with Caller(front) as through, Caller(replica) as direct:
        assert is_right(through.infer(protocol, SIMULATED, seed=3), seed=3)
        assert through.infer(protocol, RANKER) == direct.infer(protocol, RANKER)
    port = front.grpc_port if protocol == GRPC else front.http_port
    with Model(SIMULATED, url=f"127.0.0.1:{port}", transport=protocol) as model:
        picture = np.full((1, 1, 32, 100), 0.5, np.float32)
        assert np.allclose(model.predict(picture), 0.5)


def test_a_model_that_no_pool_has_is_named(front: FrontDoor) -> None:
    with Caller(front) as caller:
        for method, request in (
            ("ModelInfer", service_pb2.ModelInferRequest(model_name="other")),
            ("ModelConfig", service_pb2.ModelConfigRequest(name="other")),
        ):
            answer = caller.grpc(method, request.SerializeToString())
            assert (answer.code, b"'other'" in answer.body) == ("NOT_FOUND", True)
        assert caller.grpc("ModelConfig", b"").code == "INVALID_ARGUMENT"
        answer = caller.http("GET", "/v2/models/other/config")
        assert (answer.code, b"/v2/models/other/config" in answer.body) == ("404", True)


def test_clients_may_read_what_they_need_and_nothing_else(front: FrontDoor) -> None:
    paths = {
        "GET": "/systemsharedmemory/status /cudasharedmemory/status /trace/setting /logging "
        "/models/ranker/trace/setting /models/ranker/../../repository/index /models/ranker/infer",
        "POST": "/repository/index /repository/models/ranker/load /models/ranker/trace/setting",
    }
    readable = "/health/ready /health/live /models/ranker /models/ranker/config /models/ranker/ready"
    named = service_pb2.ModelConfigRequest(name=RANKER).SerializeToString()
    with Caller(front, {"triton-grpc-protocol-admin": "guess"}) as caller:
        for path in ("", *readable.split()):
            assert caller.http("GET", f"/v2{path}").ok, path
        for method in ("ServerMetadata", "ServerReady", "ServerLive", "/grpc.health.v1.Health/Check"):
            assert caller.grpc(method).ok, method
        for method in ("ModelConfig", "ModelReady", "ModelMetadata", "ModelStatistics"):
            assert caller.grpc(method, named).ok, method
        assert caller.http("GET", "/metrics").code == "404"
        for method, private in paths.items():
            for path in private.split():
                assert caller.http(method, f"/v2{path}", b"{}" if method == "POST" else None).code == "404", path
        shared = "SystemSharedMemoryStatus CudaSharedMemoryStatus"
        for method in f"RepositoryIndex RepositoryModelLoad {shared} TraceSetting LogSettings".split():
            assert caller.grpc(method).code == "UNIMPLEMENTED", method


@pytest.mark.parametrize(("number", "status"), [(0, 400), (1, 400), (2, 413)], ids=["shape", "nested", "endless"])
def test_the_requests_that_end_a_bare_server_are_refused(replica: Server, number: int, status: int) -> None:
    """Those of serve/FRONT.md; tests/serve/front/test_failures.py sends the first to a bare server."""
    with opened_for(replica, RANKER, door(RANKER)) as front:
        command = COMMANDS[number].replace("curl", "curl --silent --write-out ' %{http_code}'")
        environment = os.environ | {"URL": f"127.0.0.1:{front.http_port}"}
        done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, timeout=60)
        # A refusal closes the connection, and a client that still sends may not see the answer before that.
        is_cut_off = status == 413 and done.returncode in CUT_OFF
        assert done.stdout.endswith(str(status).encode()) or is_cut_off, done
    assert replica.running()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (TENSOR % "[4611686018427387904,4,256]", "more values"),
        (TENSOR % "[0,4611686018427387904,4]", "more values"),
        (TENSOR % "[-1,2,256]", "whole numbers"),
        (TENSOR % "[1e11,2,256]", "whole numbers"),
        (TENSOR % "[1,[2],256]", "whole numbers"),
        ((TENSOR % "[100000000000,2,256]").replace("shape", r"sh\u0061pe"), "backslash"),
        ((TENSOR % "[100000000000,2,256]").replace('shape":', 'shape" \n:\t'), "more values"),
        (TENSOR % ("[" + "1," * 16 + "1]"), "dimensions"),
        ('{"x":"' + '\\"' * 9 + '","y":' + '{"a":' * 70, "deeper"),
        ("[" * 65, "deeper"),
    ],
)
def test_json_that_triton_must_not_parse_is_refused(front: FrontDoor, body: str, reason: str) -> None:
    with Caller(front) as caller:
        for tail, headers in ((b"", {}), (b"\0" * 64, {"Inference-Header-Content-Length": str(len(body))})):
            answer = caller.http("POST", INFER, body.encode() + tail, **headers)
            assert (answer.code, reason in answer.body.decode()) == ("400", True), answer


@pytest.mark.parametrize(
    ("path", "lengths", "reason"),
    [
        # Triton ignores the header here and reads all of the body.
        ("generate", "0", "deeper"),
        ("generate?/infer", "10", "deeper"),
        # Triton reads the first of several.
        ("infer", "70,10", "not a length"),
    ],
)
def test_the_header_hides_no_json_from_the_door(front: FrontDoor, path: str, lengths: str, reason: str) -> None:
    url, header = INFER.replace("infer", path), {"Inference_Header_Content_Length": lengths}
    with Caller(front) as caller:
        answer = caller.http("POST", url, b"[" * 70, **header)
        assert (answer.code, reason in answer.body.decode()) == ("400", True), answer


def test_the_largest_body_is_examined_whatever_its_headers(replica: Server) -> None:
    limited = door(RANKER, largest_request_bytes=LARGEST, retry_buffer_bytes=LARGEST + 1)
    body = b" " * (LARGEST - 70) + b"[" * 70
    headers = {f"x-{number}": "x" * 300 for number in range(95)}
    with opened_for(replica, RANKER, limited) as front, Caller(front, headers) as caller:
        answer = caller.http("POST", f"{INFER}?{'x' * 2000}", body)
        assert (answer.code, b"deeper" in answer.body) == ("400", True), answer
        # The client may not see the answer before the connection is closed.
        assert caller.http("POST", INFER, body, x_more="x" * 8000).code in ("431", "ConnectionResetError")


def test_what_looks_like_brackets_is_let_through(front: FrontDoor, replica: Server) -> None:
    body, headers = binary(RANKER)
    text = body.replace(b'{"inputs"', b'{"id":"' + b"[{" * 100 + b'\\"\\\\","inputs"')
    length = str(int(headers["Inference-Header-Content-Length"]) + len(text) - len(body))
    with Caller(front) as caller, Caller(replica) as direct:
        expected = direct.infer(HTTP, RANKER)
        # Brackets in a string, and in the binary tensor.
        assert caller.http("POST", INFER, text, Inference_Header_Content_Length=length) == expected
        tensor = len(body) - int(headers["Inference-Header-Content-Length"])
        brackets = body[:-tensor] + b"[" * tensor
        assert caller.http("POST", INFER, brackets, **headers).ok


def test_packed_bodies_false_lengths_and_wrong_shapes_are_refused(front: FrontDoor, replica: Server) -> None:
    body, _ = binary(RANKER)
    with Caller(front) as caller:
        assert caller.http("POST", INFER, body, Content_Encoding="gzip").code == "415"
        for length in (str(len(body) + 1), "-1", "0x10", "9" * 30):
            assert caller.http("POST", INFER, body, Inference_Header_Content_Length=length).code == "400", length
        packed = caller.grpc("ModelInfer", message(RANKER), compression=grpc.Compression.Gzip)
        assert packed.code == "UNIMPLEMENTED"
        for shape in ([10**11, 2, 256], [2**62, 4, 256], [-1, 2, 256], [0, 2**62, 4]):
            request = service_pb2.ModelInferRequest.FromString(message(RANKER))
            del request.inputs[0].shape[:]
            request.inputs[0].shape.extend(shape)
            assert caller.grpc("ModelInfer", request.SerializeToString()).code == "INVALID_ARGUMENT", shape
    assert replica.running()


def test_the_largest_request_passes_and_one_byte_more_does_not(front: FrontDoor) -> None:
    body, headers = binary(RANKER)
    # A frame of gRPC has five bytes before the message.
    room = LARGEST - 5 - len(message(RANKER, padding=17_000)) + 17_000
    with Caller(front) as caller:
        for more, status in ((0, "200"), (1, "413")):
            length = str(int(headers["Inference-Header-Content-Length"]) + LARGEST - len(body) + more)
            head = body[:1] + b" " * (LARGEST - len(body) + more) + body[1:]
            assert caller.http("POST", INFER, head, Inference_Header_Content_Length=length).code == status
            grown = message(RANKER, padding=room + more)
            assert len(grown) + 5 == LARGEST + more
            assert caller.grpc("ModelInfer", grown).code == {"200": "OK", "413": "RESOURCE_EXHAUSTED"}[status]


def test_tenants_have_tokens_and_a_rate_over_both_protocols(replica: Server) -> None:
    bert = Tenant(name="bert", token="b" * 32, requests_per_s=0.001, burst=4)
    with opened_for(replica, SIMULATED, door(SIMULATED, tenants=(ANNA, bert))) as front:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"x-door-tenant": "bert"}, {"Authorization": "a" * 31}):
            with Caller(front, headers) as stranger:
                assert stranger.infer(HTTP, SIMULATED).code == "401"
                assert stranger.infer(GRPC, SIMULATED).code == "UNAUTHENTICATED"
                assert stranger.http("GET", "/v2/health/ready").ok
                assert stranger.http("GET", "/v2/health/live").ok
                assert stranger.grpc("/grpc.health.v1.Health/Check").ok
        own = {"Authorization": f"Bearer {bert.token}", "x-door-tenant": "anna"}
        with Caller(front, own) as slow, Caller(front, {"Authorization": f"Bearer {ANNA.token}"}) as other:
            codes = [slow.infer(protocol, SIMULATED).code for protocol in (GRPC, HTTP) * 3]
            assert codes == ["OK", "200", "OK", "200", "RESOURCE_EXHAUSTED", "429"]
            assert other.infer(GRPC, SIMULATED).ok
            assert other.infer(HTTP, SIMULATED).ok


def test_strangers_who_ask_for_health_take_nothing_from_tenants(replica: Server) -> None:
    front = door(SIMULATED, tenants=(ANNA,))
    asked = 20 * HEALTH_PER_S
    with opened(front, simulated_accelerator=[endpoint(replica, "r0")]) as proxy, Caller(front) as stranger:
        # Envoy lets a single frame pass, which has 16 KiB.
        large = service_pb2.ServerMetadataResponse(name="x" * 64 * HEALTH_BYTES).SerializeToString()
        assert stranger.grpc(HEALTH_METHOD, large).code == "RESOURCE_EXHAUSTED"
        assert proxy.traffic()["r0"].requests == 0
        codes = Counter(stranger.grpc(HEALTH_METHOD).code for _ in range(asked))
        assert codes.keys() == {"OK", "RESOURCE_EXHAUSTED"}
        assert proxy.traffic()["r0"].requests == codes["OK"]
        with Caller(front, {"Authorization": f"Bearer {ANNA.token}"}) as anna:
            assert anna.infer(GRPC, SIMULATED).ok
            assert anna.infer(HTTP, SIMULATED).ok


def test_slow_clients_are_cut_off_and_slow_replicas_are_not(replica: Server) -> None:
    half_body = b"POST /v2/models/simulated_accelerator/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"
    with opened_for(replica, SIMULATED, door(SIMULATED, headers_s=0.3, request_s=0.5, idle_s=0.7)) as front:
        for sent, status in ((b"", b""), (b"GET /v2 HTTP/1.1\r\nHo", b"408"), (half_body, b"408")):
            with socket.create_connection(("127.0.0.1", front.http_port), timeout=20.0) as slow:
                slow.sendall(sent)
                answer = b"".join(iter(lambda: slow.recv(4096), b""))
                assert status in answer.partition(b"\r\n")[0]
    with (
        opened_for(replica, SIMULATED, door(SIMULATED, idle_s=0.2)) as front,
        Caller(front) as caller,
        ThreadPoolExecutor(24) as threads,
    ):
        # Each is an execution of its own, of 24 ms.
        calls = [threads.submit(caller.infer, protocol, SIMULATED, rows=8) for protocol in (GRPC, HTTP) * 12]
        assert [call.result().code for call in calls] == ["OK", "200"] * 12


@pytest.mark.parametrize(("protocol", "refusal"), [(GRPC, "UNAVAILABLE"), (HTTP, "503")])
def test_more_requests_than_the_door_lets_in_are_refused(replica: Server, protocol: str, refusal: str) -> None:
    # The six that wait may take as long as this machine needs to refuse the others.
    front = door(SIMULATED, is_retried=False, slowest_s=300.0)
    front = replace(front, pools=(replace(front.pools[0], most_in_flight=6),))
    pid = tritonserver(replica.pid)
    # Its threads share the limit, and each of the two others may let one more in at the same moment (Envoy's pages).
    with open_door(front, workers=3) as proxy, contextlib.ExitStack() as stack:
        proxy.route({SIMULATED: [endpoint(replica, "r0")]})
        callers = [stack.enter_context(Caller(front)) for _ in range(20)]
        threads = stack.enter_context(ThreadPoolExecutor(len(callers)))
        os.kill(pid, signal.SIGSTOP)
        stack.callback(os.kill, pid, signal.SIGCONT)
        calls = [threads.submit(caller.infer, protocol, SIMULATED) for caller in callers]
        refused = [call.result().code for call in itertools.islice(as_completed(calls), 12)]
        assert refused == [refusal] * 12
        assert 6 <= sum(not call.done() for call in calls) <= 8


def test_both_ports_speak_tls(replica: Server, tmp_path: Path) -> None:
    certificate = certificates.make(tmp_path)
    tls = Tls(certificate=certificate / "server.pem", key=certificate / "server.key")
    with opened_for(replica, SIMULATED, door(SIMULATED, tls=tls)) as front:
        context = ssl.create_default_context(cafile=str(certificate / "ca.pem"))
        for port, protocol in ((front.http_port, "http/1.1"), (front.grpc_port, "h2")):
            context.set_alpn_protocols([protocol])
            plain = socket.create_connection(("127.0.0.1", port), timeout=10.0)
            with plain, context.wrap_socket(plain, server_hostname="127.0.0.1") as connection:
                assert connection.selected_alpn_protocol() == protocol
        credentials = grpc.ssl_channel_credentials((certificate / "ca.pem").read_bytes())
        with grpc.secure_channel(f"127.0.0.1:{front.grpc_port}", credentials) as channel:
            call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            assert call(message(SIMULATED), timeout=30.0)
        with Caller(front) as caller:
            assert caller.infer(GRPC, SIMULATED).code == "UNAVAILABLE"
