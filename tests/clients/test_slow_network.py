"""Clients reach a server that is far away, or too busy to shake hands at once."""

import asyncio

import numpy as np
import pytest
from slow_network import far_away

from clients import AsyncModel, Model
from serve.launcher import Server

pytestmark = pytest.mark.server
ROUND_TRIP_S = 0.3
X = np.full((1, 1), 4, np.float32)


def test_a_blocking_client_reaches_a_server_far_away(client_server: Server) -> None:
    with (
        far_away(client_server.grpc_port, ROUND_TRIP_S) as port,
        Model("picky", url=f"127.0.0.1:{port}", transport="grpc") as model,
    ):
        assert model.predict(X).item() == 2


def test_an_asynchronous_client_reaches_a_server_far_away(client_server: Server) -> None:
    async def call(port: int) -> float:
        async with AsyncModel("picky", url=f"127.0.0.1:{port}", transport="grpc") as model:
            return float((await model.predict(X)).item())

    with far_away(client_server.grpc_port, ROUND_TRIP_S) as port:
        assert asyncio.run(call(port)) == 2
