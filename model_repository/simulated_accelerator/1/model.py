"""Simulates a model on an accelerator: each execution sleeps `fixed_ms + row_ms x rows` on any CPU.

Each output row has the mean of its input row, so that a client can check that an answer belongs to its request.
"""

import json
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from batch_policy import create
from policy_loop import PolicyLoop
from policy_metrics import PolicyMetrics
from policy_settings import PolicySettings
from queue_limit import QueueLimit


class TritonPythonModel:
    """One simulated device; two instances are two devices."""

    def initialize(self, args: dict[str, str]) -> None:
        """Read the configuration's parameters: `fixed_ms`, `row_ms` (milliseconds) and those of README.md."""
        config = json.loads(args["model_config"])
        parameters = {key: value["string_value"] for key, value in config["parameters"].items()}
        self._fixed, self._row = float(parameters["fixed_ms"]) / 1e3, float(parameters["row_ms"]) / 1e3
        self._row_after = float(parameters.get("row_ms_after", parameters["row_ms"])) / 1e3
        self._left = int(parameters.get("after_executions", 0))
        self._input, self._output = config["input"][0]["name"], config["output"][0]["name"]
        self._dims = tuple(int(dim) for dim in config["output"][0]["dims"])
        try:
            settings = PolicySettings.of(config)
            self._limit = QueueLimit.of(config, args, pb_utils)
        except ValueError as error:
            raise pb_utils.TritonModelException(str(error)) from error
        self._loop: PolicyLoop | None = None
        if settings:
            metrics = PolicyMetrics.of(settings, args, pb_utils)
            self._loop = PolicyLoop(settings, create(settings), self._answers, args, pb_utils, metrics)

    def execute(self, requests: Sequence[Any]) -> list[Any] | None:
        """Answer every request of the batch, now or in the policy's batches."""
        if self._limit and not self._loop:
            return self._limit.apply(requests, self._answers)
        return self._loop.take(requests) if self._loop else self._answers(requests)

    def finalize(self) -> None:
        """Answer the requests that still wait."""
        if self._loop:
            self._loop.end()

    def _answers(self, requests: Sequence[Any]) -> list[Any]:
        """Sleep once for the whole batch."""
        start = time.perf_counter()
        pictures = [pb_utils.get_input_tensor_by_name(request, self._input).as_numpy() for request in requests]
        answers = [self._answer(picture) for picture in pictures]
        # The time of this function is part of the simulated time.
        # doctor: ignore=M818 the sleep is the simulated accelerator.
        time.sleep(max(0.0, self._seconds(sum(map(len, pictures))) - (time.perf_counter() - start)))
        return answers

    def _seconds(self, rows: int) -> float:
        """The time of this execution; after `after_executions` executions rows take `row_ms_after`."""
        self._left -= 1
        return self._fixed + (self._row if self._left >= 0 else self._row_after) * rows

    def _answer(self, picture: Any) -> Any:
        means = picture.reshape(len(picture), -1).mean(axis=1)
        result = np.broadcast_to(means.reshape(-1, *(1 for _ in self._dims)), (len(picture), *self._dims))
        return pb_utils.InferenceResponse([pb_utils.Tensor(self._output, np.ascontiguousarray(result))])
