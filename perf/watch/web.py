"""Serves the live page and its stream of readings over HTTP, on loopback or to those who have the token."""

import contextlib
import gzip
import hmac
import http
import json
import os
import secrets
import urllib.parse
from collections.abc import Iterator
from http.cookies import CookieError, SimpleCookie
from typing import cast

from perf.report.page import render
from perf.watch.figures import figures
from perf.watch.live import Live
from perf.watch.steps import MINUTES_S, SPANS
from perf.watch.stream import Stream
from serve.bounded_http import BoundedServer, Handler, answering

LOOPBACK = ("127.0.0.1", "localhost", "::1")
TABLES = (
    ("models", "Models, last 5 s"),
    ("processes", "Processes of the servers on this machine"),
    ("events", "Loads and deaths, the newest first"),
)
# The token for those who may read; without it one is made up.
TOKEN = "TRITON_BATCHING_WATCH_TOKEN"
COOKIE = "triton-batching-watch"
# A reader that has gone is noticed when the next line cannot be sent.
QUIET_S = 15.0
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; "
    "style-src 'unsafe-inline'; img-src data:; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def token(host: str) -> str:
    """What a reader must show: the one of the environment, none on loopback, else a new one."""
    return os.environ.get(TOKEN, "") or ("" if host in LOOPBACK else secrets.token_urlsafe(24))


@contextlib.contextmanager
def serving(live: Live, host: str, port: int, shown: str) -> Iterator[str]:
    """Serve inside the block to those who show the token `shown` ("" is nobody asked); yields the page's address."""
    content = _page().encode()

    class Pages(_Pages):
        expected, text, compressed, readings = shown, content, gzip.compress(content), live

    server = BoundedServer(host, port, Pages)
    place = f"[{host}]" if ":" in host else host
    with answering(server, "live page"):
        yield f"http://{place}:{server.server_port}/" + (
            f"?token={urllib.parse.quote(shown, safe='')}" if shown else ""
        )


class _Pages(Handler):
    expected: str
    text: bytes
    compressed: bytes
    readings: Live

    def do_GET(self) -> None:  # noqa: N802 - the standard library's name
        address = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(address.query))
        if self.expected and "token" in query and _same(query["token"], self.expected):
            self._remember()
        elif not self._may_read():
            self.answer(http.HTTPStatus.FORBIDDEN, b"Open the address that the watch printed, with its token.\n")
        else:
            self._without_limit()
            self._send(address.path, query)

    def _send(self, path: str, query: dict[str, str]) -> None:
        if path == "/":
            self._answer_page()
        elif path == "/events":
            self._follow(query)
        else:
            self.answer(http.HTTPStatus.NOT_FOUND, b"The page is at /.\n")

    def _answer_page(self) -> None:
        """The page, a quarter as long for a browser that takes it compressed."""
        short = "gzip" in self.headers.get("Accept-Encoding", "")
        content = self.compressed if short else self.text
        self.send_response(http.HTTPStatus.OK)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        if short:
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        self.send(content)

    def end_headers(self) -> None:
        """Close the page to other sites."""
        for name, value in HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def _may_read(self) -> bool:
        """Whether the token was shown; on loopback, whether the page was asked for by a name of loopback.

        A page of another site can point its own name to 127.0.0.1, and would then read this one. Without that it can
        read nothing, but its requests would take the places of others.
        """
        if not self.expected:
            return not self._is_of_another_page() and _host(self.headers.get("Host", "")) in LOOPBACK
        bearer = self.headers.get("Authorization", "").removeprefix("Bearer ")
        return _same(bearer, self.expected) or _same(self._cookie(), self.expected)

    def _is_of_another_page(self) -> bool:
        """Whether a browser says that another page asks, and not a reader who opens this one."""
        asked_by, mode = self.headers.get("Sec-Fetch-Site", "none"), self.headers.get("Sec-Fetch-Mode", "navigate")
        return mode != "navigate" and asked_by not in ("none", "same-origin")

    @property
    def _port(self) -> int:
        """Browsers send a cookie to all ports of a machine."""
        return int(self.connection.getsockname()[1])

    def _cookie(self) -> str:
        try:
            found = SimpleCookie(self.headers.get("Cookie", "")).get(f"{COOKIE}-{self._port}")
        except CookieError:
            return ""
        return urllib.parse.unquote(found.value) if found else ""

    def _remember(self) -> None:
        """Keep the token in the browser, and take it out of the address."""
        self.send_response(http.HTTPStatus.SEE_OTHER)
        value = urllib.parse.quote(self.expected, safe="")
        # With SameSite=Strict a link to the page, in a chat or a wiki, would open without the token.
        kept = f"{COOKIE}-{self._port}={value}; HttpOnly; SameSite=Lax; Path=/"
        self.send_header("Set-Cookie", kept)
        self.send_header("Location", "/")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _without_limit(self) -> None:
        """A stream lasts as long as its reader looks, and a page as long as a slow link needs for it."""
        cast(BoundedServer, self.server).without_limit(self.connection)

    def _follow(self, query: dict[str, str]) -> None:
        """Send the state after each reading, until the reader has gone or the watch ends."""
        stream = Stream(
            live=self.readings, span_s=_span(query), model=query.get("model", ""), server=query.get("server", "")
        )
        self.send_response(http.HTTPStatus.OK)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        readings = 0
        while not self.readings.ended:
            with self.readings.after(readings, QUIET_S) as is_new:
                readings, event = self.readings.readings, stream.event() if is_new else None
            text = f"data: {json.dumps(event, separators=(',', ':'), allow_nan=False)}\n\n" if event else ": quiet\n\n"
            self.send(text.encode())


def _host(place: str) -> str | None:
    """The name in a Host header; None for what is no address."""
    try:
        return urllib.parse.urlsplit(f"//{place}").hostname
    except ValueError:
        return None


def _same(shown: str, expected: str) -> bool:
    """Whether both are equal, in a time that does not say where they differ."""
    return hmac.compare_digest(shown.encode(errors="replace"), expected.encode())


def _span(query: dict[str, str]) -> float:
    """The window that was asked for, or the shortest."""
    try:
        span_s = float(query.get("span", ""))
    except ValueError:
        return MINUTES_S
    return span_s if span_s in SPANS else MINUTES_S


def _page() -> str:
    """The text of the page: the same for every server, its values come later."""
    spans = [(span, _words(span)) for span in SPANS]
    return render("watch.html.j2", figures=figures(), script="live.js", spans=spans, tables=TABLES)


def _words(span_s: float) -> str:
    return f"{span_s / 3600:.0f} h" if span_s >= 3600 else f"{span_s / 60:.0f} min"
