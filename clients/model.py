"""A served model as a blocking function."""

import os
import threading
from collections.abc import Generator, Mapping
from types import TracebackType
from typing import Any, Self

from ._address import DEFAULT_URL, Tls, TransportName
from ._contract import Metadata
from ._inference import Inference
from ._options import CallOptions, Parameter
from ._steps import INFER, Step, Steps, T, run
from .errors import ClientError, ClosedError
from .hooks import EventHooks, Hooks
from .sequences import Id, Sequence
from .transport import CustomConnection, Transport

MOST_ANSWER_BYTES = 1 << 30


class Model:
    """One model on a server, called as a function; several threads may call it together.

    with Model("ranker", url="localhost") as model:
        scores = model.predict(features)

    Args:
        name: the model's name on the server.
        url: a host, which has Triton's ports 8000 for HTTP and 8001 for gRPC; or host:port of gRPC; or
            http://host:port, https://, grpc://, grpcs://; or one of HTTP and one of gRPC with a comma between them; or
            ipv4:A:PORT,B:PORT and dns:///host:port, over which gRPC spreads the calls.
        transport: "auto" sends small tensors over HTTP if `url` allows it, and large ones through shared memory if the
            server is on this machine, else over gRPC. "http", "grpc" and "shared_memory" are always that. Or an object
            of your own, see transport.py.
        version: the model's version; "" is the server's choice.
        timeout_s: the deadline in seconds of every call that sets none of its own.
        tls: the certificates.
        headers: HTTP headers or gRPC metadata of every call.
        hooks: functions called before and after every request, see hooks.py.
        max_answer_bytes: an answer with more bytes is refused.
        rows_may_differ: whether the model may answer another number of rows than it was asked.

    Raises `AddressError`, `InvalidInputError` for a header or a hook, `ServerUnreachableError`, `TlsError`,
    `AccessError`, `NotReadyError` and `TransportError`.
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
        tls: Tls | None = None,
        headers: Mapping[str, str] | None = None,
        hooks: Hooks | None = None,
        max_answer_bytes: int = MOST_ANSWER_BYTES,
        rows_may_differ: bool = False,
    ) -> None:
        self._name, self._url, self._process, self._options = name, url, os.getpid(), CallOptions(timeout_s=timeout_s)
        secured = {"tls": tls, "headers": headers}
        self._inference = Inference(name, str(version), url, transport, rows_may_differ=rows_may_differ, **secured)
        self._hooks = EventHooks(hooks, name, url)
        self._has_hooks, self._most_bytes = bool(self._hooks), max_answer_bytes
        self._connections: dict[str, Any] = {}
        self._connecting = threading.Lock()
        try:
            if not isinstance(transport, str):
                self._connections["custom"] = CustomConnection(transport, url, name, str(version))
            self.metadata = self._run(self._inference.open(self._options.timeout_s))
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
            options = self._options.of_call(timeout_s, priority, request_id, parameters)
            inputs = self._inference.check(arrays, options)
            step = self._inference.step(inputs, options)
            outputs = self._send(step) if step else self._run(self._inference.share(inputs, options))
            return self.metadata.answer(outputs, inputs.shape.rows)
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
        before, its further answers are dropped; `contextlib.closing(model.stream(...))` leaves it at a known place.

        Raises `TransportError` without an address of gRPC, and another `ClientError` where the model or the connection
        fails: answers before that have been given.
        """
        try:
            options = self._options.of_call(timeout_s, priority, request_id, parameters)
            inputs = self._inference.check(arrays, options, streams=True)
            step = self._run(self._inference.stream(inputs, options))
            with self._hooks.around(step):
                for outputs in self._connection(step.protocol).stream(step):
                    yield self.metadata.answer(outputs, None)
        except ClientError as error:
            error.about(self._name, self._url)
            raise

    def sequence(self, sequence_id: Id | None = None) -> Sequence:
        """A sequence of requests to a model that keeps a state between them (see sequences.py).

        `sequence_id` is one that no other client uses; None draws one. Raises `InvalidInputError` for a model without
        sequence_batching, and for several addresses.
        """
        self._inference.check_one_server()
        return Sequence(self, sequence_id)

    def close(self) -> None:
        """Unregister the shared memory and end the connections; later calls raise `ClosedError`.

        Calls of other threads that are in flight raise it too over gRPC from Triton 2.59 on, which survives their
        cancellation; before, and over HTTP, they are still answered. Before 2.59 it waits up to 5 s for calls in flight
        over gRPC (see _grpc.py).
        """
        if self._process != os.getpid():
            return
        try:
            self._run(self._inference.close())
        finally:
            self._process = 0
            for connection in self._connections.values():
                connection.close()

    def _run(self, steps: Steps[T]) -> T:
        return run(steps, self._send)

    def _send(self, step: Step) -> Any:
        connection = self._connection(step.protocol)
        if self._has_hooks and step.method == INFER:
            with self._hooks.around(step):
                return connection.send(step)
        return connection.send(step)

    def _connection(self, protocol: str) -> Any:
        if self._process != os.getpid():
            raise ClosedError(closed_message(self._name))
        return self._connections.get(protocol) or self._connect(protocol)

    def _connect(self, protocol: str) -> Any:
        """The connection for a protocol, made when it is first used."""
        address = self._inference.addresses[protocol]
        with self._connecting:
            if protocol not in self._connections:
                if protocol == "http":
                    from ._http import HttpConnection as Connection
                else:
                    from ._grpc import GrpcConnection as Connection  # type: ignore[assignment]
                self._connections[protocol] = Connection(address, self._name, self._most_bytes)
        return self._connections[protocol]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def closed_message(name: str) -> str:
    """The message for calls of a model that is closed."""
    return (
        f"'{name}' was closed, or was made by the process that this one was forked from. Make one in each process, "
        "and call it before it is closed."
    )
