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
from clients.errors import (
    AddressError,
    ClientError,
    TimedOutError,
    explained,
    kind,
)
from clients.steps import Step, ending

DEFAULT_URL = "localhost:8001"
SERVICE = "/inference.GRPCInferenceService/"
# A server that restarts is back at once for a client that looks for it this often; gRPC alone would wait up to 120 s.
BACKOFF_MS = 100
# How long a call waits for a server that has gone, before it says so.
RECONNECT_S = 0.5
OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", BACKOFF_MS),
    ("grpc.min_reconnect_backoff_ms", BACKOFF_MS),
    ("grpc.max_reconnect_backoff_ms", BACKOFF_MS),
    # Each client has a connection of its own, so that one does not wait for the bytes of another.
    ("grpc.use_local_subchannel_pool", 1),
]
_ANSWERS = {
    "ModelInfer": service_pb2.ModelInferResponse,
    "ModelConfig": service_pb2.ModelConfigResponse,
    "ModelReady": service_pb2.ModelReadyResponse,
    "SystemSharedMemoryStatus": service_pb2.SystemSharedMemoryStatusResponse,
    "SystemSharedMemoryRegister": service_pb2.SystemSharedMemoryRegisterResponse,
    "SystemSharedMemoryUnregister": service_pb2.SystemSharedMemoryUnregisterResponse,
    "CudaSharedMemoryRegister": service_pb2.CudaSharedMemoryRegisterResponse,
    "CudaSharedMemoryUnregister": service_pb2.CudaSharedMemoryUnregisterResponse,
}


class BlockingConnection:
    """One connection for one thread at a time or several; made at once, connected with the first call."""

    def __init__(self, url: str) -> None:
        self.url = checked(url)
        self._channel = grpc.insecure_channel(url, OPTIONS + channel_arguments(url))
        self._calls = {
            method: self._channel.unary_unary(SERVICE + method, None, answer.FromString)
            for method, answer in _ANSWERS.items()
        }

    def call(self, step: Step, model: str) -> Any:
        """One call of the protocol about `model`; its parsed answer, or a `ClientError`."""
        call, ends = self._calls[step.method], step.ends or ending(step.timeout_s)
        request = wire.joined(step.message, step.tensors) if step.tensors else step.message
        try:
            return call(request, step.left_s())
        except grpc.RpcError as error:
            if not _never_sent(error):
                raise _explained(error, self.url, model, step.timeout_s) from error
        step = replace(step, ends=ends)
        ready = grpc.channel_ready_future(self._channel)
        try:
            ready.result(_shortest(step.left_s(), RECONNECT_S))
            return call(request, step.left_s())
        except grpc.FutureTimeoutError as error:
            raise explained("UNAVAILABLE", "connection refused", self.url, model, sent=False) from error
        except grpc.RpcError as error:
            raise _explained(error, self.url, model, step.timeout_s) from error
        finally:
            ready.cancel()  # or it watches the connection for as long as there is one

    def close(self) -> None:
        """End all calls and the connection."""
        self._channel.close()


class Connection:
    """One asynchronous connection; requests on it may be in flight together."""

    def __init__(self, url: str) -> None:
        self.url = checked(url)
        fork.check(url)
        self._channel = grpc.aio.insecure_channel(url, OPTIONS + channel_arguments(url))
        fork.note(self._channel)
        self._calls = {
            method: self._channel.unary_unary(SERVICE + method, None, answer.FromString)
            for method, answer in _ANSWERS.items()
        }

    async def call(self, step: Step, model: str) -> Any:
        """One call of the protocol about `model`; its parsed answer, or a `ClientError`.

        Cancelling the task cancels the call on the server.
        """
        call, ends = self._calls[step.method], step.ends or ending(step.timeout_s)
        request = wire.joined(step.message, step.tensors) if step.tensors else step.message
        try:
            return await call(request, timeout=step.left_s())
        except grpc.RpcError as error:
            if not _never_sent(error):
                raise _explained(error, self.url, model, step.timeout_s) from error
        step = replace(step, ends=ends)
        try:
            await asyncio.wait_for(self._channel.channel_ready(), _shortest(step.left_s(), RECONNECT_S))
            return await call(request, timeout=step.left_s())
        except TimeoutError as error:
            raise explained("UNAVAILABLE", "connection refused", self.url, model, sent=False) from error
        except grpc.RpcError as error:
            raise _explained(error, self.url, model, step.timeout_s) from error

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
            raise explained("UNAVAILABLE", "is not ready", self.url, model)

    async def close(self) -> None:
        """End all calls and the connection."""
        await self._channel.close()


def checked(url: str) -> str:
    """The address, when it is host:port; raises `AddressError` for anything else."""
    port = url.rpartition(":")[2]
    if "://" in url or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise AddressError(f"{url}: not an address. Write host:port, for example {DEFAULT_URL}.", url=url)
    return url


def channel_arguments(url: str) -> list[tuple[str, int]]:
    """gRPC's options for `host:port`: a proxy that the environment names is not asked for this machine itself."""
    here = url.rpartition(":")[0] in ("localhost", "127.0.0.1", "[::1]")
    return [("grpc.enable_http_proxy", 0)] if here else []


@contextlib.asynccontextmanager
async def connect(url: str = DEFAULT_URL) -> AsyncIterator[Connection]:
    """Open a connection to `host:port` (gRPC) and close it at the end; nothing is sent yet.

    Raises `AddressError` for anything else.
    """
    connection = Connection(url)
    try:
        yield connection
    finally:
        await connection.close()


def _never_sent(error: grpc.RpcError) -> bool:
    """Whether no connection could be made, so that the request cannot have reached a server."""
    return error.code() is grpc.StatusCode.UNAVAILABLE and "failed to connect" in (error.details() or "")


def _explained(error: grpc.RpcError, url: str, model: str, timeout_s: float | None) -> ClientError:
    status, text = error.code().name, error.details() or ""
    if kind(status, text) is TimedOutError and status == "DEADLINE_EXCEEDED":
        text = f"no answer within {timeout_s} s"
    return explained(status, text, url, model, sent=not _never_sent(error))


def _shortest(*seconds: float | None) -> float:
    return min(second for second in seconds if second is not None)
