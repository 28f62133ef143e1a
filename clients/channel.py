"""What the connections over gRPC share, blocking and for asyncio: address, TLS, heads of requests, limits."""

import socket
import struct
from typing import Any

from . import cancelling, grpc_wire
from .endpoint import Endpoint
from .http2_frames import LARGEST
from .http2_sending import Call
from .steps import Step

BACKOFF_S = 0.1
"""The pause before the next attempt to connect."""

RECONNECT_S = 0.5
"""How long a call waits for a server that is gone."""

CONNECT_S = 5.0
"""How long one attempt to connect may take: a server may be 300 ms away, or on a busy machine."""

KEEPALIVE_S = 330.0
"""How long a connection with calls in flight may be silent before a ping is sent. Servers close the connection of a
client that sends them more often than every 300 s."""

KEEPALIVE_TIMEOUT_S = 20.0
"""How long the answer to a ping, or the acknowledgement of sent bytes, may take before the host counts as gone."""

ATTEMPTS = 5
"""How often a request is sent that the server has certainly not run."""


class Channel:
    """What both connections share: the address, TLS, and what its methods may do.

    `window` is how many bytes of an answer the server may send before it is granted more. Cancellations and deadlines
    are kept from the server until its answer to ServerMetadata shows that it survives them.
    """

    window = LARGEST

    def __init__(self, url: str | Endpoint, reconnect_s: float) -> None:
        self.endpoint = Endpoint.of(url)
        self.endpoint.over("grpc")  # raises for an HTTP address
        self.url, self._reconnect_s = self.endpoint.url, reconnect_s
        self.cancels = False
        self._host = self.endpoint.host.strip("[]")
        self._tls = self.endpoint.tls.context() if self.endpoint.tls else None
        if self._tls:
            self._tls.set_alpn_protocols(["h2"])
        # The name that has to be in the certificate.
        self._name = (self.endpoint.name or self.endpoint.host).strip("[]") if self._tls else None
        self._openings: dict[str, bytes] = {}

    def _opening(self, step: Step, left: float | None) -> bytes:
        """The head of a request; with its deadline if the server may know of that."""
        opening = self._openings.get(step.method)
        if opening is None:
            opening = grpc_wire.opening(self.endpoint, step.method)
            if "SharedMemory" not in step.method:  # these carry a secret that may change
                self._openings[step.method] = opening
        return opening if left is None or not self._may_cancel(step) else opening + grpc_wire.deadline(left)

    def _may_cancel(self, step: Step) -> bool:
        return self.cancels or step.method not in ("ModelInfer", "ModelStreamInfer")

    def may_repeat(self, call: Call, attempt: int) -> bool:
        """Whether a call is made again: the server has certainly not run it, and no word of its answer has come."""
        return call.error is not None and call.is_unknown and not call.head and attempt < ATTEMPTS - 1

    def _read(self, call: Call, step: Step, model: str) -> Any:
        """The parsed answer; raises a `ClientError`."""
        answer = grpc_wire.read(call, step.method, self.url, model)
        if step.method == "ServerMetadata":
            self.cancels = cancelling.survives(answer.version)
        return answer


def prepare(opened: socket.socket) -> None:
    """Set the options of a socket: no delay of small pieces, and limits for silence and for unacknowledged bytes."""
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1e3 * KEEPALIVE_TIMEOUT_S))
    seconds, rest = divmod(KEEPALIVE_S, 1)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(seconds), int(1e6 * rest)))
