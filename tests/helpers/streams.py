"""Requests over one gRPC stream: tritonserver takes them in the order of sending, without gaps."""

import queue
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from numpy.typing import NDArray
from tritonclient.utils import np_to_triton_dtype

from serve.management.statistics import Counters

Tensors = Mapping[str, NDArray[np.generic]]
TIMEOUT_S = 20.0


def counted(url: str, model: str, *, executions: int) -> Counters:
    """Return the server's counters once they show `executions`; the server answers before it counts."""
    end = time.monotonic() + TIMEOUT_S
    while (counters := Counters.read(url, model)).executions < executions and time.monotonic() < end:
        time.sleep(0.01)
    return counters


class Stream:
    """One open stream to `url`; each call of `send` sends all its requests and waits for the answers."""

    def __init__(self, url: str) -> None:
        self._client = triton.InferenceServerClient(url)
        self._answers: queue.Queue[tuple[object, object]] = queue.Queue()
        self._client.start_stream(lambda result, error: self._answers.put((result, error)))

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None:
        self._client.stop_stream()
        self._client.close()

    def send(
        self, model: str, requests: Sequence[Tensors], **options: Any
    ) -> list[dict[str, NDArray[np.generic]] | str]:
        """Return the outputs of each request, or the server's error message, in the order of the requests.

        `options` go to `async_stream_infer`: priority, timeout (us), sequence_id.
        """
        for index, request in enumerate(requests):
            tensors = []
            for name, array in request.items():
                tensor = triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
                tensor.set_data_from_numpy(array)
                tensors.append(tensor)
            self._client.async_stream_infer(model, tensors, request_id=str(index), **options)
        answers: dict[int, dict[str, NDArray[np.generic]] | str] = {}
        unnamed = []
        for _ in requests:
            result, error = self._answers.get(timeout=TIMEOUT_S)
            if isinstance(result, triton.InferResult):
                response = result.get_response()
                answers[int(response.id)] = {output.name: result.as_numpy(output.name) for output in response.outputs}
            else:
                unnamed.append(str(error))  # the client drops the id of a failed request
        failed = [index for index in range(len(requests)) if index not in answers]
        return [answers.get(index) or unnamed[failed.index(index)] for index in range(len(requests))]
