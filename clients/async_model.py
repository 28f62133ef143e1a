"""A served model as a function, for asyncio."""

import asyncio
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from clients.coalesce import Coalescer
from clients.connection import DEFAULT_URL, Connection
from clients.contract import Array, Metadata
from clients.endpoint import Endpoint, Tls
from clients.errors import ClientError, ClosedError, TimedOutError
from clients.exchange import Exchange, Transport
from clients.in_flight import InFlight
from clients.model import answer, closed
from clients.rest import THREADS, RestConnection
from clients.steps import Step, Steps, T, ending, run_async
from clients.terms import Terms, deadline
from clients.wire import Parameter

MAX_IN_FLIGHT = 1024


class AsyncModel:
    """One model on one server, called as a function; any number of calls may be in flight together.

    async with AsyncModel("ranker", url="localhost:8001") as model:
        scores = await model.predict(features)

    `metadata` is there once it is entered. The arguments are those of `Model`; `coalesce` merges calls that are in
    flight together into requests of several rows (see coalesce.py). At most `max_in_flight` requests are in flight
    together, 64 over HTTP; further calls wait in turn, and their deadline counts.
    """

    metadata: Metadata

    def __init__(
        self,
        name: str,
        *,
        url: str = DEFAULT_URL,
        transport: Transport = "auto",
        version: str | int = "",
        timeout_s: float | None = None,
        coalesce: bool = False,
        max_in_flight: int = MAX_IN_FLIGHT,
        tls: Tls | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._name, self._timeout_s, self._coalesce = name, deadline(timeout_s), coalesce
        self._coalescer: Coalescer | None = None
        self._endpoint = Endpoint.of(url, tls=tls, headers=headers)
        self._http = self._endpoint.over(transport) == "http"
        self._exchange = Exchange(name, str(version), self._endpoint, transport)
        self._in_flight = InFlight(max_in_flight)
        # Over HTTP a thread waits for each of them.
        self._limit = min(max_in_flight, THREADS) if self._http else max_in_flight
        self._connection: Connection | RestConnection | None = None
        self._process, self._closing = 0, False

    async def __aenter__(self) -> Self:
        """Connect; raises `ServerUnreachableError`, `TlsError`, `AccessError`, `NotReadyError`, `TransportError`."""
        self._process, self._closing = os.getpid(), False
        # Those of a loop that has ended count no more.
        self._in_flight = InFlight(self._limit)
        connect = RestConnection if self._http else Connection
        try:
            self._connection = connect(self._endpoint, self._in_flight)
            if isinstance(self._connection, Connection):
                await self._connection.ask_version(self._name, self._timeout_s)
            self.metadata = await self._run(self._exchange.open(self._timeout_s))
        except BaseException as error:
            if isinstance(error, ClientError):
                error.about(self._name, self._endpoint.url)
            await self.close()
            raise
        if self._coalesce:
            self._coalescer = Coalescer(self.metadata, self._infer)
        return self

    async def predict(
        self,
        *arrays: Any,
        timeout_s: float | None = None,
        priority: int = 0,
        request_id: str = "",
        parameters: Mapping[str, Parameter] | None = None,
    ) -> Any:
        """Arrays in the order of the model's inputs -> its output, or a tuple when it has several.

        Each array has the batch axis first when `metadata.max_batch_size` is not 0: pass one row as `array[None]`.
        One mapping from input names to arrays does as well. `priority` 1 is the highest, 0 the model's default.
        Cancelling the task ends the call at once. It cancels the request on the server from Triton 2.59 on; before,
        that could end the server, so the request goes on and its answer is dropped (see cancelling.py). Raises
        `InvalidInputError` before anything is sent, or another `ClientError`.
        """
        try:
            if not self._process:
                raise ClosedError(f"'{self._name}' is not open. Call it inside: async with AsyncModel(...) as model.")
            if self._connection is None or self._closing or self._process != os.getpid():
                raise ClosedError(closed(self._name))
            checked = self.metadata.check(arrays)
            terms = Terms(
                timeout_s=self._timeout_s if timeout_s is None else timeout_s,
                priority=priority,
                request_id=request_id,
                parameters=parameters,
            )
            infer = self._coalescer.infer if self._coalescer else self._infer
            return answer(self.metadata, await infer(checked, terms))
        except ClientError as error:
            error.about(self._name, self._endpoint.url)
            raise

    async def _infer(self, arrays: Mapping[str, Array], terms: Terms) -> dict[str, Array]:
        """One request, when there is a place for it."""
        ends = ending(terms.timeout_s)
        try:
            waited = await self._in_flight.enter(terms.timeout_s)
        except TimeoutError as error:
            raise TimedOutError(
                f"'{self._name}' was not asked within {terms.timeout_s} s: {self._limit} requests were in "
                "flight all the time (max_in_flight), and this one waited for its turn.",
                retryable=True,
            ) from error
        try:
            if self._closing:
                raise ClosedError(closed(self._name))
            if waited and ends is not None:
                terms = replace(terms, timeout_s=max(1e-6, ends - time.monotonic()))
            return await self._run(self._exchange.infer(arrays, terms))
        finally:
            self._in_flight.leave()

    async def close(self) -> None:
        """Unregister the shared memory and end the connection.

        Calls in flight, and calls after that, raise `ClosedError`; over HTTP those in flight are still answered. Where
        the server does not survive cancellations, waits up to 5 s for the answers to calls in flight, which are dropped
        (see cancelling.py).
        """
        if self._connection is None or self._closing or self._process != os.getpid():
            return
        self._closing = True
        self._in_flight.open_up()
        if self._coalescer:
            self._coalescer.close()
        try:
            await self._run(self._exchange.close())
        finally:
            await self._connection.close()
            self._connection = None

    async def _run(self, steps: Steps[T]) -> T:
        return await run_async(steps, self._call)

    async def _call(self, step: Step) -> Any:
        if self._connection is None:
            raise ClosedError(closed(self._name))
        try:
            return await self._connection.call(step, self._name)
        except asyncio.CancelledError as error:
            # The connection ends its calls by cancelling them, which is not for a caller that cancelled nothing.
            task = asyncio.current_task()
            if self._closing and not (task and task.cancelling()):
                raise ClosedError(closed(self._name)) from error
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()
