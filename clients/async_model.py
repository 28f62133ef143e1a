"""A served model as a function, for asyncio."""

import asyncio
import os
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from clients.coalesce import Coalescer
from clients.connection import DEFAULT_URL, Connection
from clients.contract import Array, Metadata
from clients.errors import ClientError, ClosedError
from clients.exchange import Exchange, Transport
from clients.model import answer, closed
from clients.rest import RestConnection
from clients.steps import Step, Steps, T, run_async
from clients.terms import Terms
from clients.wire import Parameter


class AsyncModel:
    """One model on one server, called as a function; any number of calls may be in flight together.

    async with AsyncModel("ranker", url="localhost:8001") as model:
        scores = await model.predict(features)

    `metadata` is there once it is entered. The arguments are those of `Model`; `coalesce` merges calls that are in
    flight together into requests of several rows (see coalesce.py).
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
    ) -> None:
        self._name, self._timeout_s, self._coalesce = name, timeout_s, coalesce
        self._coalescer: Coalescer | None = None
        self._url, self._transport = url, transport
        self._exchange = Exchange(name, str(version), url, transport)
        self._connection: Connection | RestConnection | None = None
        self._process, self._closing = 0, False

    async def __aenter__(self) -> Self:
        """Connect; raises `AddressError`, `ServerUnreachableError`, `NotReadyError` and `TransportError`."""
        self._process, self._closing = os.getpid(), False
        self._connection = RestConnection(self._url) if self._transport == "http" else Connection(self._url)
        try:
            self.metadata = await self._run(self._exchange.open(self._timeout_s))
        except BaseException:
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
        Cancelling the task cancels the request on the server. Raises `InvalidInputError` before anything is sent, or
        another `ClientError`.
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
            error.about(self._name, self._url)
            raise

    async def _infer(self, arrays: Mapping[str, Array], terms: Terms) -> dict[str, Array]:
        """One request."""
        return await self._run(self._exchange.infer(arrays, terms))

    async def close(self) -> None:
        """Unregister the shared memory and end the connection.

        Calls in flight, and calls after that, raise `ClosedError`.
        """
        if self._connection is None or self._closing or self._process != os.getpid():
            return
        self._closing = True
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
