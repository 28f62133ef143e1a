"""Opens a front door: checks it, starts Envoy and keeps it alive.

with open_door(door) as envoy:
    envoy.route({"ranker": endpoints})

Envoy is told of endpoints by files, and asked by its admin interface, a socket of this user only.
"""

import contextlib
import http.client
import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from serve.front import process
from serve.front.checks import check, find
from serve.front.door import Endpoint, FrontDoor, Traffic
from serve.front.envoy_clusters import PROTOCOLS, address, endpoints_file, endpoints_text
from serve.front.envoy_config import ADMIN_SOCKET, SECRET_FILE, bootstrap, secret
from serve.front.envoy_routes import cluster
from serve.front.process import Process, ProxyError, write_private
from serve.server_folder import ServerFolder

ADMIN_TIMEOUT_S = 5.0
TAKEN_S = 15.0
POLL_S = 0.02
# How long the door stays open for requests in flight when it is closed.
DRAIN_S = 5.0
# One worker serves several thousand requests in a second, and the replicas need the other cores.
CORES_OF_A_WORKER, MOST_WORKERS = 8, 4
Host = tuple[str, str, int, str, int]


class Envoy:
    """An Envoy that listens on the door's ports; it is started again when its process dies."""

    def __init__(self, door: FrontDoor, folder: Path, running: Process) -> None:
        self._pools = {pool.name: pool for pool in door.pools}
        self._folder, self._process = folder, running

    @property
    def restarts(self) -> int:
        """How often its process was started again."""
        return self._process.restarts

    def pids(self) -> list[int]:
        """The process of the guard, and below it Envoy's."""
        return self._process.pids()

    def route(self, endpoints: Mapping[str, Sequence[Endpoint]]) -> None:
        """Send the requests of each pool to these endpoints; raises `ProxyError` if Envoy does not take them."""
        expected: dict[str, set[Host]] = {}
        for name, replicas in endpoints.items():
            pool = self._pools[name]
            for protocol in PROTOCOLS:
                file = endpoints_file(self._folder, pool, protocol)
                write_private(file, endpoints_text(pool, protocol, replicas))
                expected[cluster(pool, protocol)] = {_expected(replica, protocol) for replica in replicas}
        end = time.monotonic() + TAKEN_S
        while not self._has(expected):
            if time.monotonic() > end:
                raise ProxyError(f"Envoy did not take the endpoints within {TAKEN_S:g} s.\n{self._process.log_tail()}")
            time.sleep(POLL_S)

    def traffic(self) -> Mapping[str, Traffic]:
        """The traffic of each replica, HTTP and gRPC together; empty while Envoy is away."""
        counts: dict[str, Traffic] = {}
        for hosts in self._hosts().values():
            for host in hosts:
                values = {stat["name"]: int(stat.get("value", 0)) for stat in host["stats"]}
                before = counts.get(host["hostname"], Traffic(in_flight=0, requests=0, failures=0))
                counts[host["hostname"]] = Traffic(
                    in_flight=before.in_flight + values["rq_active"],
                    requests=before.requests + values["rq_total"],
                    failures=before.failures + values["rq_error"],
                )
        return counts

    def metrics(self) -> str:
        """Envoy's metrics in the Prometheus format; "" while it is away."""
        return ask(self._folder, "/stats/prometheus") or ""

    def drain(self) -> None:
        """Close the ports, and wait for a moment until the requests in flight are answered."""
        ask(self._folder, "/drain_listeners", method="POST")
        end = time.monotonic() + DRAIN_S
        while self._in_flight() and time.monotonic() < end:
            time.sleep(POLL_S)

    def _in_flight(self) -> int:
        text = ask(self._folder, "/stats?format=json&filter=^http\\.door\\.downstream_rq_active$")
        return sum(int(stat.get("value", 0)) for stat in json.loads(text)["stats"]) if text else 0

    def _hosts(self) -> dict[str, list[dict[str, Any]]]:
        text = ask(self._folder, "/clusters?format=json")
        statuses = json.loads(text).get("cluster_statuses", []) if text else []
        return {status["name"]: status.get("host_statuses", []) for status in statuses}

    def _has(self, expected: Mapping[str, set[Host]]) -> bool:
        """Whether Envoy has these hosts, and has checked the health of each once."""
        hosts_of = self._hosts()
        return all(
            name in hosts_of
            and {_found(host) for host in hosts_of[name]} == hosts
            and not any(host["health_status"].get("pending_active_hc") for host in hosts_of[name])
            for name, hosts in expected.items()
        )


@contextlib.contextmanager
def open_door(
    door: FrontDoor, *, workers: int | None = None, report: Callable[[str], None] = lambda _: None
) -> Iterator[Envoy]:
    """Open the door, yield its Envoy when it listens, and close it at the end; requests in flight are answered first.

    No pool has an endpoint until `route` names some. workers: Envoy's threads. report: gets a sentence when Envoy is
    started again. Raises `Mistake` and `ProxyError`.
    """
    check(door)
    places: list[Path] = []

    def command(folder: ServerFolder) -> Sequence[str]:
        places.append(folder.path)
        config = folder.path / "envoy.json"
        write_private(config, json.dumps(bootstrap(door, folder.path), indent=1))
        if door.tls:
            write_private(folder.path / SECRET_FILE, json.dumps(secret(door.tls)))
        for pool in door.pools:
            for protocol in PROTOCOLS:
                write_private(endpoints_file(folder.path, pool, protocol), endpoints_text(pool, protocol, ()))
        options = ["--concurrency", str(workers or _workers()), "--disable-hot-restart", "--log-level", "warn"]
        return [str(find()), "--config-path", str(config), *options]

    with process.running(command, is_up=lambda folder: _is_up(folder.path), report=report) as running:
        envoy = Envoy(door, places[0], running)
        try:
            yield envoy
        finally:
            envoy.drain()


def ask(folder: Path, path: str, *, method: str = "GET", timeout_s: float | None = None) -> str | None:
    """The answer of Envoy's admin interface; None while it is away, or if the answer is no success."""
    timeout_s = timeout_s or ADMIN_TIMEOUT_S
    connection = http.client.HTTPConnection("envoy", timeout=timeout_s)
    try:
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(timeout_s)
        connection.sock.connect(str(folder / ADMIN_SOCKET))
        connection.request(method, path)
        answer = connection.getresponse()
        text = answer.read().decode(errors="replace")
        return text if answer.status == http.client.OK else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def _workers() -> int:
    return max(1, min(MOST_WORKERS, len(os.sched_getaffinity(0)) // CORES_OF_A_WORKER))


def _is_up(folder: Path) -> bool:
    return ask(folder, "/ready", timeout_s=process.ASK_S) is not None


def _expected(endpoint: Endpoint, protocol: str) -> Host:
    status = "DRAINING" if endpoint.is_draining else "HEALTHY"
    return (endpoint.replica, *address(endpoint, protocol), status, endpoint.weight)


def _found(host: dict[str, Any]) -> Host:
    place = host["address"]["socket_address"]
    status = host["health_status"]["eds_health_status"]
    return host["hostname"], place["address"], place["port_value"], status, host["weight"]
