"""Streams of answers over gRPC, for asyncio: any number of them on one connection.

They have a connection of their own, on which the server may send only `messages.WINDOW` bytes of each stream ahead of
its caller.
"""

import asyncio
import operator
from collections.abc import AsyncGenerator
from typing import Any

from .async_connection import Connection
from .async_line import AsyncLine, Waited
from .line import Piece
from .messages import WINDOW, Messages
from .rest import left_s
from .steps import Step, run_async
from .stream_steps import AnswerStream


class Streamed(Waited):
    """A request with any number of answers, and the connection that it is on; `answer` is the next news of it."""

    __slots__ = ("line", "messages")

    def __init__(self, line: AsyncLine, opening: bytes, pieces: list[Piece]) -> None:
        super().__init__(opening, pieces, line.loop)
        self.line = line
        self.body = self.messages = Messages(self._came)

    async def news(self, deadline: float | None) -> None:
        """Wait for a message or for the end; raises `TimeoutError`."""
        left = left_s(deadline)
        if self.answer.cancelled():  # the model was closed between two answers
            raise asyncio.CancelledError
        if self.messages or self.is_over:
            return
        self.widen()
        if self.answer.done():
            self.answer = self.line.loop.create_future()
        async with asyncio.timeout(left):
            await self.answer

    def let_go(self) -> None:
        """End the caller, now or when it asks for the next answer, and take no more of the answers."""
        if self.answer.done():
            self.answer = self.line.loop.create_future()
        self.drop()
        super().let_go()

    def drop(self) -> None:
        """Take no more of the answers, but let the server send them."""
        self.messages.drop()
        self.widen()

    def widen(self) -> None:
        """Let the server send more, if the caller has taken what came."""
        if size := self.messages.grant():
            self.line.http2.grant(self, size)
            self.line.plan()

    def _came(self) -> None:
        self.widen()
        if self.messages and not self.answer.done():
            self.answer.set_result(None)


class Streams(Connection):
    """The streams of one client; they belong to the event loop that they are first used in."""

    window = WINDOW

    async def answers(self, step: Step, model: str) -> AsyncGenerator[Any, None]:
        """The ModelInferResponses to one request, as they come; raises a `ClientError`.

        Closing the generator cancels the request on the server if that survives it; otherwise the answers are dropped.
        """
        stream = AnswerStream(self, step, model)
        try:
            while (response := await run_async(stream.next(), operator.call)) is not None:
                yield response
        finally:
            stream.leave()

    async def ready(self, deadline: float | None, model: str) -> AsyncLine:
        """Wait for a connection that takes a call."""
        line = self._line
        if line is None or not line.http2.takes or self._closed:
            line = await self._connected(deadline, model)
        return line

    def begin(self, line: AsyncLine, step: Step, left: float | None, pieces: list[Piece]) -> Streamed:
        """The call on a connection, which is sent soon."""
        call = Streamed(line, self._opening(step, left), pieces)
        line.ask(call)
        return call

    def end(self, call: Streamed, step: Step) -> None:
        """Cancel the request of a caller that leaves, or drop its answers."""
        if not call.is_over:
            call.drop()
            self._leave(call.line, call, may_cancel=self._may_cancel(step))
