"""What one connection of HTTP/2 sends: the requests of its calls, as far as the server's windows allow."""

from collections.abc import Callable, Sequence

from .grpc_body import Body
from .http2_frames import (
    CANCEL,
    DATA,
    END_HEADERS,
    END_STREAM,
    FIRST_FRAME,
    FIRST_WINDOW,
    FRAME_BYTES,
    HEAD,
    HEADERS,
    LARGEST,
    NUMBER,
    PING,
    PREFACE,
    RST_STREAM,
    SET_FRAME,
    SET_PUSH,
    SET_STREAMS,
    SET_WINDOW,
    SETTING,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
)
from .line import Piece

MOST_PIECES = 256
"""About how many pieces wait to be sent; those of larger requests follow."""


class Call:
    """One request, and what has come of its answer.

    `is_over` is set when the answer has ended, or when `error` says why none comes. `is_unknown` is whether the server
    has certainly not run the request. `head` holds the fields of the answer, `body` its message.
    """

    awaited = "is_over"
    """The attribute that a blocking caller waits for."""

    __slots__ = (
        *("body", "ended", "error", "head", "is_over", "is_unknown"),
        *("left", "opening", "pieces", "stream", "window"),
    )

    def __init__(self, opening: bytes, pieces: Sequence[Piece], ended: Callable[["Call"], None]) -> None:
        self.opening, self.pieces, self.ended = opening, list(pieces), ended
        self.left = sum(map(len, pieces))
        self.stream = self.window = 0
        self.head: dict[str, str] = {}
        self.body: Body = Body()
        self.is_over = self.is_unknown = False
        self.error: Exception | None = None


class Sending:
    """The side of a connection that sends: `out` is what has to be sent, `calls` are those that have begun.

    It `takes` calls until the server ends that, or the streams are used up. `window` is how many bytes of an answer the
    server may send before it is granted more.
    """

    def __init__(self, window: int = LARGEST) -> None:
        announced = ((SET_PUSH, 0), (SET_WINDOW, window), (SET_FRAME, FRAME_BYTES))
        settings = b"".join(SETTING.pack(*setting) for setting in announced)
        opening = PREFACE + frame(SETTINGS, 0, 0, settings)
        self.out: list[Piece] = [opening + frame(WINDOW_UPDATE, 0, 0, NUMBER.pack(LARGEST - FIRST_WINDOW))]
        self.calls: dict[int, Call] = {}
        self.takes = True
        self._waiting: list[Call] = []
        self._stream, self._most_streams = 1, LARGEST
        self._window = self._first_window = FIRST_WINDOW
        self._frame = FIRST_FRAME

    def ask(self, call: Call) -> None:
        """Send a request as soon as the server has room for it; on a connection that takes none, it ends at once."""
        if not self.takes:
            self._end_unseen(call)
            return
        size, most = call.left, min(self._window, self._first_window, self._frame)
        if self._waiting or not 0 < size <= most or not self._has_stream():
            self._waiting.append(call)
            self.go_on()
            return
        self._window -= size
        stream = self._open(call)
        opening = call.opening
        head = HEAD.pack(len(opening) << 8 | HEADERS, END_HEADERS, stream) + opening
        self.out.append(head + HEAD.pack(size << 8 | DATA, END_STREAM, stream))
        self.out += call.pieces
        call.pieces, call.left = [], 0

    def reset(self, call: Call) -> None:
        """Cancel a call on the server; its answer is not read."""
        self.keep(call)
        self._forget(call)
        if self.calls.pop(call.stream, None):
            self.out.append(frame(RST_STREAM, 0, call.stream, NUMBER.pack(CANCEL)))

    def keep(self, call: Call) -> None:
        """Copy what is not sent yet, since the caller leaves and may change its arrays."""
        self.out[:] = map(bytes, self.out)
        call.pieces = [*map(bytes, call.pieces)]

    def all(self) -> list[Call]:
        """The calls that have not ended."""
        return [*self.calls.values(), *(call for call in self._waiting if not call.stream)]

    def grant(self, call: Call, size: int) -> None:
        """Let the server send `size` more bytes of an answer."""
        if call.stream in self.calls:
            self.out.append(frame(WINDOW_UPDATE, 0, call.stream, NUMBER.pack(size)))

    def ping(self) -> None:
        """Ask the server for a sign of life."""
        self.out.append(frame(PING, 0, 0, b"are you?"))

    def go_on(self) -> bool:
        """Add more of the requests that wait to `out`, which is then to be sent; returns whether there was any."""
        before = len(self.out)
        for call in list(self._waiting):
            if len(self.out) > MOST_PIECES or not (call.stream or self._has_stream()):
                break
            if not call.stream:
                self._open(call)
                flags = END_HEADERS if call.left else END_HEADERS | END_STREAM
                self.out.append(frame(HEADERS, flags, call.stream, call.opening))
            while call.left and len(self.out) <= MOST_PIECES and (room := min(self._window, call.window)) > 0:
                self._send_some(call, min(room, self._frame, call.left))
            if not call.left:
                self._waiting.remove(call)
        if not self.takes:
            self._end_unopened()
        return len(self.out) > before

    def _send_some(self, call: Call, size: int) -> None:
        """Send `size` bytes of a request as one frame."""
        self._window -= size
        call.window -= size
        call.left -= size
        self.out.append(HEAD.pack(size << 8 | DATA, 0 if call.left else END_STREAM, call.stream))
        while size:
            piece = call.pieces.pop(0)
            if len(piece) > size:
                view = memoryview(piece)
                call.pieces.insert(0, view[size:])
                piece = view[:size]
            self.out.append(piece)
            size -= len(piece)

    def _has_stream(self) -> bool:
        return self.takes and len(self.calls) < self._most_streams

    def _open(self, call: Call) -> int:
        stream = call.stream = self._stream
        self._stream += 2
        self.takes = self._stream < LARGEST
        call.window = self._first_window
        self.calls[stream] = call
        return stream

    def _forget(self, call: Call) -> None:
        """Send nothing more of a request."""
        if call.left and call in self._waiting:
            self._waiting.remove(call)

    def _limit(self, name: int, value: int) -> None:
        """Take one of the server's settings."""
        if name == SET_STREAMS:
            self._most_streams = value
        elif name == SET_FRAME:
            self._frame = value
        elif name == SET_WINDOW:
            for call in self.calls.values():
                call.window += value - self._first_window
            self._first_window = value

    def _widen(self, stream: int, size: int) -> None:
        if not stream:
            self._window += size
        elif call := self.calls.get(stream):
            call.window += size
        if self._waiting:
            self.go_on()

    def _end_unopened(self) -> None:
        """End the calls of which nothing was sent."""
        for call in [call for call in self._waiting if not call.stream]:
            self._waiting.remove(call)
            self._end_unseen(call)

    def _end_unseen(self, call: Call) -> None:
        """End a call that the server has certainly not run."""
        call.is_unknown = True
        self._end(call, ConnectionResetError("the server closes the connection"))

    def _end(self, call: Call, error: Exception | None) -> None:
        call.is_over, call.error = True, error
        call.pieces = []
        call.ended(call)
