"""Receives the spans that a tritonserver on this machine sends: a small collector of OTLP over HTTP, as JSON."""

import contextlib
import http
import threading
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from serve.bounded_http import BoundedServer, Handler, answering
from serve.management import otlp
from serve.management.admin import LOOPBACK
from serve.management.traces import Trace
from triton_batching.terminal import Mistake

# Triton sends 512 spans at a time, some 300 KB.
LARGEST_BYTES = 16 << 20
# Of three a request. Later ones are dropped.
MOST_SPANS = 30_000
HERE = {address for addresses in LOOPBACK.values() for address in addresses}


class ElsewhereError(Mistake):
    """The traces go to another machine, or to nowhere that can be listened to."""


class Received:
    """The spans so far."""

    def __init__(self) -> None:
        self._spans: list[otlp.Span] = []
        self._lock = threading.Lock()

    def add(self, content: bytes) -> None:
        """Add the spans of a message; raises `ValueError` if it is none."""
        spans = otlp.spans(content)
        with self._lock:
            self._spans.extend(spans[: max(0, MOST_SPANS - len(self._spans))])

    def spans(self) -> list[otlp.Span]:
        """All spans that have come."""
        with self._lock:
            return list(self._spans)

    def traces(self) -> list[Trace]:
        """The requests of which all spans have come, in order."""
        return otlp.traces(self.spans())


def address_of(settings: Mapping[str, Any]) -> str:
    """Where a server with these trace settings sends its spans; "" if it sends none."""
    return str(settings.get("url", "")) if settings.get("trace_mode") == "opentelemetry" else ""


@contextlib.contextmanager
def receiving(url: str) -> Iterator[Received]:
    """Receive what servers send to `url` inside the block.

    Raises `ElsewhereError` if it is not this machine's own address, and `PortError` if something listens there already.
    """
    try:
        address = urlsplit(url)
        host, port, path = address.hostname, address.port or 4318, address.path or "/"
    except ValueError:
        host, port, path = None, 0, ""
    if host not in HERE:
        raise ElsewhereError(f"{url} is not this machine's own address (localhost), so nothing is received there")
    received = Received()

    class Traces(Handler):
        def do_POST(self) -> None:  # noqa: N802 - the standard library's name
            length = self.headers.get("Content-Length", "")
            if self.path != path:
                self.answer(http.HTTPStatus.NOT_FOUND)
            elif not length.isdecimal() or int(length) > LARGEST_BYTES:
                self.answer(http.HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
            else:
                self._take(self.rfile.read(int(length)))

        def _take(self, content: bytes) -> None:
            try:
                received.add(content)
            except ValueError as error:
                self.answer(http.HTTPStatus.BAD_REQUEST, f"{error}\n".encode())
            else:
                self.answer(http.HTTPStatus.OK, b"{}", "application/json")

    with answering(BoundedServer("127.0.0.1" if host == "localhost" else str(host), port, Traces), "traces"):
        yield received
