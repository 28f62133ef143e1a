"""A connection to a KServe v2 server over gRPC: blocking, or for asyncio with many calls in flight together."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Generator, Mapping
from functools import partial
from typing import Any

import grpc
import grpc.aio
import numpy as np
from numpy.typing import NDArray

from . import fork, wire
from . import protocol as pb
from .cancelling import BlockingCalls, Calls, survives
from .endpoint import DEFAULT_URL, Endpoint, Options
from .errors import (
    AddressError,
    ClientError,
    ServerUnreachableError,
    TimedOutError,
    TlsError,
    explained,
    kind,
    timed_out,
)
from .in_flight import InFlight
from .steps import Step, deadline_after, run, run_async

SERVICE = "/inference.GRPCInferenceService/"
BACKOFF_MS = 100
"""How often a client looks for a server that is gone; by default gRPC waits up to 120 s between attempts."""

RECONNECT_S = 0.5
"""How long a call waits for a server that is gone."""

CONNECT_MS = 5000
"""How long one attempt to connect may take. gRPC's default is its least backoff: with 100 ms a server 300 ms away, or
on a busy machine, could not be reached."""

KEEPALIVE_MS = 330_000
"""How long a connection with calls in flight may be silent before gRPC sends a ping. Servers close the connection of a
client that sends them more often than every 300 s."""

KEEPALIVE_TIMEOUT_MS = 20_000
"""How long the answer to a ping, or the acknowledgement of sent bytes, may take before the host counts as gone."""

OPTIONS: Options = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", BACKOFF_MS),
    ("grpc.min_reconnect_backoff_ms", CONNECT_MS),
    ("grpc.max_reconnect_backoff_ms", BACKOFF_MS),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    # Without it the answer to a ping may take 60 s.
    ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    # Each client has a connection of its own, so that one does not wait for the bytes of another.
    ("grpc.use_local_subchannel_pool", 1),
]
_METHODS = (
    "ServerMetadata",
    "ModelInfer",
    "ModelConfig",
    "ModelReady",
    "SystemSharedMemoryStatus",
    "SystemSharedMemoryRegister",
    "SystemSharedMemoryUnregister",
    "CudaSharedMemoryRegister",
    "CudaSharedMemoryUnregister",
)
_NEVER_SENT = ("failed to connect", "errors resolving", "DNS resolution failed")


class _Channel:
    """What both connections share: the order of attempts, and their errors.

    Cancellations and deadlines are kept from the server until its answer to ServerMetadata shows that it survives them.
    """

    _channel: Any
    _detached: Any

    def __init__(self, url: str | Endpoint, reconnect_s: float) -> None:
        self.endpoint = Endpoint.of(url)
        self.endpoint.over("grpc")  # raises for an HTTP address
        fork.check(self.endpoint.url)
        self._cancels, self._reconnect_s = False, reconnect_s

    def _open(self, library: Any) -> None:
        """Make the channel with `grpc` or `grpc.aio`."""
        endpoint, options = self.endpoint, OPTIONS + self.endpoint.proxy() + self.endpoint.authority()
        if endpoint.tls:
            credentials = grpc.ssl_channel_credentials(*endpoint.tls.contents())
            self._channel = library.secure_channel(endpoint.target, credentials, options)
        else:
            self._channel = library.insecure_channel(endpoint.target, options)
        self._calls = {
            method: self._channel.unary_unary(SERVICE + method, None, getattr(pb, f"{method}Response").FromString)
            for method in _METHODS
        }

    def _attempts(self, step: Step, model: str) -> Generator[Callable[[], Any], Any, Any]:
        """Call once; if no connection could be made, wait shortly for one and call again. Returns the answer.

        Yields functions to call, or to call and await. Raises a `ClientError`.
        """
        step = step._replace(deadline=step.deadline or deadline_after(step.timeout_s))
        body, url = step.body(), self.endpoint.url
        try:
            try:
                answer = yield partial(self._once, step, body)
            except grpc.RpcError as error:
                first = _explained(error, self.endpoint, model, step.timeout_s)
                if not self._reconnect_s or not _never_sent(error) or isinstance(first, TlsError):
                    raise first from error
                left_s = step.left_s()
                try:
                    yield partial(self._ready, self._reconnect_s if left_s is None else min(left_s, self._reconnect_s))
                except TimeoutError as timeout:
                    raise first from timeout
                answer = yield partial(self._once, step, body)
        except TimeoutError as error:
            raise timed_out(step.timeout_s, url, model) from error
        except grpc.RpcError as error:
            raise _explained(error, self.endpoint, model, step.timeout_s) from error
        if step.method == "ServerMetadata":
            self._cancels = survives(answer.version)
        return answer

    def _once(self, step: Step, body: bytes) -> Any:
        raise NotImplementedError

    def _ready(self, seconds: float) -> Any:
        raise NotImplementedError


class BlockingConnection(_Channel):
    """A connection that several threads may use together; made at once, connected with the first call.

    A call waits `reconnect_s` for a server that is gone.
    """

    def __init__(self, url: str | Endpoint, *, reconnect_s: float = RECONNECT_S) -> None:
        super().__init__(url, reconnect_s)
        self._open(grpc)
        self._detached = BlockingCalls(self._channel)

    def call(self, step: Step, model: str) -> Any:
        """Make one call of the protocol about `model`; returns the parsed answer, raises a `ClientError`."""
        return run(self._attempts(step, model), lambda attempt: attempt())

    def _once(self, step: Step, body: bytes) -> Any:
        call, metadata = self._calls[step.method], self.endpoint.metadata(step.method)
        if self._cancels or step.method != "ModelInfer":
            return call(body, step.left_s(), metadata)
        return self._detached.call(call, body, step.left_s(), metadata)

    def _ready(self, seconds: float) -> None:
        """Wait for the channel; raises `TimeoutError`."""
        ready = grpc.channel_ready_future(self._channel)
        try:
            ready.result(seconds)
        except grpc.FutureTimeoutError as error:
            raise TimeoutError from error
        finally:
            ready.cancel()  # otherwise it watches the channel for as long as that exists

    def close(self) -> None:
        """End the connection; if the server would not survive that, only when the calls in flight are answered."""
        (self._channel if self._cancels else self._detached).close()


class Connection(_Channel):
    """A connection for asyncio. A call that goes on after its caller has left counts in `in_flight`."""

    def __init__(
        self, url: str | Endpoint, in_flight: InFlight | None = None, *, reconnect_s: float = RECONNECT_S
    ) -> None:
        super().__init__(url, reconnect_s)
        self._open(grpc.aio)
        fork.note(self._channel)
        self._detached = Calls(self._channel, in_flight)

    async def call(self, step: Step, model: str) -> Any:
        """Make one call of the protocol about `model`; returns the parsed answer, raises a `ClientError`.

        Cancelling the task cancels the call on the server if that survives it; otherwise its answer is dropped.
        """
        return await run_async(self._attempts(step, model), lambda attempt: attempt())

    async def _once(self, step: Step, body: bytes) -> Any:
        call, metadata = self._calls[step.method], self.endpoint.metadata(step.method)
        if self._cancels or step.method != "ModelInfer":
            return await call(body, timeout=step.left_s(), metadata=metadata)
        return await self._detached.call(call, body, step.left_s(), metadata)

    async def _ready(self, seconds: float) -> None:
        """Wait for the channel; raises `TimeoutError`."""
        await asyncio.wait_for(self._channel.channel_ready(), seconds)

    async def infer(
        self, model: str, inputs: Mapping[str, NDArray[np.generic]], *, timeout_s: float | None = None
    ) -> dict[str, NDArray[np.generic]]:
        """Send arrays by input name, unchecked; returns the outputs by name, raises a `ClientError`."""
        head = wire.head(model, "", ((name, wire.datatype(array), array.shape) for name, array in inputs.items()))
        step = Step("ModelInfer", head, [wire.contents(array) for array in inputs.values()], timeout_s)
        return wire.answers(await self.call(step, model))

    async def check(self, model: str) -> None:
        """Raise `NotReadyError` unless `model` is ready, `ServerUnreachableError` if no server is there."""
        request = pb.ModelReadyRequest(name=model).SerializeToString()
        if not (await self.call(Step("ModelReady", request), model)).ready:
            raise explained("UNAVAILABLE", "is not ready", self.endpoint.url, model)

    async def close(self) -> None:
        """End all calls and the connection; if the server would not survive that, when they are answered."""
        await (self._channel if self._cancels else self._detached).close()


def checked(url: str) -> str:
    """The address if it is host:port without a scheme; raises `AddressError` otherwise."""
    if Endpoint.of(url).http is not None:
        raise AddressError(f"{url}: not host:port. Write it without a scheme, for example {DEFAULT_URL}.", url=url)
    return url


def channel_arguments(url: str) -> Options:
    """gRPC's options for tritonclient's own client of the server at `url`; raises `AddressError`."""
    return Endpoint.of(url).proxy()


@contextlib.asynccontextmanager
async def connect(url: str = DEFAULT_URL) -> AsyncIterator[Connection]:
    """A connection to a gRPC address, closed at the end; nothing is sent yet. Raises `AddressError`."""
    connection = Connection(url)
    try:
        yield connection
    finally:
        await connection.close()


def _never_sent(error: grpc.RpcError) -> bool:
    """Whether no connection could be made, so that the request cannot have reached a server."""
    text = error.details() or ""
    return error.code() is grpc.StatusCode.UNAVAILABLE and any(words in text for words in _NEVER_SENT)


def _explained(error: grpc.RpcError, endpoint: Endpoint, model: str, timeout_s: float | None) -> ClientError:
    status, text = error.code().name, error.details() or ""
    if kind(status, text) is TimedOutError and status == "DEADLINE_EXCEEDED":
        text = f"no answer within {timeout_s} s"
    closed, sent = "Socket closed" in text, not _never_sent(error)
    attributes: dict[str, Any] = {"status": status, "text": text, "model": model, "url": endpoint.url}
    if not sent and endpoint.tls and (closed or "andshake" in text or "erification" in text):
        return TlsError(
            f"{endpoint.url}: no TLS connection: {text}. "
            + (
                "The server closed it: it may ask for a client certificate that it trusts (tls=Tls(certificate=..., "
                "key=...)), or not speak TLS."
                if closed
                else "Give the certificate that signed the server's, as tls=Tls(ca=...), and the name that is in the "
                "server's; for a server without TLS write grpc://."
            ),
            **attributes,
        )
    if not sent and closed:
        return ServerUnreachableError(
            f"{endpoint.url}: what is there closes plain gRPC connections ({text}). If it speaks TLS, write "
            "grpcs://; if this is the HTTP port, give the gRPC port.",
            **attributes,
        )
    if not sent and "onnection refused" in text:
        text = "connection refused"
    return explained(status, text, endpoint.url, model, sent=sent)
