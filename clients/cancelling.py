"""Inference calls that are never cancelled on the wire, for servers that crash when they are.

Triton's gRPC front end uses a request's state after it has freed it if the cancellation arrives together with the
answer (server issues 7368 and 8034). Three fixes followed each other: #7840 in 2.53, #8078 in 2.57, and #8220 in 2.59
for backends that send the answer and its end separately. A deadline of the client is a cancellation too: 2.51 crashed
after 1,400 to 4,200 calls of either kind. Closing the connection cancels all calls in flight on it.

Before 2.59 the client therefore keeps the time itself. A caller that is cancelled or out of time leaves at once, and
its answer is dropped when it comes. Only inference calls need this: the server keeps no such state for other calls.
"""

import asyncio
import re
import threading
from typing import Any

import grpc
import grpc.aio

from .in_flight import InFlight
from .steps import deadline_after, seconds_until

SURVIVES = (2, 59)
"""The first version that survives the cancelling of inference calls: release 25.06."""

CLOSE_S = 5.0
"""How long `close` waits for answers that nobody waits for, so that the end of the process does not cancel them."""

MAX_DROPPED = 1024
"""How many calls of one `BlockingCalls` may go on after their callers have left; further calls wait for them."""


def survives(version: str) -> bool:
    """Whether a server of this version survives cancellations; False if the version cannot be read."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return match is not None and (int(match[1]), int(match[2])) >= SURVIVES


class BlockingCalls:
    """The calls in flight on one channel whose callers wait in threads.

    A call without a deadline is made in the caller's thread; `_waiting` counts these. A call with a deadline is a
    future in `_with_deadline`, and also in `_dropped` once its caller has left.
    """

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel, self._closed = channel, False
        self._changed = threading.Condition()
        self._waiting, self._with_deadline, self._dropped = 0, set[Any](), set[Any]()

    def call(self, method: Any, request: bytes, left_s: float | None, metadata: Any) -> Any:
        """The answer; raises `TimeoutError` after `left_s`, `ValueError` if closed, or `grpc.RpcError`."""
        deadline = deadline_after(left_s)
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._dropped) < MAX_DROPPED, left_s)
            if self._closed:
                raise ValueError("the connection was closed")
            if len(self._dropped) >= MAX_DROPPED or left_s == 0:
                raise TimeoutError
            if deadline is None:
                self._waiting += 1
            else:
                future = method.future(request, None, metadata)
                self._with_deadline.add(future)
        if deadline is None:
            try:
                return method(request, None, metadata)
            finally:
                self._ended()
        future.add_done_callback(self._answered)
        try:
            return future.result(seconds_until(deadline))
        except BaseException as error:
            # Out of time, or Ctrl-C.
            with self._changed:
                if future in self._with_deadline:
                    self._dropped.add(future)
            if isinstance(error, grpc.FutureTimeoutError):
                raise TimeoutError from error
            raise

    def _ended(self) -> None:
        with self._changed:
            self._waiting -= 1
            over = self._is_over()
        if over:
            self._channel.close()

    def _answered(self, future: Any) -> None:
        with self._changed:
            self._with_deadline.discard(future)
            self._dropped.discard(future)
            self._changed.notify_all()
            over = self._is_over()
        if over:
            # This is the channel's own thread, which cannot wait for its own end.
            threading.Thread(target=self._channel.close).start()

    def _is_over(self) -> bool:
        return self._closed and not self._waiting and not self._with_deadline

    def close(self) -> None:
        """Close the channel when the last call is answered; waits up to `CLOSE_S` for those whose callers have left."""
        with self._changed:
            self._changed.wait_for(lambda: not self._dropped, CLOSE_S)
            self._closed = True
            self._changed.notify_all()
            over = self._is_over()
        if over:
            self._channel.close()


class Calls:
    """The calls in flight on one channel whose callers are tasks."""

    def __init__(self, channel: grpc.aio.Channel, in_flight: InFlight | None) -> None:
        self._channel, self._in_flight = channel, in_flight
        self._waiting: dict[Any, asyncio.Future[None]] = {}
        self._idle = asyncio.Event()
        self._closed = False
        self._closing: asyncio.Task[None] | None = None

    async def call(self, method: Any, request: bytes, left_s: float | None, metadata: Any) -> Any:
        """The answer; raises `TimeoutError` after `left_s`, `CancelledError` if closed, or `grpc.RpcError`."""
        if left_s == 0:
            raise TimeoutError
        if self._closed:
            raise asyncio.CancelledError
        call = method(request, metadata=metadata)
        answered = self._waiting[call] = asyncio.get_running_loop().create_future()
        call.add_done_callback(self._answered)
        # asyncio.run cancels all registered tasks at its end; the call must not be among them.
        if (task := getattr(call, "_invocation_task", None)) is not None:
            asyncio.tasks._unregister_task(task)
        try:
            async with asyncio.timeout(left_s):
                await answered
        except (asyncio.CancelledError, TimeoutError):
            if (in_flight := self._in_flight) and call in self._waiting:
                in_flight.stay()
                call.add_done_callback(lambda _: in_flight.leave())
            raise
        return await call

    def _answered(self, call: Any) -> None:
        answered = self._waiting.pop(call)
        if not answered.done():
            answered.set_result(None)
        if self._closed and not self._waiting:
            self._idle.set()
            self._closing = asyncio.get_running_loop().create_task(self._channel.close())

    async def close(self) -> None:
        """End all callers with `CancelledError`; close the channel when the last call is answered."""
        self._closed = True
        for answered in self._waiting.values():
            answered.cancel()
        if not self._waiting:
            await self._channel.close()
            return
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._idle.wait()
        except TimeoutError:
            return
        if self._closing:
            await self._closing
