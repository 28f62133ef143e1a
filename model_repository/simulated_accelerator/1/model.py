"""A stand-in for a model on an accelerator: each execution sleeps `fixed_ms + row_ms x rows`, whatever the CPU is.

Each output row holds the mean of its input row, so that a client can prove that its answer is its own.
"""

import json
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """One simulated device; two instances are two devices."""

    def initialize(self, args: dict[str, str]) -> None:
        """Read `fixed_ms` and `row_ms` (milliseconds) from the configuration's parameters."""
        config = json.loads(args["model_config"])
        parameters = config["parameters"]
        self._fixed = float(parameters["fixed_ms"]["string_value"]) / 1e3
        self._row = float(parameters["row_ms"]["string_value"]) / 1e3
        self._input, self._output = config["input"][0]["name"], config["output"][0]["name"]
        self._dims = tuple(int(dim) for dim in config["output"][0]["dims"])

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Sleep once for the whole batch, then answer every request."""
        start = time.perf_counter()
        pictures = [pb_utils.get_input_tensor_by_name(request, self._input).as_numpy() for request in requests]
        answers = [self._answer(picture) for picture in pictures]
        rows = sum(len(picture) for picture in pictures)
        # What this function itself took is part of the simulated time.
        time.sleep(max(0.0, self._fixed + self._row * rows - (time.perf_counter() - start)))
        return answers

    def _answer(self, picture: Any) -> Any:
        means = picture.reshape(len(picture), -1).mean(axis=1)
        result = np.broadcast_to(means.reshape(-1, *(1 for _ in self._dims)), (len(picture), *self._dims))
        return pb_utils.InferenceResponse([pb_utils.Tensor(self._output, np.ascontiguousarray(result))])
