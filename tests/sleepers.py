"""A test-only Python model that sleeps for each execution and says which requests ran in it, and a way to load it.

Every input is an INT32 tensor of any declared dims; the output holds, for each row, the number of the execution that the
row was part of and when that execution began, in microseconds of the machine's monotonic clock.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import tritonclient.grpc.aio as triton
from tritonclient.utils import InferenceServerException

MODEL = '''
import json
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        self._fixed = float(parameters["fixed_ms"]["string_value"]) / 1e3
        self._row = float(parameters["row_ms"]["string_value"]) / 1e3
        self._instance = int(args["model_instance_name"].rpartition("_")[2])
        self._executions = 0

    def execute(self, requests):
        start = time.monotonic()
        rows = [request.inputs()[0].shape()[0] for request in requests]
        self._executions += 1
        name = self._executions * 100 + self._instance
        time.sleep(max(0.0, self._fixed + self._row * sum(rows) - (time.monotonic() - start)))
        seen = [np.tile(np.array([[name, int(start * 1e6)]], dtype=np.int64), (count, 1)) for count in rows]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("RAN", one)]) for one in seen]
'''


def sleeper(repository: Path, name: str, config: str, *, fixed_ms: float = 20, row_ms: float = 0.5) -> Path:
    """A model folder whose config.pbtxt is the output, the parameters and `config` (inputs, batching, instances)."""
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
class Sent:
    """One request of zeros: when it is sent after the first (seconds), and the shape of each input."""

    at_s: float = 0.0
    shapes: dict[str, list[int]]
    priority: int = 0
    timeout_us: int | None = None


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What came back: the execution (None when it failed) and the error."""

    execution: int | None
    began_s: float = 0.0
    error: str = ""
    answered_s: float = field(default=0.0)


async def send(url: str, model: str, requests: Sequence[Sent]) -> list[Ran]:
    """Send each request at its time, all on one connection, and say what ran together."""
    client = triton.InferenceServerClient(url, channel_args=[("grpc.enable_http_proxy", 0)])
    clock = asyncio.get_running_loop().time
    begin = clock() + 0.05

    async def one(request: Sent) -> Ran:
        tensors = []
        for name, shape in request.shapes.items():
            tensor = triton.InferInput(name, shape, "INT32")
            tensor.set_data_from_numpy(np.zeros(shape, dtype=np.int32))
            tensors.append(tensor)
        await asyncio.sleep(begin + request.at_s - clock())
        try:
            answer = await client.infer(model, tensors, priority=request.priority, timeout=request.timeout_us)
        except InferenceServerException as error:
            return Ran(execution=None, error=str(error), answered_s=clock() - begin)
        execution, began = answer.as_numpy("RAN")[0]
        return Ran(execution=int(execution), began_s=began / 1e6 - begin, answered_s=clock() - begin)

    try:
        return list(await asyncio.gather(*(one(request) for request in requests)))
    finally:
        await client.close()


def executed(ran: Sequence[Ran]) -> list[list[int]]:
    """Indices of the requests of each execution, executions in order of their first request."""
    batches: dict[int, list[int]] = {}
    for index, one in enumerate(ran):
        if one.execution is not None:
            batches.setdefault(one.execution, []).append(index)
    return list(batches.values())
