"""Streams of answers over gRPC, blocking; `async_streams.py` has those for asyncio.

They have connections of their own, on which the server may send only `messages.WINDOW` bytes ahead of the caller.
"""

import os
from collections.abc import Generator
from typing import Any

from . import cancelling, grpc_wire
from .channel import ATTEMPTS
from .connection import BlockingConnection
from .errors import timed_out
from .grpc_line import GrpcLine
from .http2_sending import Call
from .line import OutOfTimeError, Piece
from .messages import WINDOW, Messages
from .rest import deadline_of, left_s
from .steps import Step
from .stream_wire import Answers


class Streamed(Call):
    """A request with any number of answers, the connection that it is on, and the process that began it."""

    awaited = "has_news"

    __slots__ = ("line", "messages", "process")

    def __init__(self, line: GrpcLine, opening: bytes, pieces: list[Piece]) -> None:
        super().__init__(opening, pieces, _nothing)
        self.line, self.process = line, os.getpid()
        self.body = self.messages = Messages(self.widen)

    @property
    def has_news(self) -> bool:
        """Whether a message has come, or the end."""
        return self.is_over or bool(self.messages)

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
        deadline = deadline_of(step)
        try:
            call = self._begin(step, deadline, model)
            read = Answers(self.url, model)
            try:
                while (content := self._next(call, deadline)) is not None:
                    if (response := read.read(content)) is not None:
                        yield response
            finally:
                self._end(call, step)
        except TimeoutError as error:
            raise timed_out(step.timeout_s, self.url, model) from error
        read.end(call, call.messages)

    def _begin(self, step: Step, deadline: float | None, model: str) -> Streamed:
        """The call once something of its answer has come; it is made again if the server has certainly not run it."""
        pieces = grpc_wire.request(step)
        if self.dropped >= cancelling.MAX_DROPPED:
            self._wait_for_place(deadline)
        for attempt in range(ATTEMPTS):
            line = self._kept() or self._connect(deadline, model)
            call = Streamed(line, self._opening(step, left_s(deadline)), pieces)
            self._use(line)
            try:
                self._wait(call, deadline, again=False)
            except BaseException:
                self._end(call, step)
                raise
            if not self._may_repeat(call, attempt):
                break
            self._give_back(line)
        return call

    def _next(self, call: Streamed, deadline: float | None) -> bytes | None:
        """The next message, None after the last one; raises `TimeoutError`, and `ValueError` in a forked process."""
        if call.process != os.getpid():
            raise ValueError("the stream is that of another process")
        if not call.has_news:
            call.widen()
            self._wait(call, deadline, again=True)
        content = call.messages.take()
        left_s(deadline)
        return content

    def _wait(self, call: Streamed, deadline: float | None, *, again: bool) -> None:
        try:
            call.line.ask(call, deadline, again=again)
        except OutOfTimeError:
            raise
        except BaseException:  # Ctrl-C may come between bytes and their count
            call.line.http2.takes = False
            raise

    def _end(self, call: Streamed, step: Step) -> None:
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
