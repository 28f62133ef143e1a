"""A served model as a function, for callers that wait for the answer."""

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Literal, Self

from clients import wire
from clients.connection import DEFAULT_URL, BlockingConnection
from clients.contract import Array, Metadata
from clients.wire import Parameter

Transport = Literal["auto", "shared_memory", "grpc", "http"]


class Model:
    """One model on one server, called as a function; several threads may call it together.

    with Model("ranker", url="localhost:8001") as model:
        scores = model.predict(features)

    `timeout_s` is the deadline of every call that brings none of its own. Raises `AddressError`,
    `ServerUnreachableError` and `NotReadyError`.
    """

    def __init__(
        self,
        name: str,
        *,
        url: str = DEFAULT_URL,
        transport: Transport = "auto",
        version: str = "",
        timeout_s: float | None = None,
    ) -> None:
        self._name, self._version, self._timeout_s = name, version, timeout_s
        self._connection = BlockingConnection(url)
        self.metadata = Metadata.of(self._connection.config(name, version, timeout_s))

    def predict(
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
        Raises `InvalidInputError` before anything is sent, or another `ClientError`.
        """
        checked = self.metadata.check(arrays)
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        request = wire.request(
            self._name, self._version, checked, wire.options(request_id, priority=priority, parameters=parameters)
        )
        found = wire.answers(self._connection.call("ModelInfer", request, self._name, timeout_s))
        return answer(self.metadata, found)

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def answer(metadata: Metadata, found: Mapping[str, Array]) -> Any:
    """The outputs in the configuration's order: one alone, several as a tuple."""
    ordered = tuple(found[tensor.name] for tensor in metadata.outputs)
    return ordered[0] if len(ordered) == 1 else ordered
