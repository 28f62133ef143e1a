"""Reads one answer of HTTP/1.1 from bytes that come in any pieces, apart from how they are received.

The head of an answer is parsed once and remembered, since all answers of the same shapes have the same. A body whose
length is known is received where it stays: its tensors are views of it.
"""

import functools
from typing import Any, NamedTuple

import numpy as np
from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser
from numpy.typing import NDArray

JSON_LENGTH = "Inference-Header-Content-Length"
"""The header with the length of the JSON before the tensors."""

HEAD_BYTES = 16 << 10
"""The longest head of an answer, and the most bytes that are received at once outside of a body of known length."""

ALIGNMENT = 16
"""The first tensor of an answer begins at a multiple of this, as numpy's own arrays do."""

MOST_HEADS = 256
_NOTHING = bytearray()
_START, _END = b"HTTP/1.", b"\r\n\r\n"
_FINAL, _WITHOUT_BODY = 200, (204, 304)


class HttpError(Exception):
    """What came is not an answer of HTTP/1.1, or not a whole one."""


class TooLargeError(HttpError):
    """The answer has more bytes than the client takes."""


class Head(NamedTuple):
    """`length` is that of the body, None if the body is chunked or goes on to the end of the connection.

    `json_length` is the header `JSON_LENGTH`, None without it. `keeps` is whether the connection can be used again.
    With `skipped` bytes before the body, the first tensor is aligned.
    """

    status: int
    length: int | None
    json_length: bytes | None
    chunked: bool
    keeps: bool
    skipped: int


