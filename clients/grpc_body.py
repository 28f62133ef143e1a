"""The message of one answer over gRPC, in the pieces in which it comes; a large one is received where it stays."""

import struct

import numpy as np

from .line import AnswerError

PREFIX = struct.Struct(">BI")
"""What is before a message: whether it is compressed, and its bytes."""

LARGE_BYTES = 64 << 10
"""From this size on a message has its memory before it has come."""

ALIGNMENT = 16
"""A large message ends at a multiple of this, as numpy's own arrays begin."""


class Body:
    """The bytes of one answer, its prefix included."""

    __slots__ = ("_filled", "_pieces", "_whole")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._whole: memoryview | None = None
        self._filled = 0

    def add(self, piece: memoryview) -> None:
        """Take a copy of a piece; raises `AnswerError` for more bytes than were announced."""
        if not self.begins_large(piece):
            self._pieces.append(bytes(piece))
            return
        self.room(len(piece))[:] = piece
        self.came(len(piece))

    def begins_large(self, piece: memoryview) -> bool:
        """Whether the message has memory of its own; it gets some if `piece`, the first one, announces a large one."""
        if self._whole is None and not self._pieces and len(piece) >= PREFIX.size:
            size = PREFIX.size + PREFIX.unpack_from(piece)[1]
            if size >= LARGE_BYTES and size > len(piece):
                try:
                    # The last tensor ends where the message does, so both begin and end of it are aligned.
                    self._whole = np.empty(size + -size % ALIGNMENT, np.uint8).data[-size % ALIGNMENT :]
                except (MemoryError, ValueError) as error:
                    raise AnswerError(f"no memory for an answer of {size} bytes") from error
        return self._whole is not None

    def room(self, size: int) -> memoryview:
        """Where the next `size` bytes go; raises `AnswerError` if these are more than were announced."""
        assert self._whole is not None
        if self._filled + size > len(self._whole):
            raise AnswerError("an answer with more bytes than it announced")
        return self._whole[self._filled : self._filled + size]

    def came(self, count: int) -> None:
        """Take `count` bytes that were written to `room`."""
        self._filled += count

    def content(self) -> bytes | memoryview:
        """All that has come."""
        if self._whole is not None:
            return self._whole[: self._filled]
        return self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
