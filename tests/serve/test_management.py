"""Reading a server's API: answers, and an error for each kind of address that gives none."""

import http.server
import socket
import threading
from collections.abc import Iterator
from email.message import Message
from pathlib import Path
from typing import ClassVar

import pytest
from bench import Bench
from tiny_models import lookup

from serve.management import admin, api, loaded
from serve.management.api import RefusedError, ServerError, TimedOutError, UnreachableError
from serve.management.metrics import Metrics, MetricsError
from serve.management.statistics import Counters, Statistics

PAGE = """\
# TYPE nv_inference_pending_request_count gauge
nv_inference_pending_request_count{model="m",version="1"} 3
nv_inference_pending_request_count{model="m",version="2"} 4
# TYPE nv_inference_request_failure counter
nv_inference_request_failure{model="m",version="1",reason="REJECTED"} 2
# TYPE nv_inference_request_summary_us summary
nv_inference_request_summary_us{model="m",version="1",quantile="0.5"} 10
nv_inference_request_summary_us{model="m",version="2",quantile="0.5"} 20
nv_inference_request_summary_us{model="m",version="2",quantile="0.9"} NaN
# TYPE own_total counter
own_total{model="m"} 5
# TYPE own_level gauge
own_level{model="m"} 0.5
# TYPE nv_cpu_utilization gauge
nv_cpu_utilization 0.25
"""


class Elsewhere(http.server.BaseHTTPRequestHandler):
    """Answers every call with `content`, and keeps the headers that it got by path."""

    content = b"<html>" * 100
    received: ClassVar[dict[str, Message]] = {}

    def do_GET(self) -> None:
        self.received[self.path] = self.headers
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.content)

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None:
        """Nothing on the test's output."""


@pytest.fixture
def elsewhere() -> Iterator[str]:
    """The address of a web server that is no tritonserver."""
    with http.server.HTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_an_address_without_a_server_is_named() -> None:
    with pytest.raises(UnreachableError, match=r"http://127\.0\.0\.1:9/v2/models/m/config: no Triton server answers"):
        loaded.config("127.0.0.1:9", "m")
    with pytest.raises(ServerError, match=r"127\.0\.0\.1:9: no statistics for 'm'"):
        Counters.read("127.0.0.1:9", "m")
    with pytest.raises(MetricsError, match=r"http://127\.0\.0\.1:9/metrics: no metrics \(.*refused"):
        Metrics.read("127.0.0.1:9")


def test_a_server_that_does_not_answer_has_its_own_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(TimedOutError, match=r"no answer within 0\.1 s"):
            api.call(f"127.0.0.1:{port}", "repository/index", {}, timeout_s=0.1)


def test_an_answer_of_another_program_is_no_statistics(elsewhere: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnreachableError, match="not that of gRPC"):
        Counters.read(f"http://{elsewhere}", "m")
    with pytest.raises(MetricsError):
        Metrics.read(elsewhere)
    monkeypatch.setattr(api, "LARGEST_BYTES", 1 << 4)
    with pytest.raises(UnreachableError, match="more than"):
        api.text(f"http://{elsewhere}/")


@pytest.mark.parametrize("content", [b"", b"null", b'"x"', b"[1]", b"{}", b"[" * 100_000, b"\xff"])
def test_an_answer_of_the_wrong_type_is_one_line(
    elsewhere: str, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    monkeypatch.setattr(Elsewhere, "content", content)
    with pytest.raises(UnreachableError, match="no Triton server answers there"):
        loaded.index(elsewhere)
    if content != b"{}":
        with pytest.raises(UnreachableError, match="no Triton server answers there"):
            loaded.config(elsewhere, "m")


def test_only_calls_that_need_the_secret_carry_it(elsewhere: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "headers", lambda _: {admin.HEADER: "secret"})
    api.is_ready(elsewhere)
    for path in ("models/m/config", "models/stats", "repository/index", "trace/setting", "models/m/trace/setting"):
        with pytest.raises(UnreachableError):
            api.call(elsewhere, path)
    sent = {path for path, headers in Elsewhere.received.items() if headers[admin.HEADER]}
    assert "/v2/health/ready" in Elsewhere.received
    assert sent == {"/v2/repository/index", "/v2/trace/setting", "/v2/models/m/trace/setting"}


def test_metrics_are_values_by_model() -> None:
    metrics = Metrics.parse(PAGE)
    assert metrics.cpu == 0.25
    assert metrics.memory_bytes is None
    assert metrics.pending == {"m": 7}
    assert metrics.failures == {"m": {"REJECTED": 2}}
    assert metrics.quantiles_us == {"m": {0.5: 20}}  # the slowest version's, and no NaN
    assert metrics.totals == {"m": {"own": 5}}
    assert metrics.gauges == {"m": {"own_level": 0.5}}


@pytest.mark.server
def test_statistics_are_the_same_over_grpc_and_http(bench: Bench, tmp_path: Path) -> None:
    lookup(tmp_path)
    lookup(tmp_path, "second")
    with (
        bench.serving(("lookup", "second"), tmp_path) as server,
        Statistics(server.grpc_url) as grpc,
        Statistics(f"http://{server.http_url}") as over_http,
    ):
        names = {version.name for version in grpc.versions()}
        assert names == {version.name for version in over_http.versions()} == server.configs.keys()
        assert grpc.counters("lookup") == over_http.counters("lookup")
        for statistics in (grpc, over_http):
            with pytest.raises(ServerError, match=r"nothing.* is not available|nothing.*unknown model"):
                statistics.counters("nothing")
        with pytest.raises(RefusedError, match=r"nothing/config: the server answered 404: .*unknown model"):
            loaded.config(server.http_url, "nothing")
