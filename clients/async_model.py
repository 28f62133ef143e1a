"""A served model as a coroutine function, for asyncio."""

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Awaitable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, cast

from . import wire
from .addresses import Addresses
from .coalesce import Coalescer
from .connections import Connections
from .contract import Array, Metadata
from .endpoint import DEFAULT_URL, Tls
from .errors import ClientError, ClosedError, TimedOutError
from .exchange import Exchange
from .hooks import EventHooks, Hooks
from .in_flight import InFlight
from .model import answer, closed_message, exchange
from .replicas import Replicas
from .retries import Retries
from .sequences import AsyncSequence, Id
from .steps import Step, deadline_after, run_async, seconds_until
from .terms import Terms
from .transport import AsyncCustom, AsyncStreaming, AsyncTransport, Transport, connect_async
from .wire import Parameter

MAX_IN_FLIGHT = 1024


class AsyncModel:
    """One model on a server, or on several, called as a function; any number of calls may be in flight together.

    async with AsyncModel("ranker", url="localhost:8001") as model:
        scores = await model.predict(features)

    `metadata` is set when the context is entered. Once its event loop has ended, the model connects anew in the next
    loop that calls it. The arguments are those of `Model`, and:

    Args:
        coalesce: merge calls that are in flight together into requests of several rows (see coalesce.py).
        max_in_flight: the most requests in flight together, 256 over HTTP. Further calls wait in turn; their deadline
            counts meanwhile.
    """

    metadata: Metadata

    def __init__(
        self,
        name: str,
        *,
        url: str = DEFAULT_URL,
        transport: Transport | AsyncTransport = "auto",
        version: str | int = "",
        timeout_s: float | None = None,
        coalesce: bool = False,
        max_in_flight: int = MAX_IN_FLIGHT,
        tls: Tls | None = None,
        headers: Mapping[str, str] | None = None,
        hooks: Hooks | None = None,
        idempotent: bool = True,
        try_timeout_s: float | None = None,
    ) -> None:
        self._name, self._terms, self._coalesce = name, Terms(timeout_s=timeout_s), coalesce
        self._coalescer: Coalescer | None = None
        self._addresses = Addresses.of(url, tls=tls, headers=headers)
        retries = Retries(idempotent, try_timeout_s)
        self._exchange = exchange(name, str(version), self._addresses, transport, retries)
        self._direct = self._exchange if isinstance(self._exchange, Exchange) else None
        self._hooks = EventHooks(hooks, name, url)
        self._has_hooks = bool(self._hooks)
        self._in_flight, self._max_in_flight = InFlight(max_in_flight), max_in_flight
        self._loop: asyncio.AbstractEventLoop
        self._transport = transport
        self._connection: AsyncTransport | None = None
        self._process, self._closing = 0, False

    async def __aenter__(self) -> Self:
        """Connect; raises `ServerUnreachableError`, `TlsError`, `AccessError`, `NotReadyError`, `TransportError`."""
        self._process, self._closing = os.getpid(), False
        try:
            self._connection = self._connect()
            self.metadata = await run_async(self._exchange.open(self._terms.timeout_s), self._call)
        except BaseException as error:
            if isinstance(error, ClientError):
                error.about(self._name, self._addresses.url)
            await self.close()
            raise
        self._merge()
        return self

    def _merge(self) -> None:
        self._coalescer = Coalescer(self.metadata, self._infer) if self._coalesce else None

    def _move(self) -> None:
        """Go on in this event loop with new connections, since the loop before has ended.

        Raises `ClosedError` if that has not ended, because its calls may still wait for their answers.
        """
        if not self._loop.is_closed():
            raise ClosedError(
                f"'{self._name}' was opened in another event loop, which has not ended. Open an AsyncModel in each "
                "loop, or use Model, which any thread may call."
            )
        self._connection = self._connect()
        self._merge()

    def _connect(self) -> AsyncTransport:
        # Requests of a loop that has ended count no more.
        self._loop, self._in_flight = asyncio.get_running_loop(), InFlight(self._max_in_flight)
        if isinstance(self._exchange, Replicas):
            return Connections(self._exchange, self._name, self._in_flight)
        if isinstance(self._transport, str):
            return connect_async(self._addresses.endpoints[0], self._exchange.transport, self._in_flight)
        return AsyncCustom(self._transport, self._addresses.url, self._name)

    async def predict(
        self,
        *arrays: Any,
        timeout_s: float | None = None,
        priority: int = 0,
        request_id: str = "",
        parameters: Mapping[str, Parameter] | None = None,
    ) -> Any:
        """Run the model; returns its output, or a tuple of outputs if it has several.

        Args:
            arrays: one for each input in the configuration's order, or one mapping from input names to arrays. If
                `metadata.max_batch_size` is not 0 each has the batch axis first: pass one row as `array[None]`.
            timeout_s: the deadline of this call in seconds; None is the model's `timeout_s`. The call raises
                `TimedOutError` then. The server's queue learns of it only if the configuration allows that: see
                "Deadlines" in clients/README.md.
            priority: 1 is the highest, 0 the model's default.
            request_id: an id for the server's logs and traces.
            parameters: the request's parameters, for models that read them.

        Cancelling the task ends the call at once. From Triton 2.59 on it cancels the request on the server. Before,
        that could crash the server, so the request goes on and its answer is dropped (see cancelling.py). Raises
        `InvalidInputError` before anything is sent, or another `ClientError`.
        """
        try:
            self._check_open()
            terms = self._terms.of_call(timeout_s, priority, request_id, parameters)
            if self._coalescer:
                return answer(self.metadata, await self._coalescer.infer(self.metadata.check(arrays), terms))
            # The same as `_infer`, in fewer calls.
            if (direct := self._direct) and (step := direct.repeated(arrays, terms)) and self._in_flight.enter_now():
                try:
                    return answer(self.metadata, direct.outputs(await self._call(step)))
                finally:
                    self._in_flight.leave()
            return answer(self.metadata, await self._infer(self.metadata.check(arrays), terms))
        except ClientError as error:
            error.about(self._name, self._addresses.url)
            raise
        except asyncio.CancelledError as error:
            self._check_cancelled(error)
            raise

    async def stream(
        self,
        *arrays: Any,
        timeout_s: float | None = None,
        priority: int = 0,
        request_id: str = "",
        parameters: Mapping[str, Parameter] | None = None,
    ) -> AsyncGenerator[Any, None]:
        """Run the model; gives each of its answers as soon as it comes, as `predict` returns the only one.

        async for part in model.stream(prompt): ...

        A decoupled model gives any number of answers, others give one. The arguments are those of `predict`, and
        `timeout_s` is for the whole stream, which counts as one request in flight. Leaving the loop cancels the request
        on the server from Triton 2.59 on; before, its further answers are dropped. Python does that soon after the loop
        is left; `contextlib.aclosing(model.stream(...))` does it at once. The server sends at most 1 MiB, or one
        answer, ahead of the loop.

        Raises `TransportError` over HTTP, and another `ClientError` where the model or the connection fails: answers
        before that have been given.
        """
        try:
            self._check_open()
            terms = self._terms.of_call(timeout_s, priority, request_id, parameters)
            checked = self.metadata.check(arrays, streams=True)
            if not self._in_flight.enter_now():
                terms = await self._wait(terms)
            in_flight = self._in_flight
            try:
                step = await run_async(self._exchange.stream(checked, terms), self._call)
                async with contextlib.aclosing(self._stream(step)) as responses:
                    async for response in responses:
                        yield answer(self.metadata, wire.answers(response))
            finally:
                in_flight.leave()
        except ClientError as error:
            error.about(self._name, self._addresses.url)
            raise
        except asyncio.CancelledError as error:
            self._check_cancelled(error)
            raise

    def sequence(self, sequence_id: Id | None = None) -> AsyncSequence:
        """A sequence of requests to a model that keeps a state between them, as `Model.sequence` is."""
        return AsyncSequence(self, sequence_id)

    async def _stream(self, step: Step) -> AsyncGenerator[Any, None]:
        if self._connection is None or self._closing:
            raise ClosedError(closed_message(self._name))
        connection = cast("AsyncStreaming", self._connection)
        with self._hooks.around(step):
            async with contextlib.aclosing(connection.stream(step, self._name)) as responses:
                async for response in responses:
                    yield response

    def _check_open(self) -> None:
        """Raise `ClosedError` if no call can be made; connect anew if the event loop before has ended."""
        if not self._process:
            raise ClosedError(f"'{self._name}' is not open. Call it inside: async with AsyncModel(...) as model.")
        if self._connection is None or self._closing or self._process != os.getpid():
            raise ClosedError(closed_message(self._name))
        if self._loop is not asyncio.get_running_loop():
            self._move()

    async def _infer(self, arrays: Mapping[str, Array], terms: Terms) -> dict[str, Array]:
        """Send one request as soon as fewer than `max_in_flight` are in flight."""
        if not self._in_flight.enter_now():
            terms = await self._wait(terms)
        try:
            if self._direct and (step := self._direct.direct(arrays, terms)):
                return self._direct.outputs(await self._call(step))
            return await run_async(self._exchange.infer(arrays, terms), self._call)
        except asyncio.CancelledError as error:
            self._check_cancelled(error)
            raise
        finally:
            self._in_flight.leave()

    def _check_cancelled(self, error: asyncio.CancelledError) -> None:
        """Raise `ClosedError` if it was not the caller who cancelled: a connection that is closed cancels its calls."""
        task = asyncio.current_task()
        if self._closing and not (task and task.cancelling()):
            closed = ClosedError(closed_message(self._name))
            closed.about(self._name, self._addresses.url)
            raise closed from error

    async def _wait(self, terms: Terms) -> Terms:
        """Wait for a place among the requests in flight; returns the terms with the time that is left."""
        deadline = deadline_after(terms.timeout_s)
        try:
            await self._in_flight.enter(terms.timeout_s)
        except TimeoutError as error:
            raise TimedOutError(
                f"'{self._name}': the request was not sent within {terms.timeout_s} s, since "
                f"{self._in_flight.limit} others were in flight (max_in_flight).",
                retryable=True,
            ) from error
        if self._closing:
            self._in_flight.leave()
            raise ClosedError(closed_message(self._name))
        return terms if deadline is None else replace(terms, timeout_s=max(1e-6, seconds_until(deadline)))

    async def close(self) -> None:
        """Unregister the shared memory and end the connection; calls in flight and later ones raise `ClosedError`.

        Over HTTP calls in flight are still answered. If the server does not survive cancellations, waits up to 5 s for
        the answers to calls in flight, which are dropped (see cancelling.py).
        """
        if self._connection is None or self._closing or self._process != os.getpid():
            return
        if self._loop is not asyncio.get_running_loop():
            self._move()
        self._closing = True
        self._in_flight.open_up()
        if self._coalescer:
            self._coalescer.close()
        try:
            await run_async(self._exchange.close(), self._call)
        finally:
            await self._connection.close()
            self._connection = None

    def _call(self, step: Step) -> Awaitable[Any]:
        if self._connection is None:
            raise ClosedError(closed_message(self._name))
        if self._has_hooks and step.method == "ModelInfer":
            return self._watched(self._connection, step)
        return self._connection.call(step, self._name)

    async def _watched(self, connection: AsyncTransport, step: Step) -> Any:
        with self._hooks.around(step):
            return await connection.call(step, self._name)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()
