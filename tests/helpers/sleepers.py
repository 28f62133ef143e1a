"""A Python model for tests that sleeps in each execution and reports which requests ran in it; and its client.

Every input is an INT32 tensor of any declared dims. For each row the output holds the number of its execution, and when
that execution began, in microseconds of the machine's monotonic clock.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tritonclient.grpc.aio as triton

from perf.simulate.batcher.request import US, Request

# The configurations are complete; to complete them Triton would start another process for each model.
PLAIN = ("--disable-auto-complete-config",)
MODEL = """
import json
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        parameters, self._batched = config["parameters"], config["max_batch_size"] > 0
        self._fixed = float(parameters["fixed_ms"]["string_value"]) / 1e3
        self._row = float(parameters["row_ms"]["string_value"]) / 1e3
        self._instance = int(args["model_instance_name"].rpartition("_")[2])
        self._executions = 0

    def execute(self, requests):
        start = time.monotonic()
        rows = [request.inputs()[0].shape()[0] if self._batched else 1 for request in requests]
        self._executions += 1
        name = self._executions * 100 + self._instance
        time.sleep(max(0.0, self._fixed + self._row * sum(rows) - (time.monotonic() - start)))
        seen = [np.tile(np.array([[name, int(start * 1e6)]], dtype=np.int64), (count, 1)) for count in rows]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("RAN", numbers)]) for numbers in seen]
"""


def sleeper(repository: Path, name: str, config: str, *, fixed_ms: float = 20, row_ms: float = 0.5) -> Path:
    """Write a model folder; config.pbtxt gets the output, the parameters and `config` (inputs, batching, instances)."""
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(MODEL)
    (folder / "config.pbtxt").write_text(
        f'name: "{name}"\nbackend: "python"\n'
        'output [ { name: "RAN" data_type: TYPE_INT64 dims: [ 2 ] } ]\n'
        f'parameters {{ key: "fixed_ms" value {{ string_value: "{fixed_ms}" }} }}\n'
        f'parameters {{ key: "row_ms" value {{ string_value: "{row_ms}" }} }}\n{config}\n'
    )
    return folder


@dataclass(frozen=True, kw_only=True)
class Ran:
    """The request numbers (from 1) of each execution, in order of their start, and the errors of the others.

    `started_s` holds the start of each execution, `answered_s` the time of each answer, both since the first send.
    """

    executions: list[list[int]]
    errors: list[str]
    started_s: list[float]
    answered_s: dict[int, float]


async def send(url: str, model: str, requests: Sequence[Request]) -> Ran:
    """Send zeros of these shapes, each at its time, on one stream, so that they arrive in order."""
    client = triton.InferenceServerClient(url, channel_args=[("grpc.enable_http_proxy", 0)])
    clock = time.monotonic
    begin = clock()

    async def each() -> AsyncIterator[dict[str, object]]:
        for request in requests:
            tensors = [_zeros(name, [request.rows, *shape]) for name, shape in request.shapes.items()]
            await asyncio.sleep(max(0.0, begin + float(request.at) / 1e9 - clock()))
            yield {
                "model_name": model,
                "inputs": tensors,
                "request_id": str(request.number),
                "priority": request.priority,
                "timeout": int(request.timeout) // US or None,
            }

    batches: dict[tuple[int, int], list[int]] = {}
    answered_s: dict[int, float] = {}
    errors = []
    try:
        answers = client.stream_infer(each())
        for _ in requests:
            answer, error = await anext(answers)
            if error is None:
                name, start = answer.as_numpy("RAN").reshape(-1, 2)[0]
                number = int(answer.get_response().id)
                batches.setdefault((int(start), int(name)), []).append(number)
                answered_s[number] = clock() - begin
            else:
                errors.append(str(error))
    finally:
        await client.close()
    return Ran(
        executions=[sorted(numbers) for _, numbers in sorted(batches.items())],
        errors=errors,
        started_s=[start / 1e6 - begin for start, _ in sorted(batches)],
        answered_s=answered_s,
    )


def _zeros(name: str, shape: list[int]) -> triton.InferInput:
    tensor = triton.InferInput(name, shape, "INT32")
    tensor.set_data_from_numpy(np.zeros(shape, dtype=np.int32))
    return tensor
