"""A running HAProxy: it is told of endpoints, and asked, over a socket of this user only."""

import contextlib
import csv
import http.client
import io
import socket
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

from serve.front import haproxy_config, process
from serve.front.door import Endpoint, FrontDoor
from serve.front.envoy_clusters import PROTOCOLS, address
from serve.front.haproxy_config import SERVER, SLOTS, Slot, server
from serve.front.process import Process, ProxyError, Supervised, write_private
from serve.front.proxy import Traffic
from serve.server_folder import ServerFolder

TIMEOUT_S = 5.0
TAKEN_S = 15.0
POLL_S = 0.02
DRAIN_S = 5.0
CONFIG_FILE = "haproxy.cfg"
# After a failure each slot is told again.
UNKNOWN = dict.fromkeys(range(SLOTS), Slot())
NONE = Traffic(in_flight=0, requests=0, failures=0)


class HAProxy(Supervised):
    """HAProxy as a `Proxy`. A replica keeps its slot as long as it is an endpoint."""

    def __init__(self, door: FrontDoor, folder: Path, running: Process, workers: int) -> None:
        super().__init__(running)
        self._door, self._folder, self._workers = door, folder, workers
        self._slots: dict[int, Slot] = {}
        # What HAProxy has surely taken.
        self._taken: Mapping[int, Slot] = {}
        # What a slot had counted when its replica got it, and the number of restarts for which that holds.
        self._earlier: dict[int, Traffic] = {}
        self._counts_since = 0

    def route(self, endpoints: Mapping[str, Sequence[Endpoint]]) -> None:
        """Send the requests of the pool to these endpoints; raises `ProxyError` if HAProxy does not take them."""
        [pool] = self._door.pools
        if pool.name not in endpoints:
            return
        before, self._taken = self._taken, UNKNOWN
        slots, self._slots = self._slots, _placed(self._slots, endpoints[pool.name])
        self._begin_counting({number for number, slot in self._slots.items() if not _has(slots, number, slot.replica)})
        # For the next start.
        text = haproxy_config.text(self._door, self._folder, self._slots, workers=self._workers)
        write_private(self._folder / CONFIG_FILE, text)
        end = time.monotonic() + TAKEN_S
        while not self._tell(pool.name, before):
            if time.monotonic() > end:
                raise ProxyError(
                    f"HAProxy did not take the endpoints within {TAKEN_S:g} s.\n{self._process.log_tail()}"
                )
            time.sleep(POLL_S)
        self._taken = self._slots

    def traffic(self) -> Mapping[str, Traffic]:
        """The traffic of each replica, HTTP and gRPC together; empty while HAProxy is away."""
        counts = self._counts()
        return {
            slot.replica: _since(self._earlier.get(number, NONE), counts[number])
            for number, slot in self._slots.items()
            if number in counts
        }

    def metrics(self) -> str:
        """HAProxy's metrics in the Prometheus format; "" while it is away."""
        connection = http.client.HTTPConnection("haproxy", timeout=TIMEOUT_S)
        try:
            connection.sock = _connected(self._folder / haproxy_config.METRICS_SOCKET)
            connection.request("GET", "/metrics")
            return connection.getresponse().read().decode(errors="replace")
        except (OSError, http.client.HTTPException):
            return ""
        finally:
            connection.close()

    def drain(self) -> None:
        """Close the ports, and wait for a moment until the requests in flight are answered."""
        tell(self._folder, "shutdown frontend door")
        end = time.monotonic() + DRAIN_S
        while any(int(row["scur"] or 0) for row in self._rows()) and time.monotonic() < end:
            time.sleep(POLL_S)

    def _tell(self, pool: str, before: Mapping[int, Slot]) -> bool:
        """Set the slots that changed; whether HAProxy did it all."""
        commands = [
            f"set server {pool}.{protocol}/{server(number)} {setting}"
            for number in before.keys() | self._slots.keys()
            for protocol in PROTOCOLS
            for setting in _settings(before.get(number), self._slots.get(number), protocol)
        ]
        # It answers a change with a sentence about it, and a mistake with one that begins otherwise. A command to one
        # that hangs takes TIMEOUT_S, so the first without an answer is the last.
        answers = (tell(self._folder, command) for command in commands)
        return all(answer is not None and "No such" not in answer for answer in answers)

    def _begin_counting(self, numbers: Collection[int]) -> None:
        """Count from 0 in these slots: HAProxy goes on from the counts of the replica that had the slot before."""
        counts = self._counts()
        self._earlier |= {number: counts.get(number, NONE) for number in numbers}

    def _counts(self) -> dict[int, Traffic]:
        """What HAProxy counts for each slot since it started, HTTP and gRPC together."""
        if self._counts_since != self.restarts:
            self._earlier, self._counts_since = {}, self.restarts
        counts: dict[int, Traffic] = {}
        for row in self._rows():
            if not row["svname"].startswith(SERVER):
                continue
            number = int(row["svname"].removeprefix(SERVER))
            before = counts.get(number, NONE)
            counts[number] = Traffic(
                in_flight=before.in_flight + int(row["scur"] or 0),
                requests=before.requests + int(row["stot"] or 0),
                failures=before.failures + sum(int(row[name] or 0) for name in ("econ", "eresp", "hrsp_5xx")),
            )
        return counts

    def _rows(self) -> list[dict[str, str]]:
        """HAProxy's statistics of its servers."""
        text = tell(self._folder, "show stat -1 4 -1")
        return list(csv.DictReader(io.StringIO(text.removeprefix("# ")))) if text else []