class HttpAnswer:
    """One answer at a time; `room` is where to receive to, and `received` tells of bytes that have come there.

    When it is `complete`, `head` is set, and the body is what `whole` holds from `begin` on. `begun` is whether any
    byte of it has come, `keeps` whether the connection can carry another request after it. A body has `most_bytes` at
    most. `known` belongs to whoever reads bodies: what it found in the last one, to recognise the next.
    """

    head: Head
    whole: bytearray | NDArray[np.uint8]
    begin: int

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes, self._scratch = most_bytes, bytearray(HEAD_BYTES)
        self._view = memoryview(self._scratch)
        self.known: Any = None
        self._last: tuple[bytes, Head] | None = None
        self.reset()

    def reset(self) -> None:
        """Forget the answer, whose memory is its arrays' from now on, and wait for the next one."""
        self.whole = _NOTHING
        self.complete = self.begun = self.keeps = False
        self._received, self._in_head = 0, True
        self._missing: memoryview | None = None
        self._parser: HttpResponseParser | None = None

    def body(self, begin: int = 0, end: int | None = None) -> bytes:
        """A copy of a part of the body."""
        return bytes(self.whole[self.begin + begin : None if end is None else self.begin + end])

    def room(self) -> memoryview:
        """Where the next bytes go; never empty."""
        if self._received:
            return self._view[self._received :]
        return self._missing or self._view

    def received(self, count: int) -> None:
        """Take `count` bytes that were written to the beginning of `room`; raises `HttpError`."""
        self.begun = True
        if not self._in_head:
            self._more(count)
            return
        came = self._received + count
        if (last := self._last) and self._scratch.startswith(last[0], 0, came):
            end, head = len(last[0]), last[1]
        elif last := self._find_head(count):
            came, end, head = self._received, len(last[0]), last[1]
            self._last = last
        else:
            return
        self._received, self._in_head = 0, False
        self.head, self.begin = head, head.skipped
        if head.length is not None and came >= (stop := end + head.length):
            # The bytes before the body are those of the head.
            self.whole = self._scratch[end - head.skipped : stop]
            self.complete, self.keeps = True, head.keeps and came == stop
        else:
            self._begin_body(head, end, came)

    def _find_head(self, count: int) -> tuple[bytes, Head] | None:
        """The head if the last of its bytes have come, with them; None before that."""
        searched, self._received = max(0, self._received - len(_END)), self._received + count
        while True:
            found = self._scratch.find(_END, searched, self._received)
            if found < 0:
                self._check_begin()
                return None
            end = found + len(_END)
            content = bytes(self._view[:end])
            head = _head(content)
            if (head.length or 0) > self._most_bytes:
                what = f"an answer of {head.length} bytes, larger than max_answer_bytes={self._most_bytes}"
                raise TooLargeError(what)
            if head.status >= _FINAL:
                return content, head
            # An interim answer, such as 100 Continue: another one follows.
            self._received -= end
            self._scratch[: self._received] = self._scratch[end : end + self._received]
            searched = 0

    def ended(self) -> None:
        """Take the end of the connection; raises `ConnectionError` before an answer, `HttpError` in its middle."""
        if not self.begun:
            raise ConnectionResetError("the server closed the connection without an answer")
        if not self.complete:
            if self._parser is None or self.head.chunked:
                raise HttpError("the server closed the connection in the middle of its answer")
            self.complete = True

    def on_message_begin(self) -> None:
        """Called by the parser at the first byte of an answer, and of what follows it."""
        self.keeps = False

    def on_body(self, piece: bytes) -> None:
        """Called by the parser with a part of a body whose length was not known."""
        if not self.complete:
            assert isinstance(self.whole, bytearray)
            self.whole += piece

    def on_message_complete(self) -> None:
        """Called by the parser at the end of a body whose length was not known."""
        if not self.complete:
            self.complete, self.keeps = True, self.head.keeps

    def _check_begin(self) -> None:
        """Raise `HttpError` if what has come cannot become a head."""
        start = bytes(self._view[: min(self._received, len(_START))])
        if not _START.startswith(start) or self._scratch.find(b"\n\n", 0, self._received) >= 0:
            raise HttpError(f"not an answer of HTTP/1.1: {bytes(self._view[: min(self._received, 40)])!r}")
        if self._received == HEAD_BYTES:
            raise HttpError(f"the headers of the answer have more than {HEAD_BYTES} bytes")

    def _begin_body(self, head: Head, end: int, came: int) -> None:
        """Make room for a body of which a part has come, behind the head's `end`."""
        if head.length is None:
            self.whole, self._parser = bytearray(), HttpResponseParser(self)
            self._parse(self._parser, self._view[:came])
            return
        try:
            self.whole = np.empty(head.skipped + head.length, np.uint8)
        except (MemoryError, ValueError) as error:
            raise HttpError(f"no memory for an answer of {head.length} bytes") from error
        body = self.whole.data[head.skipped :]
        body[: came - end] = self._view[end:came]
        self._missing = body[came - end :]

    def _more(self, count: int) -> None:
        """Take bytes behind the head."""
        if self._missing:
            self._missing = self._missing[count:]
            if not self._missing:
                self.complete, self.keeps = True, self.head.keeps
        elif self._parser and not self.complete:
            self._parse(self._parser, self._view[:count])
        else:
            self.keeps = False  # what comes now belongs to no request

    def _parse(self, parser: HttpResponseParser, piece: memoryview) -> None:
        try:
            parser.feed_data(piece)
        except HttpParserError as error:
            self.keeps = False
            if not self.complete:
                raise HttpError(f"not an answer of HTTP/1.1: {error}") from error
        if len(self.whole) > self._most_bytes:
            raise TooLargeError(f"an answer larger than max_answer_bytes={self._most_bytes}")


class _Fields:
    """What a parser finds in a head."""

    parser: HttpResponseParser
    keeps = False

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser for each header."""
        self.values[name.lower()] = value

    def on_headers_complete(self) -> None:
        """Called by the parser at the end of the head; afterwards it has forgotten what it found."""
        self.keeps = self.parser.should_keep_alive()


@functools.lru_cache(MOST_HEADS)
def _head(content: bytes) -> Head:
    """A head from its bytes; raises `HttpError`."""
    fields = _Fields()
    fields.parser = parser = HttpResponseParser(fields)
    try:
        parser.feed_data(content)
    except (HttpParserError, HttpParserUpgrade) as error:
        raise HttpError(f"not an answer of HTTP/1.1: {error}") from error
    status, coding = parser.get_status_code(), fields.values.get(b"transfer-encoding")
    length = b"0" if status in _WITHOUT_BODY else fields.values.get(b"content-length")
    json_length = fields.values.get(JSON_LENGTH.lower().encode())
    if coding is not None or length is None:
        chunked = coding is not None and coding.lower().endswith(b"chunked")
        return Head(status, None, json_length, chunked, fields.keeps, 0)
    skipped = -int(json_length) % ALIGNMENT if json_length and json_length.isdigit() else 0
    return Head(status, int(length), json_length, False, fields.keeps, skipped)
