"""Streams of answers over gRPC, blocking; `async_streams.py` has those for asyncio.

They have connections of their own, on which the server may send only `messages.WINDOW` bytes ahead of the caller.
"""

import operator
import os
from collections.abc import Generator
from typing import Any

from . import cancelling
from .connection import BlockingConnection
from .grpc_line import GrpcLine
from .http2_sending import Call
from .line import OutOfTimeError, Piece
from .messages import WINDOW, Messages
from .rest import left_s
from .steps import Step, run
from .stream_steps import AnswerStream


class Streamed(Call):
    """A request with any number of answers, the connection that it is on, and the process that began it."""

    awaited = "has_news"

    __slots__ = ("is_asked", "line", "messages", "process")

    def __init__(self, line: GrpcLine, opening: bytes, pieces: list[Piece]) -> None:
        super().__init__(opening, pieces, _nothing)
        self.line, self.process, self.is_asked = line, os.getpid(), False
        self.body = self.messages = Messages(self.widen)

    @property
    def has_news(self) -> bool:
        """Whether a message has come, or the end."""
        return self.is_over or bool(self.messages)

    def news(self, deadline: float | None) -> None:
        """Wait for a message or for the end; raises `TimeoutError`, and `ValueError` in a forked process."""
        if self.process != os.getpid():
            raise ValueError("the stream is that of another process")
        if not self.has_news:
            self.widen()
            self._wait(deadline)
        left_s(deadline)

    def _wait(self, deadline: float | None) -> None:
        again, self.is_asked = self.is_asked, True
        try:
            self.line.ask(self, deadline, again=again)
        except OutOfTimeError:
            raise
        except BaseException:  # Ctrl-C may come between bytes and their count
            self.line.http2.takes = False
            raise

    def widen(self) -> None:
        """Let the server send more, if the caller has taken what came."""
        if size := self.messages.grant():
            self.line.http2.grant(self, size)


class BlockingStreams(BlockingConnection):
    """The streams of one client; several threads may have some at the same time."""

    window = WINDOW

    def answers(self, step: Step, model: str) -> Generator[Any, None, None]:
        """The ModelInferResponses to one request, as they come; raises a `ClientError`.

        Closing the generator cancels the request on the server if that survives it; otherwise the answers are dropped.
        """
        stream = AnswerStream(self, step, model)
        try:
            while (response := run(stream.next(), operator.call)) is not None:
                yield response
        finally:
            stream.leave()

    def ready(self, deadline: float | None, model: str) -> GrpcLine:
        """Wait for a connection that takes a call."""
        if self.dropped >= cancelling.MAX_DROPPED:
            self._wait_for_place(deadline)
        return self._kept() or self._connect(deadline, model)

    def begin(self, line: GrpcLine, step: Step, left: float | None, pieces: list[Piece]) -> Streamed:
        """The call on a connection; it is sent when the caller waits for its news."""
        call = Streamed(line, self._opening(step, left), pieces)
        self._use(line)
        return call

    def end(self, call: Streamed, step: Step) -> None:
        """Give the connection back after the last answer; else cancel the request, or drop its answers.

        A forked process leaves the connection to the one that began the stream.
        """
        line = call.line
        if call.process != os.getpid():
            return
        if call.is_over:
            self._give_back(line)
            return
        call.messages.drop()
        call.widen()
        # After Ctrl-C nothing more is sent, so a request of which a part is missing never gets an answer.
        never_whole = not line.http2.takes and bool(line.unsent or call.left)
        self._leave(line, call, may_cancel=self._may_cancel(step) or not call.stream or never_whole)


def _nothing(_: Call) -> None:
    """The thread that waits sees by itself that the call is over."""
