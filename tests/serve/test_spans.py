"""OpenTelemetry's spans of a real server: from a client's `traceparent` to the execution; and the receiver's limits."""

import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton
from policy_models import stand_in
from processes import wait_until
from sleepers import PLAIN

from serve.launcher import Settings, launch
from serve.management import otlp, trace_receiver, traces
from serve.management.trace_receiver import ElsewhereError, Received, receiving
from serve.resources import PortError, loopback_port
from serve.server_flags import SettingsError, tracing, tracing_danger

PARENT = "b7ad6b7169203331"
IDS = {kind: f"0af7651916cd43dd8448eb211c80319{number}" for number, kind in enumerate(("http", "grpc"))}
MOMENTS = ("REQUEST_START", "QUEUE_START", "COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END")


@pytest.fixture
def collector() -> Iterator[tuple[str, Received]]:
    url = f"http://127.0.0.1:{loopback_port(())}/v1/traces"
    with receiving(url) as received:
        yield url, received


def ask_http(url: str, model: str, headers: dict[str, str]) -> None:
    """One request of one row over HTTP."""
    body = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1.0] * 4}]}
    connection = http.client.HTTPConnection(url, timeout=30)
    connection.request("POST", f"/v2/models/{model}/infer", json.dumps(body), headers)
    assert connection.getresponse().status == 200
    connection.close()


def ask_grpc(url: str, model: str, headers: dict[str, str]) -> None:
    """One request of one row over gRPC."""
    tensor = triton.InferInput("x", [1, 4], "FP32")
    tensor.set_data_from_numpy(np.ones((1, 4), dtype=np.float32))
    with triton.InferenceServerClient(url) as client:
        client.infer(model, [tensor], headers=headers)


@pytest.mark.server
def test_a_traceparent_leads_to_the_execution(tmp_path: Path, collector: tuple[str, Received]) -> None:
    """Three requests in one batch; the two with a traceparent are traced, as children of the client's span."""
    url, received = collector
    stand_in(tmp_path, "batched")
    settings = Settings(
        models=("batched",),
        repository=tmp_path,
        environment={"TRITONSERVER_DELAY_SCHEDULER": "3"},
        arguments=(*PLAIN, *tracing(url, ())),
        discard_traces=True,
    )
    parents = {kind: {"traceparent": f"00-{trace}-{PARENT}-01"} for kind, trace in IDS.items()}
    with launch(settings) as running:
        assert trace_receiver.address_of(traces.settings(running.http_url)) == url
        calls = [
            threading.Thread(target=ask_http, args=(running.http_url, "batched", parents["http"])),
            threading.Thread(target=ask_grpc, args=(running.grpc_url, "batched", parents["grpc"])),
            threading.Thread(target=ask_grpc, args=(running.grpc_url, "batched", {})),
        ]
        for call in calls:
            call.start()
        for call in calls:
            call.join()
        assert wait_until(lambda: len(received.traces()) == 2, seconds=60)
    found = {trace.trace_id: trace for trace in received.traces()}
    assert found.keys() == set(IDS.values())
    for trace in found.values():
        assert trace.model == "batched"
        times = [trace.moments[name] for name in MOMENTS]
        assert times == sorted(times)
        infer_ns = trace.between_ns("COMPUTE_START", "COMPUTE_END")
        assert infer_ns is not None
        assert infer_ns >= 20e6  # its execution takes 20 ms
    assert "HTTP_RECV_START" in found[IDS["http"]].moments
    assert "GRPC_WAITREAD_START" in found[IDS["grpc"]].moments
    # One batch: the same execution in each, but for the difference of two clocks.
    starts = [trace.moments["COMPUTE_START"] for trace in found.values()]
    assert max(starts) - min(starts) < 1e6
    wires = [span for span in received.spans() if span.name == otlp.WIRE]
    assert [(span.parent, span.trace) for span in sorted(wires, key=lambda span: span.trace)] == [
        (PARENT, trace) for trace in sorted(IDS.values())
    ]


def test_the_receiver_refuses_what_is_no_trace(
    collector: tuple[str, Received], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, received = collector
    host = url.removeprefix("http://").partition("/")[0]

    def post(content: bytes, path: str = "/v1/traces", **headers: str) -> int:
        connection = http.client.HTTPConnection(host, timeout=20)
        connection.request("POST", path, content, headers)
        status = connection.getresponse().status
        connection.close()
        return status

    span = {"spanId": "1", "traceId": "2", "name": "InferRequest", "events": [{"name": "A", "timeUnixNano": "5"}]}
    message = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span, span | {"spanId": "3"}]}]}]}).encode()
    for bad in (b"", b"[]", b"{", b"[" * 100_000, b'{"resourceSpans": 1}', message.replace(b'"5"', b'"later"')):
        assert post(bad) == 400
    assert post(message, "/v1/metrics") == 404
    assert post(b"", **{"Content-Length": str(trace_receiver.LARGEST_BYTES + 1)}) == 413
    assert post(b"", **{"Content-Length": "-1"}) == 413
    assert not received.spans()
    monkeypatch.setattr(trace_receiver, "MOST_SPANS", 3)
    assert [post(message), post(message), post(message)] == [200, 200, 200]
    assert [span.number for span in received.spans()] == ["1", "3", "1"]
    assert received.traces() == []  # no span of a model


def test_it_listens_on_this_machine_only(collector: tuple[str, Received]) -> None:
    for url in ("http://collector.example:4318/v1/traces", "http://0.0.0.0:4318/v1/traces", "http://[::1", ""):
        with pytest.raises(ElsewhereError, match="this machine's own"), receiving(url):
            pass
    with pytest.raises(PortError, match="cannot be used"), receiving(collector[0]):
        pass


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
