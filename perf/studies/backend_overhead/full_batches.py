"""The rows of an array as inputs in system shared memory, for a server on this machine.

`full_batches` sends all rows together. With `max_batch_size: N` and a long queue delay the server runs a batch when it
has N rows, and never before.
"""

import contextlib
import queue
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from numpy.typing import NDArray
from tritonclient.utils import np_to_triton_dtype, shared_memory

from perf.load.address import channel_arguments
from serve.management import admin

TIMEOUT_S = 60.0


@contextlib.contextmanager
def shared_rows(
    client: triton.InferenceServerClient, name: str, batch: NDArray[Any], headers: Mapping[str, str]
) -> Iterator[list[triton.InferInput]]:
    """Each row of `batch` (rows, ...) as input `name` of shape (1, ...); the region is removed at the end.

    `headers` are the HTTP headers that the server demands for registering a region.
    """
    region = f"triton_batching_client_{uuid.uuid4().hex[:12]}"
    handle = shared_memory.create_shared_memory_region(region, f"/{region}", batch.nbytes)
    try:
        shared_memory.set_shared_memory_region(handle, [np.ascontiguousarray(batch)])
        client.register_system_shared_memory(region, f"/{region}", batch.nbytes, headers=headers)
        inputs = []
        for row in range(len(batch)):
            tensor = triton.InferInput(name, [1, *batch.shape[1:]], np_to_triton_dtype(batch.dtype))
            tensor.set_shared_memory(region, batch[0].nbytes, offset=row * batch[0].nbytes)
            inputs.append(tensor)
        yield inputs
        # The server refuses this while requests are in flight, so it is left out after an error.
        client.unregister_system_shared_memory(region, headers=headers)
    finally:
        shared_memory.destroy_shared_memory_region(handle)


class FullBatches:
    """Sends all rows together, as one request each, to models with input `x` and output `y`."""

    def __init__(self, client: triton.InferenceServerClient, inputs: list[triton.InferInput]) -> None:
        self._client, self._inputs = client, inputs

    def send(self, model: str) -> list[NDArray[Any]]:
        """Run one full batch; returns its answers in any order.

        Raises the server's error if a request fails and `queue.Empty` if one is not answered in time.
        """
        answered: queue.Queue[tuple[Any, Any]] = queue.Queue()
        for tensor in self._inputs:
            self._client.async_infer(model, [tensor], callback=lambda result, error: answered.put((result, error)))
        return [_answer(*answered.get(timeout=TIMEOUT_S)) for _ in self._inputs]


def _answer(result: Any, error: Any) -> NDArray[Any]:
    if error is not None:
        raise error
    output: NDArray[Any] = result.as_numpy("y")
    return output


@contextlib.contextmanager
def full_batches(url: str, batch: NDArray[Any]) -> Iterator[FullBatches]:
    """Share `batch` with the server at `host:port` (gRPC), on this machine."""
    with (
        triton.InferenceServerClient(url, channel_args=channel_arguments(url)) as client,
        shared_rows(client, "x", batch, admin.headers(url)) as inputs,
    ):
        yield FullBatches(client, inputs)
