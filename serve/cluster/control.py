"""Commands to a running cluster: one JSON request and one JSON answer over a socket that only its user can open."""

import contextlib
import os
import queue
import socket
import socketserver
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from serve.bounded_http import answering
from serve.cluster.place import Place, is_taken
from serve.cluster.status import Status
from triton_batching.terminal import Failure, Mistake

VERSION = 1
TIMEOUT_S = 30.0
LARGEST_REQUEST = 1 << 16
# A cluster that starts has no socket yet.
STARTING_S, POLL_S = 10.0, 0.1


class Request(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """A command; the cluster answers at once and does the work after that."""

    version: int = VERSION


class Look(Request, frozen=True, kw_only=True, tag="status"):
    """Say how the cluster is."""


class Scale(Request, frozen=True, kw_only=True, tag="scale"):
    """Have this number of replicas of a deployment, named by itself or by a model."""

    deployment: str
    replicas: int


class Drain(Request, frozen=True, kw_only=True, tag="drain"):
    """Take a replica out of the front door, let it answer its requests, and stop it; another takes its place."""

    replica: str


class Update(Request, frozen=True, kw_only=True, tag="update"):
    """Replace the replicas of a deployment one by one, with this configuration.

    keeps_config: with the configuration that it has, for new files of its models.
    """

    deployment: str
    config_name: str | None = None
    keeps_config: bool = False


class Canary(Request, frozen=True, kw_only=True, tag="canary"):
    """Start a canary with this configuration, and a control: a new replica with the configuration that there is.

    Each gets `share` of the deployment's requests, and never more than an ordinary replica.
    """

    deployment: str
    config_name: str | None = None
    share: Annotated[float, Meta(gt=0.0, lt=0.5)]


class Promote(Request, frozen=True, kw_only=True, tag="promote"):
    """Let the control go, keep the canary as the first replica of an update to its configuration."""

    deployment: str


class Abandon(Request, frozen=True, kw_only=True, tag="abandon"):
    """Let the canary and its control go; the other replicas stay as they are."""

    deployment: str


class Down(Request, frozen=True, kw_only=True, tag="down"):
    """End the cluster and forget its state."""


Command = Look | Scale | Drain | Update | Canary | Promote | Abandon | Down


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer: what is wrong with the request, "" if nothing is; what was begun; and how the cluster is."""

    version: int = VERSION
    mistake: str = ""
    text: str = ""
    status: Status | None = None


class Call:
    """A request that waits for its answer."""

    def __init__(self, command: Command) -> None:
        self.command = command
        self._answer: queue.SimpleQueue[Answer] = queue.SimpleQueue()

    def answer(self, answer: Answer) -> None:
        """Answer it."""
        self._answer.put(answer)

    def wait(self) -> Answer:
        """The answer; raises `queue.Empty` without one in time."""
        return self._answer.get(timeout=TIMEOUT_S)


@contextlib.contextmanager
def listening(path: Path, calls: "queue.SimpleQueue[Call]") -> Iterator[None]:
    """Put each request that comes over the socket at `path` into `calls`."""

    class Handler(socketserver.StreamRequestHandler):
        timeout = TIMEOUT_S

        def handle(self) -> None:
            with contextlib.suppress(OSError, queue.Empty):
                self.wfile.write(msgspec.json.encode(_answered(self.rfile.readline(LARGEST_REQUEST), calls)))

    umask = os.umask(0o177)
    try:
        server = socketserver.ThreadingUnixStreamServer(str(path), Handler)
    finally:
        os.umask(umask)
    server.daemon_threads = True
    server.block_on_close = False
    with answering(server, "control"):
        yield


def _answered(line: bytes, calls: "queue.SimpleQueue[Call]") -> Answer:
    try:
        command = msgspec.json.decode(line, type=Command)
    except msgspec.DecodeError as error:
        return Answer(mistake=f"the cluster does not know this request ({error}).")
    if command.version != VERSION:
        return Answer(mistake=f"the cluster speaks version {VERSION}, this request is of version {command.version}.")
    call = Call(command)
    calls.put(call)
    return call.wait()


def _connect(connection: socket.socket, place: Place) -> None:
    until = time.monotonic() + STARTING_S
    while True:
        try:
            return connection.connect(str(place.socket))
        except (FileNotFoundError, ConnectionError):
            if not is_taken(place) or time.monotonic() > until:
                raise
        time.sleep(POLL_S)


def ask(place: Place, command: Command) -> Answer:
    """The cluster's answer; raises `Mistake` if it refuses or does not run, and `Failure` if it does not answer."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(TIMEOUT_S)
            _connect(connection, place)
            connection.sendall(msgspec.json.encode(command) + b"\n")
            with connection.makefile("rb") as file:
                answer = msgspec.json.decode(file.read(), type=Answer)
    except (FileNotFoundError, ConnectionError) as error:
        if is_taken(place):
            raise Failure(f"{place.name}: its cluster is starting or ending. Try again in a moment.") from error
        raise Mistake(
            f"{place.name}: its cluster does not run. Start it: python -m serve.cluster up PLAN.toml"
        ) from error
    except (OSError, msgspec.DecodeError) as error:
        raise Failure(f"{place.name}: its cluster does not answer ({error}).") from error
    if answer.mistake:
        raise Mistake(answer.mistake)
    return answer