@contextlib.contextmanager
def run(
    door: FrontDoor, binary: Path, *, workers: int, log: Path | None, report: Callable[[str], None]
) -> Iterator[HAProxy]:
    """Start HAProxy for a checked door, and end it at the end; requests in flight get a moment."""
    places: list[Path] = []

    def command(folder: ServerFolder) -> Sequence[str]:
        places.append(folder.path)
        config = folder.path / CONFIG_FILE
        write_private(config, haproxy_config.text(door, folder.path, {}, workers=workers))
        write_private(folder.path / haproxy_config.TENANTS_FILE, haproxy_config.tenants(door))
        if door.tls:
            pair = door.tls.certificate.read_text() + "\n" + door.tls.key.read_text()
            write_private(folder.path / haproxy_config.CERTIFICATE_FILE, pair)
        return [str(binary), "-db", "-f", str(config)]

    def is_up(folder: ServerFolder) -> bool:
        return tell(folder.path, "show info", timeout_s=process.ASK_S) is not None

    with process.running(command, log, is_up=is_up, report=report) as running:
        haproxy = HAProxy(door, places[0], running, workers)
        try:
            yield haproxy
        finally:
            haproxy.drain()


def tell(folder: Path, command: str, *, timeout_s: float | None = None) -> str | None:
    """HAProxy's answer to a command; None while it is away."""
    try:
        with _connected(folder / haproxy_config.CONTROL_SOCKET, timeout_s) as connection:
            connection.sendall(f"{command}\n".encode())
            return b"".join(iter(lambda: connection.recv(65_536), b"")).decode(errors="replace")
    except OSError:
        return None


def _connected(path: Path, timeout_s: float | None = None) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(timeout_s or TIMEOUT_S)
    try:
        connection.connect(str(path))
    except OSError:
        connection.close()
        raise
    return connection


def _placed(before: Mapping[int, Slot], endpoints: Sequence[Endpoint]) -> dict[int, Slot]:
    """A slot for each endpoint: the one that its replica has, or a free one."""
    if len(endpoints) > SLOTS:
        raise ProxyError(f"HAProxy has {SLOTS} places for replicas, and these are {len(endpoints)}. Use envoy.")
    numbers = {slot.replica: number for number, slot in before.items()}
    taken = {numbers[endpoint.replica] for endpoint in endpoints if endpoint.replica in numbers}
    free = iter(number for number in range(SLOTS) if number not in taken)
    return {
        numbers[endpoint.replica] if endpoint.replica in numbers else next(free): _slot(endpoint)
        for endpoint in endpoints
    }


def _since(earlier: Traffic, now: Traffic) -> Traffic:
    """The traffic since `earlier`; requests in flight are those of now."""
    return Traffic(
        in_flight=now.in_flight,
        requests=now.requests - earlier.requests,
        failures=now.failures - earlier.failures,
    )


def _has(slots: Mapping[int, Slot], number: int, replica: str) -> bool:
    return number in slots and slots[number].replica == replica


def _slot(endpoint: Endpoint) -> Slot:
    return Slot(
        replica=endpoint.replica,
        host=address(endpoint, "http")[0],
        http_port=endpoint.http_port,
        grpc_port=endpoint.grpc_port,
        share=0 if endpoint.is_draining else endpoint.weight,
    )


def _settings(before: Slot | None, after: Slot | None, protocol: str) -> Iterator[str]:
    """What to say about a server so that it becomes `after`."""
    if after is None:
        yield "state maint"
    elif after != before:
        host, port = after.address(protocol).rsplit(":", 1)
        if before is None or before.address(protocol) != after.address(protocol):
            yield "state maint"
            yield f"addr {host.strip('[]')} port {port}"
        yield f"weight {after.share}"
        yield "state ready"
