"""The HTTP endpoint that serves a page of metrics at /metrics."""

import contextlib
import http
from collections.abc import Callable, Iterator

from prometheus_client import CONTENT_TYPE_LATEST

from serve.bounded_http import BoundedServer, Handler, answering
from serve.management.api import ServerError


@contextlib.contextmanager
def serving(host: str, port: int, text: Callable[[], str]) -> Iterator[int]:
    """Answer /metrics with `text()` on a thread inside the block; yields the port, which is a free one for 0.

    While `text` raises `ServerError`, the answer is 503, which Prometheus takes for a server that is down. Raises
    `PortError`.
    """

    class Metrics(Handler):
        def do_GET(self) -> None:  # noqa: N802 - the standard library's name
            if self.path.partition("?")[0] != "/metrics":
                self.answer(http.HTTPStatus.NOT_FOUND, b"The metrics are at /metrics.\n")
                return
            try:
                content, status = text(), http.HTTPStatus.OK
            except ServerError as error:
                content, status = f"{error}\n", http.HTTPStatus.SERVICE_UNAVAILABLE
            self.answer(status, content.encode(), CONTENT_TYPE_LATEST if status == http.HTTPStatus.OK else "text/plain")

    server = BoundedServer(host, port, Metrics)
    with answering(server, "metrics"):
        yield server.server_port
