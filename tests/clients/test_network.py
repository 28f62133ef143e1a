"""Servers that restart, are far away, or vanish during a call."""

import asyncio
import os
import signal
from dataclasses import replace
from pathlib import Path

import client_models
import numpy as np
import pytest
from client_calls import TRANSPORTS, Gate, address
from relay import relay
from server_processes import tritonserver
from sleepers import PLAIN

from clients import AsyncModel, Model, ServerUnreachableError
from clients._grpc import OPTIONS
from serve.launcher import Server, Settings, launch

pytestmark = pytest.mark.server

ONE = np.ones((1, 1), np.float32)


def test_a_restarted_server_is_found_again(tmp_path: Path) -> None:
    """It is killed and started again, so it has servers of its own; the second knows no region of shared memory."""
    settings = Settings(models=("picky",), repository=client_models.build(tmp_path), arguments=PLAIN)
    with launch(settings) as server:
        clients = [Model("picky", url=address(server, way), transport=way) for way in TRANSPORTS]
        assert [model.predict(4 * ONE).item() for model in clients] == [2] * len(TRANSPORTS)
        again = replace(
            settings, http_port=server.http_port, grpc_port=server.grpc_port, metrics_port=server.metrics_port
        )
        os.kill(tritonserver(server.pid), signal.SIGKILL)
    for model in clients:
        with pytest.raises(ServerUnreachableError):
            model.predict(4 * ONE)
    with launch(again):
        assert [model.predict(9 * ONE).item() for model in clients] == [3] * len(TRANSPORTS)
        for model in clients:
            model.close()


def test_a_host_that_vanishes_ends_a_call_without_a_deadline(
    client_server: Server, monkeypatch: pytest.MonkeyPatch, gate: Gate
) -> None:
    """It takes a minute, because gRPC asks no oftener whether a silent server is there."""
    quick = {"grpc.keepalive_time_ms": 500, "grpc.keepalive_timeout_ms": 500}
    monkeypatch.setattr("clients._grpc.OPTIONS", tuple((dict(OPTIONS) | quick).items()))

    async def call(url: str) -> None:
        async with AsyncModel("slow", url=url, transport="grpc") as model:
            task = asyncio.create_task(model.predict(gate.rows()))
            assert await asyncio.to_thread(gate.has)
            front.hangs = True
            await task

    with relay(client_server.grpc_url) as front:
        with pytest.raises(ServerUnreachableError) as gone:
            asyncio.run(call(front.url))
        gate.open()
    assert not gone.value.retryable
