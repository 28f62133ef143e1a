"""A client's regions after a failed step of the protocol; the tests run the steps without a server."""

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.model_config_pb2 import ModelConfig

from clients import Model, regions
from clients.connection import BlockingConnection
from clients.contract import Metadata
from clients.endpoint import Endpoint
from clients.errors import ServerFailureError, ServerUnreachableError
from clients.shared_memory import UNKNOWN_REGION, SharedMemory
from clients.steps import Step, Steps, Work, run
from clients.terms import Terms
from serve.launcher import Server

CONFIG = """name: "m" max_batch_size: 4
input { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } output { name: "y" data_type: %s dims: [ 1 ] }"""
X = {"x": np.ones((1, 4), np.float32)}
LARGE = {"x": np.ones((4, 1 << 16), np.float32)}


def metadata(output: str = "TYPE_FP32") -> Metadata:
    return Metadata.of(text_format.Parse(CONFIG % output, ModelConfig()))


@pytest.fixture
def shared() -> Iterator[SharedMemory]:
    """Regions on a server that does not exist; each test gives its answers."""
    made = SharedMemory(metadata(), Endpoint.of("localhost:1"), "")
    yield made
    finish(made.close())


def finish(steps: Steps[Any]) -> None:
    """Every step succeeds."""
    run(steps, lambda _: pb.SystemSharedMemoryStatusResponse())


def ask(steps: Steps[Any], *succeed: str) -> Step:
    """The first step that is none of `succeed`; those succeed."""
    step = next(steps)
    while not isinstance(step, Step) or step.method.removeprefix("SystemSharedMemory") in succeed:
        step = steps.send(step.do() if isinstance(step, Work) else pb.SystemSharedMemoryStatusResponse())
    return step


def mine() -> list[str]:
    return [path.name for path in regions.FOLDER.glob(f"{regions.PREFIX}*_{os.getpid()}_*")]


@pytest.mark.server
def test_the_name_of_a_file_opens_no_region(client_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    unlink = regions.Region.unlink

    def watched(region: regions.Region) -> None:
        seen.extend(mine())
        unlink(region)

    monkeypatch.setattr(regions.Region, "unlink", watched)
    connection = BlockingConnection(client_server.grpc_url)
    try:
        with Model("slow", url=client_server.grpc_url, transport="shared_memory") as model:
            model.predict(np.zeros((1, 1), np.float32))
            status = connection.call(Step("SystemSharedMemoryStatus", b""), "")
            (region,) = status.regions.values()
            assert seen == [region.key.removeprefix("/")]
            # What another user can ask who saw the file.
            request = pb.ModelInferRequest(model_name="slow")
            tensor = request.inputs.add(name=model.metadata.inputs[0].name, datatype="FP32", shape=[1, 1])
            tensor.parameters["shared_memory_region"].string_param = seen[0]
            tensor.parameters["shared_memory_byte_size"].int64_param = 4
            with pytest.raises(ServerFailureError, match=UNKNOWN_REGION):
                connection.call(Step("ModelInfer", request.SerializeToString(), timeout_s=5.0), "slow")
    finally:
        connection.close()
    assert mine() == []


def test_a_server_that_is_away_costs_no_memory(shared: SharedMemory) -> None:
    steps = shared.infer(X, Terms())
    assert ask(steps, "Status", "Register").method == "ModelInfer"
    with pytest.raises(ServerUnreachableError):
        steps.throw(ServerUnreachableError("gone"))
    for _ in range(3):
        steps = shared.infer(LARGE, Terms())
        assert ask(steps).method == "SystemSharedMemoryUnregister"
        with pytest.raises(ServerUnreachableError):
            steps.throw(ServerUnreachableError("gone"))
    assert mine() == []
    assert shared._registry._ring.bytes == regions.SMALLEST_BYTES
    # Back again, it lets go of the one that it may have written to.
    steps = shared.infer(LARGE, Terms())
    assert ask(steps, "Unregister", "Register").method == "ModelInfer"
    assert shared._registry._ring.retired == []
    steps.close()


def test_a_ring_reuses_and_grows_within_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regions, "LIMIT_BYTES", 5 * regions.SMALLEST_BYTES)
    ring = regions.Ring()
    first, second = ring.create(1), ring.create(regions.SMALLEST_BYTES)
    assert first
    assert second
    assert {first.size, second.size} == {regions.SMALLEST_BYTES}
    ring.give(first)
    ring.give(second)
    assert ring.take(10) is second
    assert ring.take(regions.SMALLEST_BYTES + 1) is None
    assert ring.outgrown(regions.SMALLEST_BYTES + 1) == [first]
    large = ring.create(regions.SMALLEST_BYTES + 1)
    assert large
    assert ring.create(2 * regions.SMALLEST_BYTES) is None
    ring.discard(first)
    last = ring.create(1)
    assert last
    for region in (second, large, last):
        ring.discard(region)
    assert ring.bytes == 0
