"""Streams of answers over gRPC, for asyncio: any number of them on one connection.

They have a connection of their own, on which the server may send only `messages.WINDOW` bytes of each stream ahead of
its caller.
"""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from . import grpc_wire
from .async_connection import Connection
from .async_line import AsyncLine, Waited
from .channel import ATTEMPTS
from .errors import timed_out
from .line import Piece
from .messages import WINDOW, Messages
from .rest import deadline_of, left_s
from .steps import Step
from .stream_wire import Answers


class Streamed(Waited):
    """A request with any number of answers, and the connection that it is on; `answer` is the next news of it."""

    __slots__ = ("line", "messages")

    def __init__(self, line: AsyncLine, opening: bytes, pieces: list[Piece]) -> None:
        super().__init__(opening, pieces, line.loop)
        self.line = line
        self.body = self.messages = Messages(self._came)

    async def news(self, left: float | None) -> None:
        """Wait for a message or for the end; raises `TimeoutError` after `left` seconds."""
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
        deadline = deadline_of(step)
        try:
            call = await self._begin(step, deadline, model)
            read = Answers(self.url, model)
            try:
                while (content := await self._next(call, deadline)) is not None:
                    if (response := read.read(content)) is not None:
                        yield response
            finally:
                self._end(call, step)
        except TimeoutError as error:
            raise timed_out(step.timeout_s, self.url, model) from error
        read.end(call, call.messages)

    async def _begin(self, step: Step, deadline: float | None, model: str) -> Streamed:
        """The call once something of its answer has come; it is made again if the server has certainly not run it."""
        pieces = grpc_wire.request(step)
        for attempt in range(ATTEMPTS):
            line = self._line
            if line is None or not line.http2.takes or self._closed:
                line = await self._connected(deadline, model)
            left = left_s(deadline)
            call = Streamed(line, self._opening(step, left), pieces)
            line.ask(call)
            try:
                await call.news(left)
            except BaseException:
                self._end(call, step)
                raise
            if not self._may_repeat(call, attempt):
                break
        return call

    async def _next(self, call: Streamed, deadline: float | None) -> bytes | None:
        """The next message, None after the last one; raises `TimeoutError`."""
        await call.news(left_s(deadline))
        return call.messages.take()

    def _end(self, call: Streamed, step: Step) -> None:
        """Cancel the request of a caller that leaves, or drop its answers."""
        if not call.is_over:
            call.drop()
            self._leave(call.line, call, may_cancel=self._may_cancel(step))
