"""A connection to a KServe v2 server over gRPC: blocking, or asynchronous with many calls in flight together."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio
import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2

from clients import fork, wire
from clients.cancelling import BlockingCalls, Calls, survives
from clients.endpoint import Endpoint, Options
from clients.errors import (
    AccessError,
    AddressError,
    ClientError,
    InvalidInputError,
    ServerFailureError,
    ServerUnreachableError,
    TimedOutError,
    TlsError,
    explained,
    kind,
)
from clients.in_flight import InFlight
from clients.steps import Step, ending

DEFAULT_URL = "localhost:8001"
SERVICE = "/inference.GRPCInferenceService/"
# A server that restarts is back at once for a client that looks for it this often; gRPC alone would wait up to 120 s.
BACKOFF_MS = 100
# How long a call waits for a server that has gone, before it says so.
RECONNECT_S = 0.5
# gRPC takes its least backoff for the longest time that connecting may take too. With 100 ms a server 300 ms away could
# not be reached at all, nor one on a busy machine.
CONNECT_MS = 5000
OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", BACKOFF_MS),
    ("grpc.min_reconnect_backoff_ms", CONNECT_MS),
    ("grpc.max_reconnect_backoff_ms", BACKOFF_MS),
    # Each client has a connection of its own, so that one does not wait for the bytes of another.
    ("grpc.use_local_subchannel_pool", 1),
]
_ANSWERS = {
    "ServerMetadata": service_pb2.ServerMetadataResponse,
    "ModelInfer": service_pb2.ModelInferResponse,
    "ModelConfig": service_pb2.ModelConfigResponse,
    "ModelReady": service_pb2.ModelReadyResponse,
    "SystemSharedMemoryStatus": service_pb2.SystemSharedMemoryStatusResponse,
    "SystemSharedMemoryRegister": service_pb2.SystemSharedMemoryRegisterResponse,
    "SystemSharedMemoryUnregister": service_pb2.SystemSharedMemoryUnregisterResponse,
    "CudaSharedMemoryRegister": service_pb2.CudaSharedMemoryRegisterResponse,
    "CudaSharedMemoryUnregister": service_pb2.CudaSharedMemoryUnregisterResponse,
}
_NEVER_SENT = ("failed to connect", "errors resolving", "DNS resolution failed")
# Servers that do not tell their version are treated as old ones.
_WITHOUT_VERSION = (AccessError, InvalidInputError, ServerFailureError)


class BlockingConnection:
    """One connection for one thread at a time or several; made at once, connected with the first call.

    Cancellations and deadlines are kept from the server until `ask_version` finds that it survives them.
    """

    def __init__(self, url: str | Endpoint) -> None:
        self.endpoint = Endpoint.of(url)
        self.endpoint.over("grpc")  # refuses an HTTP address
        fork.check(self.endpoint.url)
        self._channel = self.endpoint.channel(OPTIONS)
        self._detached, self._cancels = BlockingCalls(self._channel), False
        self._calls = {
            method: self._channel.unary_unary(SERVICE + method, None, answer.FromString)
            for method, answer in _ANSWERS.items()
        }

    def call(self, step: Step, model: str) -> Any:
        """One call of the protocol about `model`; its parsed answer, or a `ClientError`."""
        request = wire.joined(step.message, step.tensors) if step.tensors else step.message
        step = replace(step, ends=step.ends or ending(step.timeout_s))
        try:
            return self._once(step, request)
        except TimeoutError as error:
            raise late(step, self.endpoint.url, model) from error
        except grpc.RpcError as error:
            first = _explained(error, self.endpoint, model, step.timeout_s)
            if not _never_sent(error) or isinstance(first, TlsError):
                raise first from error
        ready = grpc.channel_ready_future(self._channel)
        try:
            ready.result(_shortest(step.left_s(), RECONNECT_S))
            return self._once(step, request)
        except grpc.FutureTimeoutError as error:
            raise first from error
        except TimeoutError as error:
            raise late(step, self.endpoint.url, model) from error
        except grpc.RpcError as error:
            raise _explained(error, self.endpoint, model, step.timeout_s) from error
        finally:
            ready.cancel()  # or it watches the connection for as long as there is one

    def _once(self, step: Step, request: bytes) -> Any:
        call, metadata = self._calls[step.method], self.endpoint.metadata(step.method)
        if self._cancels or step.method != "ModelInfer":
            return call(request, step.left_s(), metadata)
        return self._detached.call(call, request, step.left_s(), metadata)

    def ask_version(self, model: str, timeout_s: float | None) -> None:
        """Ask whether the server survives cancellations; raises `ServerUnreachableError`, or `TimedOutError`."""
        with contextlib.suppress(*_WITHOUT_VERSION):
            self._cancels = survives(self.call(_asking(timeout_s), model).version)

    def close(self) -> None:
        """End the connection; where the server would not survive that, when the calls in flight are answered."""
        (self._channel if self._cancels else self._detached).close()


class Connection:
    """One asynchronous connection; requests on it may be in flight together.

    Cancellations and deadlines are kept from the server until `ask_version` finds that it survives them. What goes on
    after its caller has left counts in `in_flight`.
    """

    def __init__(self, url: str | Endpoint, in_flight: InFlight | None = None) -> None:
        self.endpoint = Endpoint.of(url)
        self.endpoint.over("grpc")
        fork.check(self.endpoint.url)
        self._channel = self.endpoint.aio_channel(OPTIONS)
        fork.note(self._channel)
        self._detached, self._cancels = Calls(self._channel, in_flight), False
        self._calls = {
            method: self._channel.unary_unary(SERVICE + method, None, answer.FromString)
            for method, answer in _ANSWERS.items()
        }

    async def call(self, step: Step, model: str) -> Any:
        """One call of the protocol about `model`; its parsed answer, or a `ClientError`.

        Cancelling the task cancels the call on the server if that survives it; otherwise its answer is dropped.
        """
        request = wire.joined(step.message, step.tensors) if step.tensors else step.message
        step = replace(step, ends=step.ends or ending(step.timeout_s))
        try:
            return await self._once(step, request)
        except TimeoutError as error:
            raise late(step, self.endpoint.url, model) from error
        except grpc.RpcError as error:
            first = _explained(error, self.endpoint, model, step.timeout_s)
            if not _never_sent(error) or isinstance(first, TlsError):
                raise first from error
        try:
            await asyncio.wait_for(self._channel.channel_ready(), _shortest(step.left_s(), RECONNECT_S))
        except TimeoutError as error:
            raise first from error
        try:
            return await self._once(step, request)
        except TimeoutError as error:
            raise late(step, self.endpoint.url, model) from error
        except grpc.RpcError as error:
            raise _explained(error, self.endpoint, model, step.timeout_s) from error

    async def _once(self, step: Step, request: bytes) -> Any:
        call, metadata = self._calls[step.method], self.endpoint.metadata(step.method)
        if self._cancels or step.method != "ModelInfer":
            return await call(request, timeout=step.left_s(), metadata=metadata)
        return await self._detached.call(call, request, step.left_s(), metadata)

    async def ask_version(self, model: str, timeout_s: float | None) -> None:
        """Ask whether the server survives cancellations; raises `ServerUnreachableError`, or `TimedOutError`."""
        with contextlib.suppress(*_WITHOUT_VERSION):
            self._cancels = survives((await self.call(_asking(timeout_s), model)).version)

    async def infer(
        self, model: str, inputs: Mapping[str, NDArray[np.generic]], *, timeout_s: float | None = None
    ) -> dict[str, NDArray[np.generic]]:
        """Send one request of named arrays as they are, get its outputs by name; raises a `ClientError`."""
        head = wire.head(model, "", ((name, wire.datatype(array), array.shape) for name, array in inputs.items()))
        step = Step("ModelInfer", head, [wire.contents(array) for array in inputs.values()], timeout_s)
        return wire.answers(await self.call(step, model))

    async def check(self, model: str) -> None:
        """Raise `NotReadyError` unless `model` is ready, `ServerUnreachableError` when no server is there."""
        request = service_pb2.ModelReadyRequest(name=model).SerializeToString()
        if not (await self.call(Step("ModelReady", request), model)).ready:
            raise explained("UNAVAILABLE", "is not ready", self.endpoint.url, model)

    async def close(self) -> None:
        """End all calls and the connection; where the server would not survive that, when they are answered."""
        await (self._channel if self._cancels else self._detached).close()


def checked(url: str) -> str:
    """The address, when it is host:port without a scheme; raises `AddressError` for anything else."""
    if Endpoint.of(url).http is not None:
        raise AddressError(f"{url}: not host:port. Write it without a scheme, for example {DEFAULT_URL}.", url=url)
    return url


def channel_arguments(url: str) -> Options:
    """gRPC's options for tritonclient's own client of the server at `url`; raises `AddressError`."""
    return Endpoint.of(url).proxy()


@contextlib.asynccontextmanager
async def connect(url: str = DEFAULT_URL) -> AsyncIterator[Connection]:
    """Open a connection to a gRPC address and close it at the end; nothing is sent yet. Raises `AddressError`."""
    connection = Connection(url)
    try:
        yield connection
    finally:
        await connection.close()


def _never_sent(error: grpc.RpcError) -> bool:
    """Whether no connection could be made, so that the request cannot have reached a server."""
    text = error.details() or ""
    return error.code() is grpc.StatusCode.UNAVAILABLE and any(words in text for words in _NEVER_SENT)


def late(step: Step, url: str, model: str) -> ClientError:
    """The error for a step whose time is over."""
    return explained("DEADLINE_EXCEEDED", f"no answer within {step.timeout_s} s", url, model)


def _explained(error: grpc.RpcError, endpoint: Endpoint, model: str, timeout_s: float | None) -> ClientError:
    status, text = error.code().name, error.details() or ""
    if kind(status, text) is TimedOutError and status == "DEADLINE_EXCEEDED":
        text = f"no answer within {timeout_s} s"
    closed, sent = "Socket closed" in text, not _never_sent(error)
    told: dict[str, Any] = {"status": status, "text": text, "model": model, "url": endpoint.url}
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
            **told,
        )
    if not sent and closed:
        return ServerUnreachableError(
            f"{endpoint.url}: what is there closes plain gRPC connections ({text}). If it speaks TLS, write "
            "grpcs://; if this is the HTTP port, give the gRPC port.",
            **told,
        )
    if not sent and "onnection refused" in text:
        text = "connection refused"
    return explained(status, text, endpoint.url, model, sent=sent)


def _asking(timeout_s: float | None) -> Step:
    return Step("ServerMetadata", b"", timeout_s=timeout_s)


def _shortest(*seconds: float | None) -> float:
    return min(second for second in seconds if second is not None)
