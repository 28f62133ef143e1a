"""gRPC for asyncio, by grpc.aio. `_grpc.py` says why calls are held until they are answered."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio

from ._address import Address
from ._grpc import CLOSE_S, PAUSE_S, RECONNECT_S, GrpcTarget, StreamAnswers, _left_open
from ._grpc_format import whole
from ._in_flight import InFlight
from ._steps import Step, deadline_after, seconds_left
from ._tensors import Array
from .errors import ServerUnreachableError


class AsyncGrpcConnection(GrpcTarget):
    """A connection for asyncio, which belongs to the event loop that it is first used in.

    A call that goes on after its caller has left counts in `in_flight` until it is answered.
    """

    def __init__(self, address: Address, model: str, most_bytes: int, in_flight: InFlight) -> None:
        super().__init__(address, model, most_bytes)
        self._opened, self._in_flight = self._channel(grpc.aio), in_flight
        self._waiting: dict[Any, asyncio.Future[None] | None] = {}

    async def send(self, step: Step) -> Any:
        """Send one request; returns what `step.read` makes of its answer. Raises a `ClientError`.

        Cancelling the task cancels the call on the server if that survives it; otherwise its answer is dropped.
        """
        until = deadline_after(RECONNECT_S)
        while True:
            try:
                return self._read(step, await self._send_once(step))
            except ServerUnreachableError as error:
                if not self._may_wait(error, until, step.deadline):
                    raise
            await asyncio.sleep(PAUSE_S)

    async def _send_once(self, step: Step) -> bytes:
        try:
            if self._closed:
                raise self._shut()
            left = seconds_left(step.deadline)
            may_cancel = self._may_cancel(step)
            method, metadata = self._method(self._opened, step), self._metadata(step)
            call = method(whole(step), timeout=left if may_cancel else None, metadata=metadata)
            if not may_cancel:
                await self._answered(call, left)
            return await call  # type: ignore[no-any-return]
        except grpc.RpcError as error:
            raise self._shut() if self._closed else self._refused(error, step) from error
        except TimeoutError as error:
            raise self._late(step) from error
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if not self._closed or (task and task.cancelling()):
                raise
            raise self._shut() from error  # `close` has ended the call

    async def _answered(self, call: Any, left: float | None) -> None:
        """Wait until a call has ended, for `left` seconds; raises `TimeoutError`, and `ClosedError` after `close`."""
        loop = asyncio.get_running_loop()
        _hide(call._invocation_task)
        _left_open.add(self)  # grpcio cancels the calls of a channel that nobody holds
        answer = self._waiting[call] = loop.create_future()
        call.add_done_callback(self._ended)
        timer = None if left is None else loop.call_later(left, _expire, answer)
        try:
            await answer
        except BaseException:
            if call in self._waiting:
                self._leave(call, may_cancel=False)
            raise
        finally:
            if timer:
                timer.cancel()

    def _leave(self, call: Any, *, may_cancel: bool) -> None:
        """Cancel a call on the server, or let it go on without its caller."""
        if may_cancel:
            del self._waiting[call]
            call.cancel()
        else:
            self._waiting[call] = None
            self._in_flight.abandon()

    def _ended(self, call: Any) -> None:
        """Called by gRPC in the event loop."""
        if call not in self._waiting:
            return
        answer = self._waiting.pop(call)
        if not self._waiting:
            _left_open.discard(self)
        if answer is None:
            self._in_flight.finish_abandoned()
        elif not answer.done():
            answer.set_result(None)

    async def stream(self, step: Step) -> AsyncIterator[dict[str, Array]]:
        """The outputs of the answers to one request, as they come; raises a `ClientError`.

        Closing the iterator cancels the request on the server if that survives it; otherwise its answers are dropped.
        """
        if self._closed:
            raise self._shut()
        left = seconds_left(step.deadline) if self.survives else None
        call = self._method(self._opened, step)([whole(step)], timeout=left, metadata=self._metadata(step))
        answers, waiting = StreamAnswers(self, step), StreamTask(call)
        if not self.survives:
            for task in (waiting.task, call._initializer, call._async_request_poller):
                _hide(task)
            _left_open.add(self)
        ended = self._waiting[call] = asyncio.get_running_loop().create_future()
        ended.add_done_callback(waiting.shut)
        call.add_done_callback(self._ended)
        try:
            while (content := await waiting.next(step.deadline)) is not None:
                if (outputs := answers.read(content)) is not None:
                    yield outputs
            answers.end()
        except grpc.RpcError as error:
            raise self._shut() if self._closed else answers.said(self._refused(error, step)) from error
        except TimeoutError as error:
            raise self._late(step) from error
        finally:
            waiting.leave()
            if call in self._waiting:
                self._leave(call, may_cancel=self.survives)

    async def close(self) -> None:
        """End all calls and the connection; if the server would not survive that, when they are answered."""
        self._closed = True
        for answer in list(self._waiting.values()):
            if answer and not answer.done():
                answer.set_exception(self._shut())
        until = asyncio.get_running_loop().time() + CLOSE_S
        while self._waiting and not self.survives:
            if asyncio.get_running_loop().time() > until:
                return  # the channel stays open, so that nothing is cancelled
            await asyncio.sleep(0.005)
        await self._opened.close()
        _left_open.discard(self)


class StreamTask:
    """Reads the answers of a stream in a task, one ahead of the caller, so that waiting for one can end."""

    def __init__(self, call: Any) -> None:
        self._call, self._is_left = call, False
        self._answers: asyncio.Queue[Any] = asyncio.Queue(1)
        self._error: BaseException | None = None
        self.task = asyncio.get_running_loop().create_task(self._run())

    async def next(self, deadline: float | None) -> bytes | None:
        """The next answer, None at the end; raises `grpc.RpcError`, `TimeoutError`, or `ClosedError` after `shut`."""
        async with asyncio.timeout(seconds_left(deadline)):
            answer = self._error or await self._answers.get()
        if isinstance(answer, BaseException):
            raise answer
        return answer  # type: ignore[no-any-return]

    def leave(self) -> None:
        """Take no more answers: the task drops them."""
        self._is_left = True
        if not self._answers.empty():
            self._answers.get_nowait()

    def shut(self, ended: "asyncio.Future[None]") -> None:
        """End the caller with an error, if the connection was closed before the stream has ended."""
        if not ended.cancelled() and (error := ended.exception()):
            self._error = error
            self.leave()
            self._answers.put_nowait(error)

    async def _run(self) -> None:
        end: BaseException | None = None
        try:
            while (content := await self._call.read()) is not grpc.aio.EOF:
                if not self._is_left:
                    await self._answers.put(content)
        except asyncio.CancelledError as error:
            if self.task.cancelling():
                raise  # the event loop ends
            end = error
        except grpc.RpcError as error:
            end = error
        if not self._is_left:
            await self._answers.put(end)


def _expire(answer: "asyncio.Future[None]") -> None:
    if not answer.done():
        answer.set_exception(TimeoutError())


def _hide(task: Any) -> None:
    """Take a task of grpcio from those that the end of the event loop cancels: it would cancel its call on the wire."""
    asyncio.tasks._unregister_task(task)
    task._log_destroy_pending = False
