"""The messages of a stream of answers over gRPC, and how many bytes of them the server may send ahead."""

from collections import deque
from collections.abc import Callable

from .grpc_body import PREFIX, Body
from .line import AnswerError

WINDOW = 1 << 20
"""How many bytes of a stream may have come that its caller has not taken; one larger message may come whole."""


class Messages(Body):
    """Splits the bytes of one answer into messages; `came` is called when some have come.

    `due` are the bytes that the server was not granted anew. None are as long as a whole message waits for the caller,
    so a server that is faster than its caller stops at the window.
    """

    __slots__ = ("_came", "_drops", "_held", "_waiting", "due")

    def __init__(self, came: Callable[[], None]) -> None:
        super().__init__()
        self._came, self._drops, self.due = came, False, 0
        self._held, self._waiting = bytearray(), deque[bytes]()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, piece: memoryview) -> None:
        """Take a copy of a piece; raises `AnswerError` for a message that is compressed."""
        self.due += len(piece)
        if not self._drops:
            self._held += piece
            self._split()
        self._came()

    def begins_large(self, piece: memoryview) -> bool:
        """False: all pieces go through `add`."""
        return False

    def _split(self) -> None:
        while len(self._held) >= PREFIX.size:
            compressed, size = PREFIX.unpack_from(self._held)
            if compressed:
                raise AnswerError("a message that is compressed")
            end = PREFIX.size + size
            if len(self._held) < end:
                return
            self._waiting.append(bytes(self._held[PREFIX.size : end]))
            del self._held[:end]

    def take(self) -> bytes | None:
        """The next message; None if there is none yet."""
        return self._waiting.popleft() if self._waiting else None

    def is_cut(self) -> bool:
        """Whether the begin of a message has come without its end."""
        return bool(self._held)

    def drop(self) -> None:
        """Forget what has come and what comes, since the caller has left."""
        self._drops = True
        self._held.clear()
        self._waiting.clear()

    def grant(self) -> int:
        """How many bytes the server may send more, 0 if it has enough or the caller has not taken what came."""
        if self._waiting or self.due < WINDOW // 2:
            return 0
        granted, self.due = self.due, 0
        return granted
