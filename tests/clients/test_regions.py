"""A client's regions after a failed step of the protocol; the tests run the steps without a server."""

import os
import time
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
from clients.errors import ServerFailureError, ServerUnreachableError, TimedOutError
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


def test_a_slow_server_is_not_taken_for_one_on_another_host(shared: SharedMemory) -> None:
    steps = shared.infer(X, Terms(timeout_s=0.3))
    step = ask(steps, "Status")
    assert step.method == "SystemSharedMemoryRegister"
    with pytest.raises(TimedOutError):
        steps.throw(TimedOutError("late"))
    assert shared.works
    assert mine() == []
    assert len(shared._registry._ring.retired) == 1
    steps = shared.infer(X, Terms())
    assert ask(steps, "Unregister").method == "SystemSharedMemoryRegister"
    with pytest.raises(StopIteration):
        steps.throw(ServerFailureError("failed to open"))
    assert not shared.works


def test_the_deadline_counts_from_the_first_step(shared: SharedMemory) -> None:
    steps = shared.infer(X, Terms(timeout_s=0.3))
    step = ask(steps, "Status", "Register")
    assert step.timeout_s == 0.3  # what the error says
    time.sleep(0.1)
    assert 0 <= (step.left_s() or 0) < 0.21
    assert Step("ModelInfer", b"", (), 5.0, time.monotonic() - 1).left_s() == 0
    assert Step("ModelInfer", b"", (), 5.0).left_s() == 5
    steps.close()


def test_without_a_reaper_nothing_is_shared(shared: SharedMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    finish(shared.prepare(1))
    assert shared._registry._lease

    def refused(_: str) -> None:
        raise TimeoutError("no reaper")

    monkeypatch.setattr(shared._registry._lease, "hold", refused)
    before = shared._registry._ring.bytes
    with pytest.raises(StopIteration) as end:
        ask(shared.infer(LARGE, Terms()), "Unregister")
    assert end.value.value is None
    assert (shared.works, mine()) == (False, [])
    assert shared._registry._ring.bytes <= before


@pytest.mark.parametrize(("output", "shared"), [("TYPE_FP32", False), ("TYPE_BOOL", True), ("TYPE_STRING", True)])
def test_output_that_is_surely_unwritten_shows_that_the_memory_is_not_shared(output: str, shared: bool) -> None:
    """The server answers and writes nothing: one byte may have been the same, of a text there may be none."""
    client = SharedMemory(metadata(output), Endpoint.of("localhost:1"), "")
    if output == "TYPE_STRING":
        client._largest["y"] = 100  # earlier answers were as long, so there is room for one in the region
    steps = client.infer(X, Terms())
    ask(steps, "Status", "Register")
    response = pb.ModelInferResponse()
    response.outputs.add(name="y", datatype={"TYPE_STRING": "BYTES"}.get(output, output[5:]), shape=[1, 1])
    with pytest.raises(StopIteration) as end:
        steps.send(response)
    assert (client.works, end.value.value is not None) == (shared, shared)
    finish(client.close())


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
