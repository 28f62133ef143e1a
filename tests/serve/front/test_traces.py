"""Whose `traceparent` reaches a server through a front door: that of tenants, and of everybody if it is asked for."""

import json
from collections.abc import Iterator
from dataclasses import replace

import client_models
import pytest
from doors import Caller, door, endpoint, opened
from sleepers import PLAIN
from tritonclient.grpc import service_pb2

from serve.front.door import FrontDoor, Tenant
from serve.front.envoy_routes import routes
from serve.launcher import Server, Settings, launch

MODEL = "asked"
TENANT = Tenant(name="anna", token="t" * 32, requests_per_s=100.0, burst=100)
TRACE = {"traceparent": f"00-{'1' * 32}-b7ad6b7169203331-01", "tracestate": "a=b"}


def removes(front: FrontDoor) -> bool:
    [host] = routes(front)["virtual_hosts"]
    return TRACE.keys() <= set(host["request_headers_to_remove"])


def test_headers_of_a_trace_pass_from_tenants_or_if_asked_for() -> None:
    front = door(MODEL)
    assert removes(front)
    assert not removes(replace(front, tenants=(TENANT,)))
    assert not removes(replace(front, passes_traces=True))


@pytest.fixture(scope="module")
def telling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that gives the headers of a trace to its model, which answers what it was given."""
    forwarded = (f"--{protocol}-header-forward-pattern=trace.*" for protocol in ("http", "grpc"))
    repository = client_models.build(tmp_path_factory.mktemp("telling"))
    with launch(Settings(models=(MODEL,), repository=repository, arguments=(*PLAIN, *forwarded))) as server:
        yield server


def headers_seen(front: FrontDoor) -> list[set[str]]:
    """Which headers of a trace the server gets of a request over HTTP and of one over gRPC."""
    body = {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1.0]}]}
    request = service_pb2.ModelInferRequest(model_name=MODEL, raw_input_contents=[b"\0" * 4])
    request.inputs.add(name="x", datatype="FP32", shape=[1, 1])
    with Caller(front, TRACE) as caller:
        over_http = caller.http("POST", f"/v2/models/{MODEL}/infer", json.dumps(body).encode())
        over_grpc = caller.grpc("ModelInfer", request.SerializeToString())
    assert over_http.ok, over_http
    assert over_grpc.ok, over_grpc
    [content] = service_pb2.ModelInferResponse.FromString(over_grpc.body).raw_output_contents
    told = [json.loads(over_http.body)["outputs"][0]["data"][0], content[4:]]
    return [{name for name in TRACE if name in json.loads(text)["parameters"]} for text in told]


@pytest.mark.server
def test_strangers_have_no_request_traced(telling: Server) -> None:
    for front, seen in ((door(MODEL), set()), (door(MODEL, passes_traces=True), set(TRACE))):
        with opened(front, asked=[endpoint(telling, "r0")]):
            assert headers_seen(front) == [seen, seen]
