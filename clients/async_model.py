"""A served model as a function, for asyncio."""

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from clients import wire
from clients.connection import DEFAULT_URL, Connection
from clients.contract import Metadata
from clients.model import Transport, answer
from clients.wire import Parameter


class AsyncModel:
    """One model on one server, called as a function; any number of calls may be in flight together.

    async with AsyncModel("ranker", url="localhost:8001") as model:
        scores = await model.predict(features)

    `metadata` is there once it is entered. `coalesce` merges calls that are in flight together into requests of
    several rows.
    """

    metadata: Metadata

    def __init__(
        self,
        name: str,
        *,
        url: str = DEFAULT_URL,
        transport: Transport = "auto",
        version: str = "",
        timeout_s: float | None = None,
        coalesce: bool = False,
    ) -> None:
        self._name, self._version, self._timeout_s = name, version, timeout_s
        self._url = url

    async def __aenter__(self) -> Self:
        """Connect; raises `AddressError`, `ServerUnreachableError` and `NotReadyError`."""
        self._connection = Connection(self._url)
        self.metadata = Metadata.of(await self._connection.config(self._name, self._version, self._timeout_s))
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
        checked = self.metadata.check(arrays)
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        request = wire.request(
            self._name, self._version, checked, wire.options(request_id, priority=priority, parameters=parameters)
        )
        found = wire.answers(await self._connection.call("ModelInfer", request, self._name, timeout_s))
        return answer(self.metadata, found)

    async def close(self) -> None:
        """End the connection."""
        await self._connection.close()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()
