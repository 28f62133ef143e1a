"""A served model as a coroutine function, for asyncio."""

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Awaitable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from ._address import DEFAULT_URL, Tls, TransportName
from ._coalescer import Coalescer
from ._contract import Inputs, Metadata
from ._in_flight import InFlight
from ._inference import Inference
from ._options import CallOptions, Parameter
from ._steps import INFER, Step, deadline_after, run_async, seconds_left
from ._tensors import Array
from .errors import ClientError, ClosedError, TimedOutError
from .hooks import EventHooks, Hooks
from .model import MOST_ANSWER_BYTES, closed_message
from .sequences import AsyncSequence, Id
from .transport import AsyncCustomConnection, Transport

MAX_IN_FLIGHT = 1024


class AsyncModel:
    """One model on a server, called as a function; any number of calls may be in flight together.

    async with AsyncModel("ranker", url="localhost") as model:
        scores = await model.predict(features)

    `metadata` is set when the context is entered. Once its event loop has ended, the model connects anew in the next
    loop that calls it. The arguments are those of `Model`, and:

    Args:
        coalesce: merge calls that are in flight together into requests of several rows (see _coalescer.py).
        max_in_flight: the most requests in flight together, 256 over HTTP. Further calls wait in turn; their deadline
            counts meanwhile.
    """

    metadata: Metadata

    def __init__(
        self,
        name: str,
        *,
        url: str = DEFAULT_URL,
        transport: TransportName | Transport = "auto",
        version: str | int = "",
        timeout_s: float | None = None,
        coalesce: bool = False,
        max_in_flight: int = MAX_IN_FLIGHT,
        tls: Tls | None = None,
        headers: Mapping[str, str] | None = None,
        hooks: Hooks | None = None,
        max_answer_bytes: int = MOST_ANSWER_BYTES,
        rows_may_differ: bool = False,
    ) -> None:
        self._name, self._url, self._version, self._transport = name, url, str(version), transport
        self._options, self._coalesce = CallOptions(timeout_s=timeout_s), coalesce
        secured = {"tls": tls, "headers": headers}
        self._inference = Inference(name, str(version), url, transport, rows_may_differ=rows_may_differ, **secured)
        self._hooks = EventHooks(hooks, name, url)
        self._has_hooks, self._most_bytes = bool(self._hooks), max_answer_bytes
        self._in_flight, self._max_in_flight = InFlight(max_in_flight), max_in_flight
        self._coalescer: Coalescer | None = None
        self._connections: dict[str, Any] = {}
        self._survives = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process, self._closing = 0, False

    async def __aenter__(self) -> Self:
        """Connect; raises `ServerUnreachableError`, `TlsError`, `AccessError`, `NotReadyError`, `TransportError`."""
        self._process, self._closing = os.getpid(), False
        self._begin_loop()
        try:
            self.metadata = await run_async(self._inference.open(self._options.timeout_s), self._send)
        except BaseException as error:
            if isinstance(error, ClientError):
                error.about(self._name, self._url)
            await self.close()
            raise
        self._merge()
        return self

    async def predict(
        self,
        *arrays: Any,
        timeout_s: float | None = None,
        priority: int = 0,
        request_id: str = "",
        parameters: Mapping[str, Parameter] | None = None,
    ) -> Any:
        """Run the model; returns its output, or a tuple of outputs if it has several.

        Arguments and errors are those of `Model.predict`. Cancelling the task ends the call at once. From Triton 2.59
        on it cancels the request on the server. Before, that could crash the server, so the request goes on and its
        answer is dropped (see _grpc.py).
        """
        try:
            if self._loop is not asyncio.get_running_loop() or self._closing or self._process != os.getpid():
                self._check_open()
            options = self._options.of_call(timeout_s, priority, request_id, parameters)
            inputs = self._inference.check(arrays, options)
            if self._coalescer:
                outputs = await self._coalescer.infer(inputs, options)
            else:
                outputs = await self._infer(inputs, options)
            return self.metadata.answer(outputs, inputs.shape.rows)
        except ClientError as error:
            error.about(self._name, self._url)
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

        The arguments and errors are those of `Model.stream`; the stream counts as one request in flight. Leaving the
        loop cancels the request on the server from Triton 2.59 on; before, its further answers are dropped. Python does
        that soon after the loop is left; `contextlib.aclosing(model.stream(...))` does it at once.
        """
        try:
            self._check_open()
            options = self._options.of_call(timeout_s, priority, request_id, parameters)
            inputs = self._inference.check(arrays, options, streams=True)
            in_flight = self._in_flight
            if not in_flight.enter_now():
                options = await self._wait(in_flight, options)
            try:
                step = await run_async(self._inference.stream(inputs, options), self._send)
                with self._hooks.around(step):
                    async with contextlib.aclosing(self._connection(step.protocol).stream(step)) as answers:
                        async for outputs in answers:
                            yield self.metadata.answer(outputs, None)
            finally:
                in_flight.leave()
        except ClientError as error:
            error.about(self._name, self._url)
            raise

    def sequence(self, sequence_id: Id | None = None) -> AsyncSequence:
        """A sequence of requests to a model that keeps a state between them, as `Model.sequence` is."""
        self._inference.check_one_server()
        return AsyncSequence(self, sequence_id)

    async def close(self) -> None:
        """Unregister the shared memory and end the connections; calls in flight and later ones raise `ClosedError`.

        Over HTTP calls in flight are still answered. If the server does not survive cancellations, waits up to 5 s for
        the answers to calls in flight over gRPC, which are dropped (see _grpc.py).
        """
        if not self._process or self._closing or self._process != os.getpid():
            return
        if self._loop is not asyncio.get_running_loop():
            self._begin_loop()
        self._closing = True
        self._in_flight.open_up()
        if self._coalescer:
            self._coalescer.close()
        try:
            await run_async(self._inference.close(), self._send)
        finally:
            for connection in self._connections.values():
                await connection.close()

    async def _infer(self, inputs: Inputs, options: CallOptions) -> dict[str, Array]:
        """Send one request as soon as fewer than `max_in_flight` are in flight."""
        in_flight = self._in_flight  # a place is given back to the loop that it was taken in
        if not in_flight.enter_now():
            options = await self._wait(in_flight, options)
        try:
            if step := self._inference.step(inputs, options):
                return await self._send(step)  # type: ignore[no-any-return]
            return await run_async(self._inference.share(inputs, options), self._send)
        finally:
            in_flight.leave()

    async def _wait(self, in_flight: InFlight, options: CallOptions) -> CallOptions:
        """Wait for a place among the requests in flight; returns the options with the time that is left."""
        deadline = deadline_after(options.timeout_s)
        try:
            await in_flight.enter(options.timeout_s)
        except TimeoutError as error:
            raise TimedOutError(
                f"'{self._name}': the request was not sent within {options.timeout_s} s, since others were in flight: "
                f"{in_flight.limit} (max_in_flight), or too many whose callers have left.",
                retryable=True,
            ) from error
        if self._closing:
            in_flight.leave()
            raise ClosedError(closed_message(self._name))
        if deadline is None:
            return options
        with contextlib.suppress(TimeoutError):
            return replace(options, timeout_s=seconds_left(deadline))
        return replace(options, timeout_s=1e-6)

    def _send(self, step: Step) -> Awaitable[Any]:
        connection = self._connections.get(step.protocol) or self._connection(step.protocol)
        if self._has_hooks and step.method == INFER:
            return self._watched(connection, step)
        return connection.send(step)  # type: ignore[no-any-return]

    async def _watched(self, connection: Any, step: Step) -> Any:
        with self._hooks.around(step):
            return await connection.send(step)

    def _check_open(self) -> None:
        """Raise `ClosedError` if no call can be made; connect anew if the event loop before has ended."""
        if not self._process:
            raise ClosedError(f"'{self._name}' is not open. Call it inside: async with AsyncModel(...) as model.")
        if self._closing or self._process != os.getpid():
            raise ClosedError(closed_message(self._name))
        if self._loop is asyncio.get_running_loop():
            return
        if self._loop and not self._loop.is_closed():
            raise ClosedError(
                f"'{self._name}' was opened in another event loop, which has not ended. Open an AsyncModel in each "
                "loop, or use Model, which any thread may call."
            )
        self._begin_loop()
        self._merge()

    def _begin_loop(self) -> None:
        """Belong to this event loop; requests of one that has ended count no more."""
        self._loop, self._in_flight = asyncio.get_running_loop(), InFlight(self._max_in_flight)
        if known := self._connections.get("grpc"):
            self._survives = known.survives
        self._connections = {}

    def _merge(self) -> None:
        self._coalescer = Coalescer(self.metadata, self._infer) if self._coalesce else None

    def _connection(self, protocol: str) -> Any:
        """The connection for a protocol, made when it is first used."""
        if (known := self._connections.get(protocol)) is not None:
            return known
        if protocol == "custom":
            made: Any = AsyncCustomConnection(self._transport, self._url, self._name, self._version)
        elif protocol == "http":
            from ._async_http import AsyncHttpConnection

            made = AsyncHttpConnection(
                self._inference.addresses[protocol], self._name, self._most_bytes, self._in_flight
            )
        else:
            from ._async_grpc import AsyncGrpcConnection

            made = AsyncGrpcConnection(
                self._inference.addresses[protocol], self._name, self._most_bytes, self._in_flight
            )
            made.survives = self._survives
        self._connections[protocol] = made
        return made

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()
