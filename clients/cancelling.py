"""Calls that are not cancelled on the wire, for servers that crash when they are.

Triton's gRPC front end uses a request's state after it has freed it when the cancellation arrives together with the
answer (server issues 7368 and 8034). Three fixes followed each other: #7840 in 2.53, #8078 in 2.57, and #8220 in 2.59
for backends that send the answer and the end of it separately. A client's deadline is a cancellation as well: 2.51
ended after 1,400 to 4,200 calls of either kind. Closing the connection cancels all that is in flight on it.

So before 2.59 the client keeps the time itself. A caller that is cancelled or out of time leaves at once, and its
answer is dropped when it comes. This is for inference calls only: the server keeps no such state for other calls.
"""

import asyncio
import re
import threading
from typing import Any

import grpc
import grpc.aio

from clients.in_flight import InFlight

SURVIVES = (2, 59)
"""The first version that survives the cancelling of inference calls: release 25.06."""

CLOSE_S = 5.0
"""How long `close` waits for the answers of calls in flight, so that the end of the process does not cancel them."""


def survives(version: str) -> bool:
    """Whether a server of this version may be sent cancellations; not when the version cannot be read."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return found is not None and (int(found[1]), int(found[2])) >= SURVIVES


class BlockingCalls:
    """The calls in flight on one channel whose callers wait in threads."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel, self._closed = channel, False
        self._changed = threading.Condition()
        self._waited, self._with_deadline, self._dropped = 0, set[Any](), set[Any]()

    def call(self, method: Any, request: bytes, left_s: float | None, metadata: Any) -> Any:
        """The answer; raises `TimeoutError` after `left_s`, `ValueError` when closed, or `grpc.RpcError`."""
        if left_s == 0:
            raise TimeoutError
        with self._changed:
            if self._closed:
                raise ValueError("the connection was closed")
            if left_s is None:
                self._waited += 1
            else:
                future = method.future(request, None, metadata)
                self._with_deadline.add(future)
        if left_s is None:
            try:
                return method(request, None, metadata)
            finally:
                self._ended()
        future.add_done_callback(self._answered)
        try:
            return future.result(left_s)
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
            self._waited -= 1
            last = self._last()
        if last:
            self._channel.close()

    def _answered(self, future: Any) -> None:
        with self._changed:
            self._with_deadline.discard(future)
            self._dropped.discard(future)
            self._changed.notify_all()
            last = self._last()
        if last:
            # This is the channel's own thread, which cannot wait for its own end.
            threading.Thread(target=self._channel.close).start()

    def _last(self) -> bool:
        return self._closed and not self._waited and not self._with_deadline

    def close(self) -> None:
        """Close the channel when the last call is answered; waits for those whose callers have left."""
        with self._changed:
            self._changed.wait_for(lambda: not self._dropped, CLOSE_S)
            self._closed = True
            last = self._last()
        if last:
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
        """The answer; raises `TimeoutError` after `left_s`, `CancelledError` when closed, or `grpc.RpcError`."""
        if left_s == 0:
            raise TimeoutError
        if self._closed:
            raise asyncio.CancelledError
        call = method(request, metadata=metadata)
        answered = self._waiting[call] = asyncio.get_running_loop().create_future()
        call.add_done_callback(self._answered)
        # The end of the loop cancels every task that it knows, and so the call.
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
