"""Which requests a front door lets through, and where they go."""

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
import pytest
from doors import GRPC, HTTP, RANKER, SIMULATED, Caller, door, endpoint, endpoints, is_right, opened
from tritonclient.grpc import service_pb2

from clients import Model
from serve.front.door import FrontDoor
from serve.launcher import Server

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def two_pools(replicas: Sequence[Server]) -> Iterator[FrontDoor]:
    front = door(SIMULATED, RANKER)
    with opened(front, simulated_accelerator=endpoints(replicas[:3]), ranker=[endpoint(replicas[3], "ranker-0")]):
        yield front


@pytest.mark.parametrize("protocol", [GRPC, HTTP])
def test_the_name_of_a_model_chooses_the_pool(two_pools: FrontDoor, replicas: Sequence[Server], protocol: str) -> None:
    with Caller(two_pools) as through, Caller(replicas[3]) as direct:
        assert is_right(through.infer(protocol, SIMULATED, seed=3), seed=3)
        assert through.infer(protocol, RANKER) == direct.infer(protocol, RANKER)


def test_a_model_that_no_pool_has_is_named(two_pools: FrontDoor) -> None:
    with Caller(two_pools) as caller:
        for method, request in (
            ("ModelInfer", service_pb2.ModelInferRequest(model_name="other")),
            ("ModelConfig", service_pb2.ModelConfigRequest(name="other")),
        ):
            answer = caller.grpc(method, request.SerializeToString())
            assert (answer.code, b"'other'" in answer.body) == ("NOT_FOUND", True)
        assert caller.grpc("ModelConfig", b"").code == "INVALID_ARGUMENT"
        answer = caller.http("GET", "/v2/models/other/config")
        assert (answer.code, b"/v2/models/other/config" in answer.body) == ("404", True)


def test_clients_may_read_what_they_need(two_pools: FrontDoor) -> None:
    with Caller(two_pools) as caller:
        for path in (
            "",
            "/health/ready",
            "/health/live",
            "/models/ranker",
            "/models/ranker/config",
            "/models/ranker/ready",
        ):
            assert caller.http("GET", f"/v2{path}").ok, path
        named = service_pb2.ModelConfigRequest(name=RANKER).SerializeToString()
        for method in ("ServerMetadata", "ServerReady", "ServerLive", "/grpc.health.v1.Health/Check"):
            assert caller.grpc(method).ok, method
        for method in ("ModelConfig", "ModelReady", "ModelMetadata", "ModelStatistics"):
            assert caller.grpc(method, named).ok, method


def test_nothing_else_is_routed(two_pools: FrontDoor) -> None:
    with Caller(two_pools, {"triton-grpc-protocol-admin": "guess"}) as caller:
        for method, path in (
            ("POST", "/v2/repository/index"),
            ("POST", "/v2/repository/models/ranker/load"),
            ("GET", "/v2/systemsharedmemory/status"),
            ("GET", "/v2/cudasharedmemory/status"),
            ("GET", "/v2/trace/setting"),
            ("GET", "/v2/models/ranker/trace/setting"),
            ("POST", "/v2/models/ranker/trace/setting"),
            ("GET", "/v2/logging"),
            ("GET", "/v2/models/ranker/../../repository/index"),
            ("GET", "/metrics"),
            ("GET", "/v2/models/ranker/infer"),
        ):
            assert caller.http(method, path, b"{}" if method == "POST" else None).code == "404", path
        for method in (
            "RepositoryIndex",
            "RepositoryModelLoad",
            "SystemSharedMemoryStatus",
            "CudaSharedMemoryStatus",
            "TraceSetting",
            "LogSettings",
        ):
            assert caller.grpc(method).code == "UNIMPLEMENTED", method


@pytest.mark.parametrize("transport", ["grpc", "http"])
def test_the_client_library_works_through_the_door(two_pools: FrontDoor, transport: Literal["grpc", "http"]) -> None:
    port = two_pools.grpc_port if transport == "grpc" else two_pools.http_port
    with Model(SIMULATED, url=f"127.0.0.1:{port}", transport=transport) as model:
        picture = np.full((1, 1, 32, 100), 0.5, np.float32)
        assert np.allclose(model.predict(picture), 0.5)
