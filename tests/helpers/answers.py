"""Requests that one client sends without waiting, and their answers in the same order."""

import threading
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import np_to_triton_dtype

from perf.load.address import channel_arguments

Array = np.ndarray[Any, Any]
TIMEOUT_S = 30.0


class Answers:
    """The requests to one model; `calls` has what each one can be cancelled with."""

    def __init__(self, url: str, model: str) -> None:
        self._client = triton.InferenceServerClient(url, channel_args=channel_arguments(url))
        self._model = model
        self.calls: list[Any] = []
        self._answers: dict[int, dict[str, Array] | str] = {}
        self._more = threading.Condition()

    def __enter__(self) -> "Answers":
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def send(self, request: dict[str, Array], *, timeout_ms: int = 0) -> None:
        """Send one request: arrays by the names of its inputs; the timeout is Triton's, not the connection's."""
        number, tensors = len(self.calls), []
        for name, array in request.items():
            tensor = triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
            tensors.append(tensor.set_data_from_numpy(array))

        def answered(result: Any, error: Any) -> None:
            with self._more:
                assert number not in self._answers
                names = [] if error else [output.name for output in result.get_response().outputs]
                self._answers[number] = str(error) if error else {name: result.as_numpy(name) for name in names}
                self._more.notify()

        self.calls.append(self._client.async_infer(self._model, tensors, answered, timeout=1000 * timeout_ms or None))

    def all(self) -> list[dict[str, Array] | str]:
        """The outputs of each request by name, or its error, in the order of the requests."""
        with self._more:
            complete = self._more.wait_for(lambda: len(self._answers) == len(self.calls), TIMEOUT_S)
        assert complete, f"{len(self._answers)} of {len(self.calls)} requests were answered within {TIMEOUT_S} s"
        return [self._answers[number] for number in range(len(self.calls))]
