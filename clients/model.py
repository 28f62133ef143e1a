"""A served model as a blocking function."""

import os
from collections.abc import Generator, Mapping
from types import TracebackType
from typing import Any, Self, cast

from . import wire
from .addresses import Addresses
from .connections import BlockingConnections
from .contract import Array, Metadata
from .endpoint import DEFAULT_URL, Tls
from .errors import ClientError, ClosedError, ServerFailureError, ServerUnreachableError
from .exchange import Exchange
from .hooks import EventHooks, Hooks
from .replicas import Replicas
from .retries import Retries
from .sequences import Id, Sequence
from .steps import Step, Steps, T, run
from .terms import Terms
from .transport import BlockingStreaming, BlockingTransport, Custom, Transport, connect
from .wire import Parameter


class Model:
    """One model on a server, or on several, called as a function; several threads may call it together.

    with Model("ranker", url="localhost:8001") as model:
        scores = model.predict(features)

    Args:
        name: the model's name on the server.
        url: host:port of the server's gRPC endpoint, or of its HTTP endpoint with `transport="http"`. With TLS it is
            grpcs://host:port or https://host:port. "a:8001,b:8001" and "dns:///name:8001" are several servers with the
            same model: requests go to them in turn, and to another one if one fails (see clients/README.md).
        transport: "auto" is shared memory if the server is on this host and the tensors are large enough to gain from
            it, gRPC otherwise, and HTTP for an address of HTTP. Or an object of your own, see transport.py.
        version: the model's version; "" is the server's choice.
        timeout_s: the deadline of every call that sets none of its own.
        tls: the certificates.
        headers: HTTP headers or gRPC metadata of every call.
        hooks: functions called before and after every request, see hooks.py.
        idempotent: over several addresses, whether a request that may have run is sent to another server if its answer
            is lost. Requests of sequences never are.
        try_timeout_s: over several addresses, how long one server may take for an answer. Then the request goes to
            another one. Give more than the slowest honest answer takes; None waits, until `timeout_s`, for a server
            that hangs.

    Raises `AddressError`, `InvalidInputError` for a header or a hook, `ServerUnreachableError`, `TlsError`,
    `AccessError`, `NotReadyError` and `TransportError`.
    """

    metadata: Metadata

    def __init__(
        self,
        name: str,
        *,
        url: str = DEFAULT_URL,
        transport: Transport | BlockingTransport = "auto",
        version: str | int = "",
        timeout_s: float | None = None,
        tls: Tls | None = None,
        headers: Mapping[str, str] | None = None,
        hooks: Hooks | None = None,
        idempotent: bool = True,
        try_timeout_s: float | None = None,
    ) -> None:
        self._name, self._url, self._process, self._terms = name, url, os.getpid(), Terms(timeout_s=timeout_s)
        addresses, retries = Addresses.of(url, tls=tls, headers=headers), Retries(idempotent, try_timeout_s)
        self._exchange = exchange(name, str(version), addresses, transport, retries)
        self._direct = self._exchange if isinstance(self._exchange, Exchange) else None
        self._hooks = EventHooks(hooks, name, url)
        self._has_hooks = bool(self._hooks)
        self._connection: BlockingTransport
        if isinstance(self._exchange, Replicas):
            self._connection = BlockingConnections(self._exchange, name)
        elif isinstance(transport, str):
            self._connection = connect(addresses.endpoints[0], self._exchange.transport)
        else:
            self._connection = Custom(transport, url, name)
        try:
            self.metadata = self._run(self._exchange.open(self._terms.timeout_s))
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
        """Run the model; returns its output, or a tuple of outputs if it has several.

        Args:
            arrays: one for each input in the configuration's order, or one mapping from input names to arrays. If
                `metadata.max_batch_size` is not 0 each has the batch axis first: pass one row as `array[None]`.
            timeout_s: the deadline of this call in seconds; None is the model's `timeout_s`. The call raises
                `TimedOutError` then. Whether the server gives the request up too depends on its release and on the
                configuration: see "Deadlines" in clients/README.md.
            priority: 1 is the highest, 0 the model's default.
            request_id: an id for the server's logs and traces.
            parameters: the request's parameters, for models that read them.

        Raises `InvalidInputError` before anything is sent, or another `ClientError`.
        """
        try:
            terms = self._terms.of_call(timeout_s, priority, request_id, parameters)
            if (direct := self._direct) and self._process == os.getpid() and (step := direct.repeated(arrays, terms)):
                return answer(self.metadata, direct.outputs(self._call(step)))
            return answer(self.metadata, self._infer(self.metadata.check(arrays), terms))
        except ClientError as error:
            error.about(self._name, self._url)
            raise

    def stream(
        self,
        *arrays: Any,
        timeout_s: float | None = None,
        priority: int = 0,
        request_id: str = "",
        parameters: Mapping[str, Parameter] | None = None,
    ) -> Generator[Any, None, None]:
        """Run the model; gives each of its answers as soon as it comes, as `predict` returns the only one.

        for part in model.stream(prompt): ...

        A decoupled model gives any number of answers, others give one. The arguments are those of `predict`, and
        `timeout_s` is for the whole stream. Leaving the loop cancels the request on the server from Triton 2.59 on;
        before, its further answers are dropped; `contextlib.closing(model.stream(...))` leaves it at a known place. The
        server sends at most 1 MiB, or one answer, ahead of the loop.

        Raises `TransportError` over HTTP, and another `ClientError` where the model or the connection fails: answers
        before that have been given.
        """
        try:
            terms = self._terms.of_call(timeout_s, priority, request_id, parameters)
            checked = self.metadata.check(arrays, streams=True)
            for response in self._stream(self._run(self._exchange.stream(checked, terms))):
                yield answer(self.metadata, wire.answers(response))
        except ClientError as error:
            error.about(self._name, self._url)
            raise

    def sequence(self, sequence_id: Id | None = None) -> Sequence:
        """A sequence of requests to a model that keeps a state between them (see sequences.py).

        `sequence_id` is one that no other client uses; None draws one. Raises `InvalidInputError` for a model without
        sequence_batching.
        """
        return Sequence(self, sequence_id)

    def close(self) -> None:
        """Unregister the shared memory and end the connection; later calls raise `ClosedError`.

        Calls of other threads that are in flight raise it too from Triton 2.59 on, which survives their cancellation;
        before, and over HTTP, they are still answered. Waits up to 5 s for the answers to calls whose deadline has
        passed (see cancelling.py).
        """
        if self._process != os.getpid():
            return
        try:
            self._run(self._exchange.close())
        finally:
            self._process = 0
            self._connection.close()

    def _infer(self, arrays: Mapping[str, Array], terms: Terms) -> Mapping[str, Array]:
        direct = self._direct
        if direct and self._process == os.getpid() and (step := direct.direct(arrays, terms)):
            return direct.outputs(self._call(step))
        return self._run(self._exchange.infer(arrays, terms))

    def _run(self, steps: Steps[T]) -> T:
        if self._process != os.getpid():
            raise ClosedError(closed_message(self._name))
        return run(steps, self._call)

    def _stream(self, step: Step) -> Generator[Any, None, None]:
        try:
            with self._hooks.around(step):
                yield from cast("BlockingStreaming", self._connection).stream(step, self._name)
        except (ServerFailureError, ServerUnreachableError, ValueError) as error:
            if self._process != os.getpid():
                raise ClosedError(closed_message(self._name)) from error
            raise

    def _call(self, step: Step) -> Any:
        try:
            if self._has_hooks and step.method == "ModelInfer":
                with self._hooks.around(step):
                    return self._connection.call(step, self._name)
            return self._connection.call(step, self._name)
        except (ServerFailureError, ServerUnreachableError, ValueError) as error:
            # gRPC raises these for calls in flight on a channel that is closed, and for later ones.
            if self._process != os.getpid():
                raise ClosedError(closed_message(self._name)) from error
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def exchange(name: str, version: str, addresses: Addresses, transport: object, retries: Retries) -> Exchange | Replicas:
    """What carries the calls of a model: to one server, or to several."""
    if len(addresses.endpoints) > 1 or (addresses.is_name and isinstance(transport, str)):
        return Replicas(name, version, addresses, transport, retries)
    return Exchange(name, version, addresses.endpoints[0], transport)


def answer(metadata: Metadata, outputs: Mapping[str, Array]) -> Any:
    """The outputs in the configuration's order: one as it is, several as a tuple.

    Raises `ServerFailureError` if one is missing.
    """
    try:
        if len(metadata.outputs) == 1:
            return metadata.outputs[0].own_shape(outputs[metadata.outputs[0].name])
        return tuple([tensor.own_shape(outputs[tensor.name]) for tensor in metadata.outputs])
    except KeyError as error:
        missing = [tensor.name for tensor in metadata.outputs if tensor.name not in outputs]
        raise ServerFailureError(
            f"'{metadata.name}' answered without {missing}, which its configuration declares as output: a fault of the "
            "model. Let it set every declared output, or remove these from the configuration."
        ) from error


def closed_message(name: str) -> str:
    """The message for calls of a model that is closed."""
    return (
        f"'{name}' was closed, or was made by the process that this one was forked from. Make one in each process, "
        "and call it before it is closed."
    )
