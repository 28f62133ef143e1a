"""A connection that sends arrays as they are: what does not fit a model is refused by the server, not by the client."""

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import numpy as np
import tritonclient.grpc.aio as triton
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from clients.errors import explained
from perf.load.address import channel_arguments


class Connection:
    """tritonclient's own client; its errors become those of ours."""

    def __init__(self, url: str) -> None:
        self.url, self.client = url, triton.InferenceServerClient(url, channel_args=channel_arguments(url))

    async def infer(self, model: str, inputs: Mapping[str, NDArray[Any]], **_: Any) -> dict[str, NDArray[np.generic]]:
        """The outputs by name; raises a `ClientError`. No time limit is sent: 2.51 would not survive it."""
        tensors = []
        for name, array in inputs.items():
            tensor = triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
            tensors.append(tensor.set_data_from_numpy(array))
        try:
            answer = await self.client.infer(model, tensors)
        except InferenceServerException as error:
            status = (error.status() or "").removeprefix("StatusCode.")
            raise explained(status, error.message(), self.url, model) from error
        return {output.name: answer.as_numpy(output.name) for output in answer.get_response().outputs}

    async def check(self, model: str) -> None:
        """Fail unless `model` is ready."""
        assert await self.client.is_model_ready(model)


@contextlib.asynccontextmanager
async def connect(url: str) -> AsyncIterator[Connection]:
    """A connection to a gRPC address, closed at the end."""
    connection = Connection(url)
    yield connection
    await connection.client.close()
