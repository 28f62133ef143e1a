"""The client's side of one connection of HTTP/2 that carries calls of gRPC, apart from how bytes are sent and received.

A server of gRPC needs less of HTTP/2 than a browser does: the head of a request is the same bytes for all calls, and an
answer is a few frames. Heads of answers are decoded once, since a server repeats them as references to its table.
"""

import struct
from collections.abc import Callable, Sequence

from hpack import Decoder, HPACKError

from .grpc_body import Body
from .line import AnswerError, Piece

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_HEAD = 9
DATA, HEADERS, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, *range(3, 10)
END_STREAM = ACK = 1
END_HEADERS, PADDED, PRIORITY = 4, 8, 32
NO_ERROR, REFUSED, CANCEL = 0, 7, 8
_MOST_STREAMS, _WINDOW, _FRAME_BYTES = 3, 4, 5  # settings
_PUSH = 2

FRAME_BYTES = 128 << 10
"""The largest frame that the server may send."""

HEAD_BYTES = 32 << 10
"""The longest head of an answer."""

MOST_HEADS = 256
"""How many heads of answers are remembered."""

LARGEST = (1 << 31) - 1
"""The largest window and the last stream; also more than the largest message."""

MOST_PIECES = 256
"""About how many pieces wait to be sent; those of larger requests follow."""

_FIRST_WINDOW, _FIRST_FRAME, _LAST_FRAME = 65_535, 16_384, (1 << 24) - 1
_SIZES = {RST_STREAM: 4, PING: 8, WINDOW_UPDATE: 4}
_OF_CONNECTION, _OF_STREAM = (SETTINGS, PING, GOAWAY), (DATA, HEADERS, RST_STREAM)
_RANGES = {_WINDOW: (0, LARGEST), _FRAME_BYTES: (_FIRST_FRAME, _LAST_FRAME)}
_HEAD = struct.Struct(">IBI")  # length and type, flags, stream
_NUMBER = struct.Struct(">I")
_SETTING = struct.Struct(">HI")


class Http2Error(AnswerError):
    """What came is not HTTP/2, or breaks its rules."""


class ResetError(Http2Error):
    """The server ended a call without an answer."""

    def __init__(self, code: int) -> None:
        super().__init__(f"the server ended the call with code {code} of HTTP/2")
        self.code = code


class Call:
    """One request, and what has come of its answer.

    `is_over` is set when the answer has ended, or when `error` says why none comes. `is_unknown` is whether the server
    has certainly not run the request. `head` holds the fields of the answer, `body` its message.
    """

    __slots__ = (
        *("body", "ended", "error", "head", "is_over", "is_unknown"),
        *("left", "opening", "pieces", "stream", "window"),
    )

    def __init__(self, opening: bytes, pieces: Sequence[Piece], ended: Callable[["Call"], None]) -> None:
        self.opening, self.pieces, self.ended = opening, list(pieces), ended
        self.left = sum(map(len, pieces))
        self.stream = self.window = 0
        self.head: dict[str, str] = {}
        self.body = Body()
        self.is_over = self.is_unknown = False
        self.error: Exception | None = None


def frame(kind: int, flags: int, stream: int, content: bytes = b"") -> bytes:
    """One frame."""
    return _HEAD.pack(len(content) << 8 | kind, flags, stream) + content


def field(name: str, value: str) -> bytes:
    """One field of a request's head, as its own text that the server does not keep."""
    return b"\0" + _text(name) + _text(value)


def _text(text: str) -> bytes:
    content, size = text.encode("latin-1"), bytearray()
    rest = len(content)
    if rest >= 127:  # an integer with a prefix of 7 bits
        size.append(127)
        rest -= 127
        while rest > 127:
            size.append(rest & 127 | 128)
            rest >>= 7
    size.append(rest)
    return bytes(size) + content


def _readable(text: str | bytes) -> str:
    """A text of a head; one with other bytes than UTF-8 must not end the calls of others."""
    return text if isinstance(text, str) else text.decode(errors="replace")


