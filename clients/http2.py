"""The client's side of one connection of HTTP/2 that carries calls of gRPC, apart from how bytes are sent and received.

A server of gRPC needs less of HTTP/2 than a browser does: the head of a request is the same bytes for all calls, and an
answer is a few frames. Heads of answers are decoded once, since a server repeats them as references to its table.
"""

import struct

from hpack import HPACKError

from .http2_frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES,
    FRAME_HEAD,
    GOAWAY,
    HEAD,
    HEADERS,
    LARGEST,
    NO_ERROR,
    NUMBER,
    PADDED,
    PING,
    REFUSED,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Http2Error,
    ResetError,
    check,
    content,
    frame,
    settings_in,
)
from .http2_heads import HEAD_BYTES, Heads
from .http2_sending import Call, Sending


class Http2(Sending):
    """The state of one connection: `out` is what has to be sent, `room` where to receive to.

    It `is_ready` once the server has shown that it speaks HTTP/2, and `takes` calls until the server ends that.
    """

    def __init__(self, window: int = LARGEST) -> None:
        super().__init__(window)
        self.is_ready, self.pongs = False, 0
        self._buffer = bytearray(FRAME_BYTES + 2 * HEAD_BYTES)
        self._view, self._have = memoryview(self._buffer), 0
        self._taken, self._heads = 0, Heads()
        self._known = self._heads.known
        self._block, self._block_flags, self._block_stream = b"", 0, 0
        self._inside: Call | None = None  # the one in the middle of whose message the bytes are
        self._inside_flags = self._missing = 0

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
            mixed, flags, stream = HEAD.unpack_from(buffer, begin)
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
            self.out.append(frame(WINDOW_UPDATE, 0, 0, NUMBER.pack(self._taken)))
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
        check(kind, stream, end - begin, self._block_stream)
        if kind == DATA:
            self._data(flags, stream, begin, end)
        elif kind in (HEADERS, CONTINUATION):
            self._head(kind, flags, stream, begin, end)
        elif kind == WINDOW_UPDATE:
            self._widen(stream, NUMBER.unpack_from(self._buffer, begin)[0] & LARGEST)
        elif kind == SETTINGS and not flags & ACK:
            self._set(begin, end)
        elif kind == PING and flags & ACK:
            self.pongs += 1
        elif kind == PING:
            self.out.append(frame(PING, ACK, 0, bytes(self._view[begin:end])))
        elif kind == RST_STREAM:
            self._was_reset(stream, NUMBER.unpack_from(self._buffer, begin)[0])
        elif kind == GOAWAY:
            self._leave(NUMBER.unpack_from(self._buffer, begin)[0] & LARGEST)

    def _data(self, flags: int, stream: int, begin: int, end: int) -> None:
        self._taken += end - begin
        call, size = self.calls.get(stream), end - begin
        begin, end = content(self._buffer, flags & PADDED, begin, end)
        if call and end > begin:
            call.body.add(self._view[begin:end])
        if call and (padding := size - (end - begin)):
            self.grant(call, padding)
        if call and flags & END_STREAM:
            self._answered(call)

    def _head(self, kind: int, flags: int, stream: int, begin: int, end: int) -> None:
        if kind == HEADERS:
            begin, end = content(self._buffer, flags, begin, end)
            self._block_flags, self._block_stream = flags & END_STREAM | 2, stream
        self._block += bytes(self._view[begin:end])
        if len(self._block) > HEAD_BYTES:
            raise Http2Error(f"the head of an answer has more than {HEAD_BYTES} bytes")
        if not flags & END_HEADERS:
            return
        block, is_end = self._block, self._block_flags & END_STREAM
        self._block, self._block_flags, self._block_stream = b"", 0, 0
        fields = self._heads.read(block)
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

    def _set(self, begin: int, end: int) -> None:
        for name, value in settings_in(self._buffer, begin, end):
            self._limit(name, value)
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

    def _answered(self, call: Call) -> None:
        del self.calls[call.stream]
        if call.left:  # it answered before it had all of the request
            self._forget(call)
            self.out.append(frame(RST_STREAM, 0, call.stream, NUMBER.pack(NO_ERROR)))
        self._end(call, None)
        if self._waiting:
            self.go_on()
