"""Who may have a request traced through a front door: tenants, and everybody if it is asked for."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from doors import GRPC, HTTP, Caller, door, endpoint, opened
from policy_models import stand_in
from processes import wait_until
from sleepers import PLAIN
from tritonclient.grpc import service_pb2

from serve.front import haproxy_config
from serve.front.checks import Kind
from serve.front.door import FrontDoor, Tenant
from serve.front.envoy_routes import routes
from serve.launcher import Server, Settings, launch
from serve.management.trace_receiver import Received, receiving
from serve.resources import loopback_port
from serve.server_flags import tracing

MODEL = "batched"
# All digits but the last of the traces of strangers, and of those that may.
TRACES: dict[Kind, tuple[str, str]] = {"envoy": ("1" * 31, "2" * 31), "haproxy": ("3" * 31, "4" * 31)}
TENANT = Tenant(name="anna", token="t" * 32, requests_per_s=100.0, burst=100)


def removes(front: FrontDoor) -> set[bool]:
    """Whether each proxy takes the headers of a trace away."""
    [host] = routes(front)["virtual_hosts"]
    lines = haproxy_config.text(front, Path("/door"), {})
    return {
        {"traceparent", "tracestate"} <= set(host["request_headers_to_remove"]),
        "del-header traceparent\n" in lines and "del-header tracestate\n" in lines,
    }


def test_headers_of_a_trace_pass_from_tenants_or_if_asked_for() -> None:
    front = door(MODEL)
    assert removes(front) == {True}
    assert removes(replace(front, tenants=(TENANT,))) == {False}
    assert removes(replace(front, passes_traces=True)) == {False}


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Received]]:
    """A server that traces each request with a `traceparent`, and the collector of its spans."""
    repository = tmp_path_factory.mktemp("traced")
    stand_in(repository, MODEL)
    url = f"http://127.0.0.1:{loopback_port(())}/v1/traces"
    arguments = (*PLAIN, *tracing(url, ()))
    settings = Settings(models=(MODEL,), repository=repository, arguments=arguments, discard_traces=True)
    with receiving(url) as received, launch(settings) as server:
        yield server, received


def ask(front: FrontDoor, trace: str) -> None:
    """A request over each protocol, with the traces `trace`0 and `trace`1."""
    body = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1.0] * 4}]}
    request = service_pb2.ModelInferRequest(model_name=MODEL, raw_input_contents=[b"\0" * 16])
    request.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    for number, protocol in enumerate((HTTP, GRPC)):
        headers = {"traceparent": f"00-{trace}{number}-b7ad6b7169203331-01", "tracestate": "a=b"}
        with Caller(front, headers) as caller:
            if protocol == GRPC:
                answer = caller.grpc("ModelInfer", request.SerializeToString())
            else:
                answer = caller.http("POST", f"/v2/models/{MODEL}/infer", json.dumps(body).encode())
            assert answer.ok, answer


@pytest.mark.server
def test_strangers_have_no_request_traced(kind: Kind, traced: tuple[Server, Received]) -> None:
    server, received = traced
    strangers, allowed = TRACES[kind]
    for trace, front in ((strangers, door(MODEL)), (allowed, door(MODEL, passes_traces=True))):
        with opened(front, kind=kind, batched=[endpoint(server, "r0")]):
            ask(front, trace)
    # The server sends spans in the order in which they end.
    expected = {f"{allowed}{number}" for number in range(2)}
    assert wait_until(lambda: expected <= {trace.trace_id for trace in received.traces()}, seconds=30.0)
    assert not any(trace.trace_id.startswith(strangers) for trace in received.traces())
