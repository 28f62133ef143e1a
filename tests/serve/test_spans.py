"""`python -m serve --trace`: a real server sends spans of requests with a `traceparent`; wrong addresses."""

import http.client
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton
from policy_models import stand_in
from processes import wait_until
from sleepers import PLAIN

from serve.launcher import Settings, launch
from serve.server_flags import SettingsError, tracing, tracing_danger

MODEL = "batched"
PARENT = "b7ad6b7169203331"
TRACES = tuple(f"0af7651916cd43dd8448eb211c80319{number}" for number in range(2))


@pytest.fixture
def collector() -> Iterator[tuple[str, list[str]]]:
    """The address of a collector on this machine, and the messages that it gets."""
    messages: list[str] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            messages.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1/traces", messages
        server.shutdown()


def ask_http(url: str, headers: dict[str, str]) -> None:
    """One request of one row over HTTP."""
    body = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1.0] * 4}]}
    connection = http.client.HTTPConnection(url, timeout=30)
    connection.request("POST", f"/v2/models/{MODEL}/infer", json.dumps(body), headers)
    assert connection.getresponse().status == 200
    connection.close()


def ask_grpc(url: str, headers: dict[str, str]) -> None:
    """One request of one row over gRPC."""
    tensor = triton.InferInput("x", [1, 4], "FP32")
    tensor.set_data_from_numpy(np.ones((1, 4), dtype=np.float32))
    with triton.InferenceServerClient(url) as client:
        client.infer(MODEL, [tensor], headers=headers)


@pytest.mark.server
def test_a_request_with_a_traceparent_is_traced(tmp_path: Path, collector: tuple[str, list[str]]) -> None:
    url, messages = collector
    stand_in(tmp_path, MODEL)
    arguments = (*PLAIN, *tracing(url, ()))
    with launch(Settings(models=(MODEL,), repository=tmp_path, arguments=arguments, discard_traces=True)) as running:
        ask_http(running.http_url, {"traceparent": f"00-{TRACES[0]}-{PARENT}-01"})
        ask_grpc(running.grpc_url, {"traceparent": f"00-{TRACES[1]}-{PARENT}-01"})
        assert wait_until(lambda: all(trace in "".join(messages) for trace in TRACES), seconds=60)
    assert f'"parentSpanId":"{PARENT}"' in "".join(messages).replace(" ", "")


@pytest.mark.parametrize("url", ["localhost:4318", "http://localhost:4318", "https://a:1/v1/traces", "http://[a/v1"])
def test_an_address_that_is_no_collector_is_a_mistake(url: str) -> None:
    with pytest.raises(SettingsError, match=r"http://HOST:4318/v1/traces"):
        tracing(url, ())


def test_two_settings_of_traces_are_a_mistake() -> None:
    with pytest.raises(SettingsError, match="Leave out one"):
        tracing("http://localhost:4318/v1/traces", ["--trace-config=level=OFF"])


def test_an_old_server_is_warned_of() -> None:
    flags = tracing("http://localhost:4318/v1/traces", ())
    assert "2.57.1 can die" in tracing_danger(flags, "2.57.1")
    assert not tracing_danger(flags, "2.58.0")
    assert not tracing_danger((), "2.51.0")
