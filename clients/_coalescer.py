"""Merges the calls of one process that are in flight together into requests of several rows.

A full request is sent at once. Another is sent at once while fewer requests are in flight than the model has instances,
so an idle server never waits; otherwise it collects rows until a request is answered. Sending a half-filled request
earlier would save a round trip of a millisecond or two, and cost a whole execution of the model. Callers that wake up
together usually call again together, so a request is sent after all tasks that are ready have run.
"""

import asyncio
import copy
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ._contract import Inputs, Metadata
from ._options import CallOptions
from ._tensors import Array
from .errors import ClosedError, InvalidInputError, RequestFailedError, ServerFailureError, TimedOutError

Outputs = dict[str, Array]
Send = Callable[[Inputs, CallOptions], Awaitable[Outputs]]


@dataclass(eq=False, kw_only=True)
class _Call:
    inputs: Inputs
    options: CallOptions
    deadline: float | None
    answer: asyncio.Future[Outputs]

    @property
    def rows(self) -> int:
        return self.inputs.shape.rows


@dataclass(eq=False, kw_only=True)
class _Group:
    """Calls for one request; until that is sent, a call that ends is removed from it."""

    calls: list[_Call] = field(default_factory=list)
    rows: int = 0
    task: asyncio.Task[None] | None = None

    def leave(self, call: _Call) -> None:
        """Remove a call that was cancelled or is out of time; without calls the request is cancelled."""
        if self.task is None:
            self.calls.remove(call)
            self.rows -= call.rows
        elif all(other.answer.done() for other in self.calls):
            self.task.cancel()


class Coalescer:
    """The calls of one model that wait for a request, and the requests in flight."""

    def __init__(self, metadata: Metadata, send: Send) -> None:
        self._metadata, self._send = metadata, send
        self._waiting: dict[object, _Group] = {}
        self._in_flight: set[asyncio.Task[None]] = set()
        self._flush_planned, self._closed = False, False
        # An ensemble has no instances of its own; its steps can run at the same time.
        self._instances = metadata.instances or 2
        ragged = any(tensor.ragged for tensor in metadata.inputs)
        self._mergeable = metadata.max_batch_size > 1 and not (ragged or metadata.sequences or metadata.rows_may_differ)

    async def infer(self, inputs: Inputs, options: CallOptions) -> Outputs:
        """The outputs of one call; a call with a request id or without inputs is sent by itself."""
        if options.request_id or not inputs.arrays or not self._mergeable:
            return await self._send(inputs, options)
        loop = asyncio.get_running_loop()
        call = _Call(
            inputs=inputs,
            options=options,
            deadline=None if options.timeout_s is None else loop.time() + options.timeout_s,
            answer=loop.create_future(),
        )
        group = self._join(call)
        try:
            if call.deadline is None:
                return await call.answer
            async with asyncio.timeout_at(call.deadline):
                return await call.answer
        except TimeoutError as error:
            raise TimedOutError(
                f"'{self._metadata.name}' gave no answer within {options.timeout_s} s.", status="DEADLINE_EXCEEDED"
            ) from error
        finally:
            # After a cancellation or a timeout the future is cancelled; the other calls go on.
            if call.answer.cancelled():
                group.leave(call)

    def close(self) -> None:
        """End every call that has no answer with a `ClosedError`."""
        self._closed = True
        for group in self._waiting.values():
            self._end(group)
        self._waiting.clear()
        for task in self._in_flight:
            task.cancel()

    def _join(self, call: _Call) -> _Group:
        key = _kind(call)
        group = self._waiting.get(key)
        if group and group.rows + call.rows > self._metadata.max_batch_size:
            self._start(key)
            group = None
        if group is None:
            group = self._waiting[key] = _Group()
        group.calls.append(call)
        group.rows += call.rows
        if group.rows == self._metadata.max_batch_size:
            self._start(key)
        elif len(self._in_flight) < self._instances:
            self._plan_flush()
        return group

    def _plan_flush(self) -> None:
        if self._flush_planned:
            return
        self._flush_planned = True
        loop = asyncio.get_running_loop()
        # Two rounds of the loop: calls that awakened callers make meanwhile join the request.
        loop.call_soon(loop.call_soon, self._flush)

    def _flush(self) -> None:
        """Send the oldest waiting groups while fewer requests are in flight than there are instances."""
        self._flush_planned = False
        for key in list(self._waiting):
            if len(self._in_flight) >= self._instances:
                return
            self._start(key)

    def _start(self, key: object) -> None:
        group = self._waiting.pop(key)
        if not group.calls:
            return
        group.task = asyncio.get_running_loop().create_task(self._deliver(group))
        self._in_flight.add(group.task)
        group.task.add_done_callback(lambda task: self._returned(task, group))

    def _returned(self, task: "asyncio.Task[None]", group: _Group) -> None:
        self._in_flight.discard(task)
        self._end(group, None if task.cancelled() else task.exception())
        if self._waiting and len(self._in_flight) < self._instances:
            self._plan_flush()

    async def _deliver(self, group: _Group) -> None:
        """Send one request and give every call its rows or its error; raises only a cancellation."""
        calls = [call for call in group.calls if not call.answer.done()]
        if len(calls) > 1:
            try:
                _hand_out(calls, await self._send(self._merged(calls), _common(calls)))
            except (InvalidInputError, ServerFailureError):
                # One call may have failed the request of all: each gets its own answer or error.
                await self._one_by_one(calls)
            except Exception as error:
                for call in calls:
                    _fail(call, error)
        elif calls:
            await self._single(calls[0])

    async def _one_by_one(self, calls: Sequence[_Call]) -> None:
        """Send a request for each call, one after another: all at once might not fit into a short queue."""
        for call in calls:
            if call.answer.done():
                continue
            request = asyncio.get_running_loop().create_task(self._single(call))
            try:
                # The request also ends if its caller leaves.
                await asyncio.wait((request, call.answer), return_when=asyncio.FIRST_COMPLETED)
            finally:
                request.cancel()

    def _merged(self, calls: Sequence[_Call]) -> Inputs:
        arrays = {name: np.concatenate([call.inputs.arrays[name] for call in calls]) for name in calls[0].inputs.arrays}
        return self._metadata.check(list(arrays.values()) if len(arrays) == len(self._metadata.inputs) else [arrays])

    def _end(self, group: _Group, error: BaseException | None = None) -> None:
        """Fail the calls without an answer: with the error of their request, or because that was cancelled."""
        for call in group.calls:
            _fail(call, error or self._cancelled())

    def _cancelled(self) -> ClosedError | RequestFailedError:
        """The error of a call whose request was cancelled while the call waited."""
        name = self._metadata.name
        if self._closed:
            return ClosedError(f"'{name}' was closed.")
        return RequestFailedError(
            f"'{name}': the merged request of this call was cancelled while it ran; a hook may have cancelled its task."
        )

    async def _single(self, call: _Call) -> None:
        try:
            outputs = await self._send(call.inputs, _common([call]))
        except Exception as error:
            _fail(call, error)
        else:
            if not call.answer.done():
                call.answer.set_result(outputs)


