"""A served model as a function, for callers that wait for the answer."""

import os
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from clients.connection import DEFAULT_URL, BlockingConnection
from clients.contract import Array, Metadata
from clients.endpoint import Endpoint, Tls
from clients.errors import ClientError, ClosedError, ServerFailureError, ServerUnreachableError
from clients.exchange import Exchange, Transport
from clients.rest import BlockingRestConnection
from clients.steps import Step, Steps, T, run
from clients.terms import Terms, deadline
from clients.wire import Parameter


class Model:
    """One model on one server, called as a function; several threads may call it together.

    with Model("ranker", url="localhost:8001") as model:
        scores = model.predict(features)

    `url` is host:port of the server's gRPC endpoint, or of its HTTP endpoint with `transport="http"`. With TLS it is
    grpcs://host:port or https://host:port; `tls` names the certificates, and `headers` go with every call. "auto" takes
    shared memory where the server is on this host and the tensors are large enough to gain from it, gRPC otherwise, and
    HTTP for an address that says so. `version` "" is the server's choice, `timeout_s` the deadline of every call that
    brings none of its own. Raises `AddressError`, `InvalidInputError` for a header, `ServerUnreachableError`,
    `TlsError`, `AccessError`, `NotReadyError` and `TransportError`.
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
        tls: Tls | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._name, self._url, self._timeout_s, self._process = name, url, deadline(timeout_s), os.getpid()
        endpoint = Endpoint.of(url, tls=tls, headers=headers)
        self._exchange = Exchange(name, str(version), endpoint, transport)
        http = endpoint.over(transport) == "http"
        self._connection = BlockingRestConnection(endpoint) if http else BlockingConnection(endpoint)
        try:
            if isinstance(self._connection, BlockingConnection):
                self._connection.ask_version(name, self._timeout_s)
            self.metadata = self._run(self._exchange.open(self._timeout_s))
        except BaseException as error:
            if isinstance(error, ClientError):
                error.about(name, url)
            self.close()
            raise

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
        try:
            checked = self.metadata.check(arrays)
            terms = Terms(
                timeout_s=self._timeout_s if timeout_s is None else timeout_s,
                priority=priority,
                request_id=request_id,
                parameters=parameters,
            )
            return answer(self.metadata, self._run(self._exchange.infer(checked, terms)))
        except ClientError as error:
            error.about(self._name, self._url)
            raise

    def close(self) -> None:
        """Unregister the shared memory and end the connection.

        Calls after that raise `ClosedError`. So do calls of other threads that are in flight, where the server
        survives their cancellation (Triton 2.59 and later); before, and over HTTP, they are still answered. Waits up to
        5 s for the answers to calls whose deadline has passed (see cancelling.py).
        """
        if self._process != os.getpid():
            return
        try:
            self._run(self._exchange.close())
        finally:
            self._process = 0
            self._connection.close()

    def _run(self, steps: Steps[T]) -> T:
        if self._process != os.getpid():
            raise ClosedError(closed(self._name))
        return run(steps, self._call)

    def _call(self, step: Step) -> Any:
        try:
            return self._connection.call(step, self._name)
        except (ServerFailureError, ServerUnreachableError, ValueError) as error:
            # What gRPC says of a call that a closed connection ends, and of one that it does not begin any more.
            if self._process != os.getpid():
                raise ClosedError(closed(self._name)) from error
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def answer(metadata: Metadata, found: Mapping[str, Array]) -> Any:
    """The outputs in the configuration's order: one alone, several as a tuple.

    Raises `ServerFailureError` when the answer lacks one of them.
    """
    if missing := [tensor.name for tensor in metadata.outputs if tensor.name not in found]:
        raise ServerFailureError(
            f"'{metadata.name}' answered without {missing}, which its configuration declares as output: a fault of the "
            "model. Let it set every declared output, or take those that it may leave out off the configuration."
        )
    ordered = tuple(found[tensor.name] for tensor in metadata.outputs)
    return ordered[0] if len(ordered) == 1 else ordered


def closed(name: str) -> str:
    """Why a model cannot be called."""
    return (
        f"'{name}' was closed, or was made by the process that this one was forked from. Make one in each process, "
        "and call it before its end."
    )