class Http2:
    """The state of one connection: `out` is what has to be sent, `room` where to receive to.

    It `is_ready` once the server has shown that it speaks HTTP/2, and `takes` calls until the server ends that.
    """

    def __init__(self) -> None:
        announced = ((_PUSH, 0), (_WINDOW, LARGEST), (_FRAME_BYTES, FRAME_BYTES))
        settings = b"".join(_SETTING.pack(*setting) for setting in announced)
        opening = PREFACE + frame(SETTINGS, 0, 0, settings)
        self.out: list[Piece] = [opening + frame(WINDOW_UPDATE, 0, 0, _NUMBER.pack(LARGEST - _FIRST_WINDOW))]
        self.calls: dict[int, Call] = {}
        self.is_ready, self.takes, self.pongs = False, True, 0
        self._waiting: list[Call] = []
        self._buffer = bytearray(FRAME_BYTES + 2 * HEAD_BYTES)
        self._view, self._have = memoryview(self._buffer), 0
        self._stream, self._most_streams = 1, LARGEST
        self._window = self._first_window = _FIRST_WINDOW
        self._frame, self._taken = _FIRST_FRAME, 0
        self._decoder, self._known = Decoder(HEAD_BYTES), dict[bytes, dict[str, str]]()
        self._block, self._block_flags, self._block_stream = b"", 0, 0
        self._inside: Call | None = None  # the one in the middle of whose message the bytes are
        self._inside_flags = self._missing = 0

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
        head = _HEAD.pack(len(opening) << 8 | HEADERS, END_HEADERS, stream) + opening
        self.out.append(head + _HEAD.pack(size << 8 | DATA, END_STREAM, stream))
        self.out += call.pieces
        call.pieces, call.left = [], 0

    def reset(self, call: Call) -> None:
        """Cancel a call on the server; its answer is not read."""
        self.keep(call)
        self._forget(call)
        if self.calls.pop(call.stream, None):
            self.out.append(frame(RST_STREAM, 0, call.stream, _NUMBER.pack(CANCEL)))

    def keep(self, call: Call) -> None:
        """Copy what is not sent yet, since the caller leaves and may change its arrays."""
        self.out[:] = map(bytes, self.out)
        call.pieces = [*map(bytes, call.pieces)]

    def all(self) -> list[Call]:
        """The calls that have not ended."""
        return [*self.calls.values(), *(call for call in self._waiting if not call.stream)]

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
        self.out.append(_HEAD.pack(size << 8 | DATA, 0 if call.left else END_STREAM, call.stream))
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

    def room(self) -> memoryview:
        """Where the next bytes go; never empty."""
        if self._inside:
            return self._inside.body.room(self._missing)
        return self._view[self._have :]

    def received(self, count: int) -> None:
        """Take `count` bytes that were written to the beginning of `room`; raises `Http2Error`."""
        if self._inside:
            self._more(self._inside, count)
            return
        end, begin, buffer = self._have + count, 0, self._buffer
        while end - begin >= FRAME_HEAD:
            mixed, flags, stream = _HEAD.unpack_from(buffer, begin)
            stream &= LARGEST  # the first bit is to be ignored
            kind, begins, after = mixed & 255, begin + FRAME_HEAD, begin + FRAME_HEAD + (mixed >> 8)
            if not self.is_ready and (kind != SETTINGS or stream):
                raise Http2Error(f"not an answer of HTTP/2: {bytes(buffer[: min(end, 40)])!r}")
            if mixed >> 8 > FRAME_BYTES:
                raise Http2Error(f"a frame of {mixed >> 8} bytes, and {FRAME_BYTES} were announced")
            if after > end:
                if kind == DATA and self._enters(flags, stream, begins, end, after):
                    begin = end
                break
            if kind == DATA and not flags and not self._block_flags:
                self._taken += after - begins
                if call := self.calls.get(stream):
                    call.body.add(self._view[begins:after])
            elif not (kind == HEADERS and self._knew(flags, stream, begins, after)):
                try:
                    self._frame_came(kind, flags, stream, begins, after)
                except (struct.error, HPACKError, IndexError, UnicodeDecodeError) as error:
                    raise Http2Error(f"not an answer of HTTP/2: {error}") from error
            begin = after
        if self._taken > LARGEST >> 1:
            self.out.append(frame(WINDOW_UPDATE, 0, 0, _NUMBER.pack(self._taken)))
            self._taken = 0
        self._have = end - begin
        if begin and self._have:
            buffer[: self._have] = buffer[begin:end]

    def _enters(self, flags: int, stream: int, begin: int, end: int, after: int) -> bool:
        """Take the begin of a frame of a large message, whose end is received where it stays; False for others."""
        call = self.calls.get(stream)
        if not call or flags & PADDED or self._block_flags or not call.body.begins_large(self._view[begin:end]):
            return False
        call.body.add(self._view[begin:end])
        self._taken += after - begin
        self._inside, self._inside_flags, self._missing = call, flags, after - end
        call.body.room(self._missing)  # raises if there are too many
        return True

    def _more(self, call: Call, count: int) -> None:
        """Take bytes of the message of a call."""
        call.body.came(count)
        self._missing -= count
        if not self._missing:
            self._inside = None
            if self._inside_flags & END_STREAM and call.stream in self.calls:
                self._answered(call)

    def ended(self, error: Exception | None = None) -> None:
        """Take the end of the connection, which ends all calls with `error`; raises it if the opening is awaited."""
        self.takes = False
        error = error or ConnectionResetError("the server closed the connection")
        if not self.is_ready:
            raise error
        for call in self._waiting:
            call.is_unknown = True  # the server has not all of it
        calls = self.all()
        self.calls.clear()
        self._waiting.clear()
        for call in calls:
            self._end(call, error)

    def _frame_came(self, kind: int, flags: int, stream: int, begin: int, end: int) -> None:
        self._check(kind, stream, end - begin)
        if kind == DATA:
            self._data(flags, stream, begin, end)
        elif kind in (HEADERS, CONTINUATION):
            self._head(kind, flags, stream, begin, end)
        elif kind == WINDOW_UPDATE:
            self._widen(stream, _NUMBER.unpack_from(self._buffer, begin)[0] & LARGEST)
        elif kind == SETTINGS and not flags & ACK:
            self._set(begin, end)
        elif kind == PING and flags & ACK:
            self.pongs += 1
        elif kind == PING:
            self.out.append(frame(PING, ACK, 0, bytes(self._view[begin:end])))
        elif kind == RST_STREAM:
            self._was_reset(stream, _NUMBER.unpack_from(self._buffer, begin)[0])
        elif kind == GOAWAY:
            self._leave(_NUMBER.unpack_from(self._buffer, begin)[0] & LARGEST)

    def _check(self, kind: int, stream: int, size: int) -> None:
        """Raise `Http2Error` for a frame that may not come now, not on this stream, or not with this size."""
        if (stream if kind == CONTINUATION else 0) != self._block_stream or kind == PUSH_PROMISE:
            raise Http2Error(f"a frame of kind {kind} where none may be")
        if (kind in _OF_CONNECTION and stream) or (kind in _OF_STREAM and not stream):
            raise Http2Error(f"a frame of kind {kind} on stream {stream}")
        if (
            size != _SIZES.get(kind, size)
            or (kind == SETTINGS and size % _SETTING.size)
            or (kind == GOAWAY and size < 8)
        ):
            raise Http2Error(f"a frame of kind {kind} with {size} bytes")

    def _content(self, flags: int, begin: int, end: int) -> tuple[int, int]:
        """Where a frame's content is, without padding and priority."""
        padding = self._buffer[begin] if flags & PADDED else 0
        begin += (1 if flags & PADDED else 0) + (5 if flags & PRIORITY else 0)
        if begin > end - padding:
            raise Http2Error("a frame of more padding than bytes")
        return begin, end - padding

    def _data(self, flags: int, stream: int, begin: int, end: int) -> None:
        self._taken += end - begin
        call = self.calls.get(stream)
        begin, end = self._content(flags & PADDED, begin, end)
        if call and end > begin:
            call.body.add(self._view[begin:end])
        if call and flags & END_STREAM:
            self._answered(call)

    def _head(self, kind: int, flags: int, stream: int, begin: int, end: int) -> None:
        if kind == HEADERS:
            begin, end = self._content(flags, begin, end)
            self._block_flags, self._block_stream = flags & END_STREAM | 2, stream
        self._block += bytes(self._view[begin:end])
        if len(self._block) > HEAD_BYTES:
            raise Http2Error(f"the head of an answer has more than {HEAD_BYTES} bytes")
        if not flags & END_HEADERS:
            return
        block, is_end = self._block, self._block_flags & END_STREAM
        self._block, self._block_flags, self._block_stream = b"", 0, 0
        fields = self._fields(block)
        if call := self.calls.get(stream):
            call.head = {**call.head, **fields}
            if is_end:
                self._answered(call)

    def _knew(self, flags: int, stream: int, begin: int, end: int) -> bool:
        """Take a whole head that came before, which most are; returns whether it is one."""
        if self._block_flags or flags & ~END_STREAM != END_HEADERS:
            return False
        fields = self._known.get(bytes(self._view[begin:end]))
        if fields is None:
            return False
        if call := self.calls.get(stream):
            call.head = {**call.head, **fields} if call.head else fields
            if flags & END_STREAM:
                self._answered(call)
        return True

    def _fields(self, block: bytes) -> dict[str, str]:
        """The fields of a head; one of references alone leaves the table as it is, so it means the same next time."""
        if (fields := self._known.get(block)) is not None:
            return fields
        fields = {_readable(name): _readable(value) for name, value in self._decoder.decode(block, raw=True)}
        if not block or min(block) < 128 or len(self._known) >= MOST_HEADS:
            self._known.clear()
        else:
            self._known[block] = fields
        return fields

    def _widen(self, stream: int, size: int) -> None:
        if not stream:
            self._window += size
        elif call := self.calls.get(stream):
            call.window += size
        if self._waiting:
            self.go_on()

    def _set(self, begin: int, end: int) -> None:
        for place in range(begin, end, _SETTING.size):
            name, value = _SETTING.unpack_from(self._buffer, place)
            least, most = _RANGES.get(name, (0, value))
            if not least <= value <= most:
                raise Http2Error(f"a value of {value} for setting {name}")
            if name == _MOST_STREAMS:
                self._most_streams = value
            elif name == _FRAME_BYTES:
                self._frame = value
            elif name == _WINDOW:
                for call in self.calls.values():
                    call.window += value - self._first_window
                self._first_window = value
        self.out.append(frame(SETTINGS, ACK, 0))
        self.is_ready = True
        self.go_on()

    def _was_reset(self, stream: int, code: int) -> None:
        if call := self.calls.pop(stream, None):
            self._forget(call)
            call.is_unknown = code == REFUSED
            self._end(call, ResetError(code))
            self.go_on()

    def _leave(self, last: int) -> None:
        """Begin no more calls, and end those that the server will not look at."""
        self.takes = False
        for call in [call for stream, call in self.calls.items() if stream > last]:
            del self.calls[call.stream]
            self._forget(call)
            self._end_unseen(call)
        self._end_unopened()

    def _end_unopened(self) -> None:
        """End the calls of which nothing was sent."""
        for call in [call for call in self._waiting if not call.stream]:
            self._waiting.remove(call)
            self._end_unseen(call)

    def _end_unseen(self, call: Call) -> None:
        """End a call that the server has certainly not run."""
        call.is_unknown = True
        self._end(call, ConnectionResetError("the server closes the connection"))

    def _answered(self, call: Call) -> None:
        del self.calls[call.stream]
        if call.left:  # it answered before it had all of the request
            self._forget(call)
            self.out.append(frame(RST_STREAM, 0, call.stream, _NUMBER.pack(NO_ERROR)))
        self._end(call, None)
        if self._waiting:
            self.go_on()

    def _end(self, call: Call, error: Exception | None) -> None:
        call.is_over, call.error = True, error
        call.pieces = []
        call.ended(call)