def _kind(call: _Call) -> object:
    """A key that is equal for calls that may share a request."""
    # With the types: True, 1 and 1.0 are equal, but three kinds of parameter.
    items = sorted((call.options.parameters or {}).items())
    parameters = tuple((name, type(value), value) for name, value in items)
    return (
        tuple((name, array.shape[1:]) for name, array in call.inputs.arrays.items()),
        call.options.priority,
        parameters,
    )


def _common(calls: Sequence[_Call]) -> CallOptions:
    """The options of a request: those that its calls share, and the time until the last deadline of them."""
    deadlines = [call.deadline for call in calls if call.deadline is not None]
    now = asyncio.get_running_loop().time()
    return CallOptions(
        timeout_s=max(1e-3, max(deadlines) - now) if len(deadlines) == len(calls) else None,
        priority=calls[0].options.priority,
        parameters=calls[0].options.parameters,
    )


def _hand_out(calls: Sequence[_Call], outputs: Outputs) -> None:
    """Give every call its rows, as views of the request's outputs."""
    rows = sum(call.rows for call in calls)
    if wrong := {name: output.shape for name, output in outputs.items() if output.shape[:1] != (rows,)}:
        raise ServerFailureError(f"a request of {rows} rows got outputs of the shapes {wrong}.")
    begin = 0
    for call in calls:
        end = begin + call.rows
        if not call.answer.done():
            call.answer.set_result({name: output[begin:end] for name, output in outputs.items()})
        begin = end


def _fail(call: _Call, error: BaseException) -> None:
    if not call.answer.done():
        call.answer.set_exception(_copied(error))


def _copied(error: BaseException) -> BaseException:
    """A copy of the error for one call: a shared error would collect the tracebacks of all calls."""
    try:
        duplicate = copy.copy(error)
    except Exception:
        return error  # a foreign class that cannot be copied
    duplicate.__cause__ = error
    return duplicate
