"""A gRPC connection to a KServe v2 server, and the errors that it can end in.

ClientError                     base of them all
+-- AddressError                what was given is not host:port
+-- ServerUnreachableError  nothing answers at that address, or it is not ready
+-- RequestFailedError      the server answered with an error; the text is the server's
"""

import contextlib
from collections.abc import AsyncIterator, Mapping

import grpc
import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import InferInput
from tritonclient.grpc import aio as triton
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from export.terminal import Failure, Mistake

DEFAULT_URL = "localhost:8001"
UNREACHABLE = ("UNAVAILABLE", "DEADLINE_EXCEEDED")


class ClientError(Failure):
    """A call to the server did not bring an answer."""


class ServerUnreachableError(ClientError, Mistake):
    """Nothing serves at the address, or the model is not ready there: the user has to start it."""


class AddressError(ClientError, Mistake):
    """The address is not of the form host:port."""


class RequestFailedError(ClientError):
    """The server refused or failed this request; others are not affected."""


class Connection:
    """One asynchronous connection; requests on it may be in flight together."""

    def __init__(self, client: triton.InferenceServerClient, url: str) -> None:
        self._client, self._url = client, url

    async def infer(
        self, model: str, inputs: Mapping[str, NDArray[np.generic]], *, timeout_s: float | None = None
    ) -> dict[str, NDArray[np.generic]]:
        """Send one request of named arrays, get its outputs by name; raises a `ClientError`."""
        tensors = []
        for name, array in inputs.items():
            tensor = InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
            tensor.set_data_from_numpy(array)
            tensors.append(tensor)
        try:
            result = await self._client.infer(model, tensors, client_timeout=timeout_s)
        except InferenceServerException as error:
            raise self._explain(error, model) from error
        return {output.name: result.as_numpy(output.name) for output in result.get_response().outputs}

    async def check(self, model: str) -> None:
        """Raise `ServerUnreachableError` unless `model` is ready."""
        try:
            ready = await self._client.is_model_ready(model)
        except (InferenceServerException, grpc.RpcError) as error:
            raise self._explain(error, model) from error
        if not ready:
            raise ServerUnreachableError(
                f"{self._url}: the server runs but '{model}' is not ready there. Serve it: make serve MODEL={model}."
            )

    def _explain(self, error: Exception, model: str) -> ClientError:
        status = str(error.status()) if isinstance(error, InferenceServerException) else str(error)
        if any(code in status for code in UNREACHABLE):
            return ServerUnreachableError(
                f"{self._url}: no gRPC server answers there ({error}). Start one: make serve MODEL={model}; "
                "its gRPC port is not its HTTP port."
            )
        return RequestFailedError(f"{self._url}: '{model}' answered: {error}")


def channel_arguments(url: str) -> list[tuple[str, int]]:
    """gRPC's options for `host:port`: a proxy that the environment names is not asked for this machine itself."""
    here = url.rpartition(":")[0] in ("localhost", "127.0.0.1", "[::1]")
    return [("grpc.enable_http_proxy", 0)] if here else []


@contextlib.asynccontextmanager
async def connect(url: str = DEFAULT_URL) -> AsyncIterator[Connection]:
    """Open a connection to `host:port` (gRPC) and close it at the end; nothing is sent yet.

    Raises `AddressError` for anything else.
    """
    if "://" in url or not url.rpartition(":")[2].isdecimal():
        raise AddressError(f"{url}: not a gRPC address. Write host:port, for example {DEFAULT_URL}.")
    client = triton.InferenceServerClient(url, channel_args=channel_arguments(url))
    try:
        yield Connection(client, url)
    finally:
        await client.close()
