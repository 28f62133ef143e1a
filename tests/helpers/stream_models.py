"""Decoupled and stateful models for the tests of the clients, with no dependency but numpy."""

from pathlib import Path
from typing import Any

import numpy as np

from serve.launcher import Settings

X = np.array([[5]], np.float32)

PARTS = '''
import json
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    """x, x + 1, ...: as many answers as the request says, and what happens between them."""

    def initialize(self, args):
        self.threads = []

    def execute(self, requests):
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            arguments = (request.get_response_sender(), x, json.loads(request.parameters() or "{}"))
            self.threads.append(threading.Thread(target=self.answer, args=arguments))
            self.threads[-1].start()

    def answer(self, sender, x, wishes):
        count, last = wishes["count"], wishes.get("last", False)
        for number in range(count):
            if number == wishes.get("fails_at", -1):
                error = pb_utils.TritonError("no more of these")
                sender.send(pb_utils.InferenceResponse(error=error), flags=FINAL)
                return
            if number == wishes.get("waits_at", -1):
                time.sleep(wishes["seconds"])
            y = np.repeat(x + np.float32(number), wishes.get("width", 1), axis=1)
            flags = FINAL if last and number == count - 1 else 0
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("y", y)]), flags=flags)
        if not (last and count):
            sender.send(flags=FINAL)

    def finalize(self):
        for thread in self.threads:
            thread.join()
'''
"""`last` sends the end with the last answer, otherwise it follows without outputs."""

DOUBLES = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", 2 * array)]) for array in arrays]
"""
TENSORS = """max_batch_size: 4
input [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
MODELS = {
    "parts": (PARTS, f"{TENSORS}model_transaction_policy {{ decoupled: true }}\n"),
    "doubles": (DOUBLES, TENSORS),
}
NAMES = tuple(MODELS)


def build(repository: Path) -> Path:
    """Write all of them, with one instance each."""
    for name, (source, config) in MODELS.items():
        version = repository / name / "1"
        version.mkdir(parents=True)
        (version / "model.py").write_text(source)
        group = "instance_group [ { count: 1 kind: KIND_CPU } ]"
        (version.parent / "config.pbtxt").write_text(f'name: "{name}"\nbackend: "python"\n{config}{group}\n')
    return repository


def settings(repository: Path, *names: str) -> Settings:
    """A server of these models, or of all."""
    return Settings(models=names or NAMES, repository=repository, arguments=("--disable-auto-complete-config",))


def values(parts: list[Any]) -> list[float]:
    assert all(part.dtype == np.float32 and part.shape == (1, 1) for part in parts)
    return [float(part[0, 0]) for part in parts]
