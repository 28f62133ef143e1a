"""A sequence stays with the server that it began on while servers come and go."""

import socket
from collections.abc import Mapping
from typing import Any

import pytest
from processes import wait_until
from replica_servers import HOSTS, ReplicaServers, row

from clients import Hooks, Model
from clients.connections import BlockingConnections

SEQUENCES = range(1, 31)


@pytest.mark.server
def test_a_sequence_stays_with_its_server_when_others_come(monkeypatch: pytest.MonkeyPatch) -> None:
    now, resolve, went = [*HOSTS[:2]], socket.getaddrinfo, list[str]()

    def look_up(host: str, port: int, *rest: Any, **more: Any) -> Any:
        found = [resolve(address, port, *rest, **more)[0] for address in now]
        return found if host == "replicas.test" else resolve(host, port, *rest, **more)

    def servers(**parameters: Any) -> Mapping[int, str]:
        """The server that got a request of each sequence."""
        went.clear()
        for number in SEQUENCES:
            model.predict(row(4), parameters={"sequence_id": number, **parameters})
        return dict(zip(SEQUENCES, went, strict=True))

    def looked_up(connections: BlockingConnections, wanted: list[str]) -> bool:
        """Whether requests get the client to use these servers; a look-up that runs already may miss a change."""

        def uses_them() -> bool:
            model.predict(row(4))
            return {*connections._made} == set(wanted)

        return wait_until(uses_them, seconds=10)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr("clients.replicas.RENEW_S", 0.0)
    monkeypatch.setattr("clients.replicas.MOST_SEQUENCES", len(SEQUENCES))
    hooks: Hooks = {"request": [lambda request: went.append(request.url)]}
    with ReplicaServers() as replicas:
        urls, url = replicas.urls("grpc"), f"dns:///replicas.test:{replicas.servers[0].grpc_port}"
        with Model("picky", url=url, transport="grpc", hooks=hooks) as model:
            assert isinstance(connections := model._connection, BlockingConnections)
            for number in range(1000, 1002 + len(SEQUENCES)):
                model.predict(row(4), parameters={"sequence_id": number})
            began = servers(sequence_start=True)
            assert set(began.values()) == set(urls[:2])
            now[:] = HOSTS
            assert looked_up(connections, urls)
            assert servers() == began
            assert len(connections._replicas._sequences) == len(SEQUENCES)
            assert servers(sequence_end=True) == began
            assert not connections._replicas._sequences
            again = servers(sequence_start=True)
            assert set(again.values()) == set(urls)
            # A sequence whose server is gone goes on at another.
            now[:] = HOSTS[1:]
            assert looked_up(connections, urls[1:])
            after = servers()
            assert set(after.values()) == set(urls[1:])
            assert all(after[number] == where for number, where in again.items() if where != urls[0])
