"""The frames of HTTP/2: their kinds, flags and bytes, and the errors of what is none."""

import struct
from collections.abc import Iterator

from .line import AnswerError

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_HEAD = 9
DATA, HEADERS, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, *range(3, 10)
END_STREAM = ACK = 1
END_HEADERS, PADDED, PRIORITY = 4, 8, 32
NO_ERROR, REFUSED, CANCEL = 0, 7, 8
SET_STREAMS, SET_WINDOW, SET_FRAME = 3, 4, 5  # settings
SET_PUSH = 2

FRAME_BYTES = 128 << 10
"""The largest frame that the server may send."""

LARGEST = (1 << 31) - 1
"""The largest window and the last stream; also more than the largest message."""

FIRST_WINDOW, FIRST_FRAME, LAST_FRAME = 65_535, 16_384, (1 << 24) - 1
_SIZES = {RST_STREAM: 4, PING: 8, WINDOW_UPDATE: 4}
_OF_CONNECTION, _OF_STREAM = (SETTINGS, PING, GOAWAY), (DATA, HEADERS, RST_STREAM)
_RANGES = {SET_WINDOW: (0, LARGEST), SET_FRAME: (FIRST_FRAME, LAST_FRAME)}
HEAD = struct.Struct(">IBI")  # length and type, flags, stream
NUMBER = struct.Struct(">I")
SETTING = struct.Struct(">HI")


class Http2Error(AnswerError):
    """What came is not HTTP/2, or breaks its rules."""


class ResetError(Http2Error):
    """The server ended a call without an answer."""

    def __init__(self, code: int) -> None:
        super().__init__(f"the server ended the call with code {code} of HTTP/2")
        self.code = code


def frame(kind: int, flags: int, stream: int, content: bytes = b"") -> bytes:
    """One frame."""
    return HEAD.pack(len(content) << 8 | kind, flags, stream) + content


def check(kind: int, stream: int, size: int, block_stream: int) -> None:
    """Raise `Http2Error` for a frame that may not come now, not on this stream, or not with this size.

    `block_stream` is the stream of a head that has to go on, 0 if there is none.
    """
    if (stream if kind == CONTINUATION else 0) != block_stream or kind == PUSH_PROMISE:
        raise Http2Error(f"a frame of kind {kind} where none may be")
    if (kind in _OF_CONNECTION and stream) or (kind in _OF_STREAM and not stream):
        raise Http2Error(f"a frame of kind {kind} on stream {stream}")
    if size != _SIZES.get(kind, size) or (kind == SETTINGS and size % SETTING.size) or (kind == GOAWAY and size < 8):
        raise Http2Error(f"a frame of kind {kind} with {size} bytes")


def content(buffer: bytearray, flags: int, begin: int, end: int) -> tuple[int, int]:
    """Where a frame's content is, without padding and priority; raises `Http2Error`."""
    padding = buffer[begin] if flags & PADDED else 0
    begin += (1 if flags & PADDED else 0) + (5 if flags & PRIORITY else 0)
    if begin > end - padding:
        raise Http2Error("a frame of more padding than bytes")
    return begin, end - padding


def settings_in(buffer: bytearray, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """The server's settings in a frame, as names and values; raises `Http2Error` for a value that none may have."""
    for place in range(begin, end, SETTING.size):
        name, value = SETTING.unpack_from(buffer, place)
        least, most = _RANGES.get(name, (0, value))
        if not least <= value <= most:
            raise Http2Error(f"a value of {value} for setting {name}")
        yield name, value
