"""Models for the tests of the clients: Python models with exactly one property each, and no dependency but numpy.

The execution of a positive number by `slow`, `narrow` and `queued` waits for that gate (see client_calls.py).
"""

from pathlib import Path

HEAD = """
import json
import pathlib
import time

import numpy as np
import triton_python_backend_utils as pb_utils


def array(request, name):
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy()


def response(**outputs):
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, value) for name, value in outputs.items()])


def pass_gate(number):
    gates = pathlib.Path("{gates}")
    if number > 0:
        with (gates / f"{number}.begun").open("a") as file:
            file.write(".")
    for _ in range(3000):
        if number <= 0 or (gates / f"{number}.open").exists():
            return
        time.sleep(0.01)
"""
MODEL = """

class TritonPythonModel:
    count = 0

    def execute(self, requests):
        self.count += 1
        return [self.answer(request) for request in requests]

    def answer(self, request):
        {body}
"""
PARTS = '''

import threading

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
                pass_gate(wishes["gate"])
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
BODIES = {
    # Two inputs, two outputs, one of them of any length.
    "pair": """a, b = array(request, "a"), array(request, "b")
        total = a.sum(axis=1, keepdims=True) + b.sum(axis=1, keepdims=True)
        return response(sum=total.astype(np.float32), twice=2 * a)""",
    # Every text, as often as it has letters.
    "texts": """x = array(request, "x")
        return response(y=np.array([[text * len(text) for text in row] for row in x], dtype=np.object_))""",
    "unbatched": """return response(y=array(request, "x")[::-1].copy())""",
    "wide": """return response(y=np.repeat(array(request, "x"), 1 << 20, axis=1))""",
    # Fails a whole request for one negative row.
    "picky": """x = array(request, "x")
        if (x < 0).any():
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("no roots of negative numbers"))
        return response(y=np.sqrt(x))""",
    # The same, and waits where it does not fail.
    "narrow": """x = array(request, "x")
        if (x < 0).any():
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("no time before now"))
        pass_gate(int(x.max()))
        return response(y=x)""",
    # Waits, and tells which execution it was.
    "slow": """x = array(request, "x")
        pass_gate(int(x.max()))
        return response(y=np.full_like(x, self.count))""",
    "queued": """x = array(request, "x")
        pass_gate(int(x.max()))
        return response(y=np.full_like(x, self.count))""",
    "ragged": """return response(y=array(request, "x").sum(axis=1, keepdims=True))""",
    "doubles": """return response(y=2 * array(request, "x"))""",
    "asked": """received = {"id": request.request_id(), "parameters": json.loads(request.parameters() or "{}")}
        return response(y=np.array([[json.dumps(received)]], dtype=np.object_))""",
}
X = """input [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""
ROWS = """max_batch_size: 4
input [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
CONFIGS = {
    "parts": f"{ROWS}model_transaction_policy {{ decoupled: true }}\n",
    "doubles": ROWS,
    "pair": """max_batch_size: 8
input [ { name: "a" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "b" data_type: TYPE_INT32 dims: [ 2 ] } ]
output [ { name: "sum" data_type: TYPE_FP32 dims: [ 1 ] }, { name: "twice" data_type: TYPE_FP32 dims: [ -1 ] } ]
""",
    "texts": """max_batch_size: 8
input [ { name: "x" data_type: TYPE_STRING dims: [ -1 ] } ]
output [ { name: "y" data_type: TYPE_STRING dims: [ -1 ] } ]
""",
    "unbatched": """max_batch_size: 0
input [ { name: "x" data_type: TYPE_INT64 dims: [ -1 ] } ]
output [ { name: "y" data_type: TYPE_INT64 dims: [ -1 ] } ]
""",
    "wide": """max_batch_size: 2
input [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 1048576 ] } ]
""",
    "ragged": """max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 1 ] } ]
dynamic_batching { }
""",
    "picky": f"max_batch_size: 8\n{X}dynamic_batching {{ }}\n",
    "slow": f"max_batch_size: 8\n{X}dynamic_batching {{ }}\n",
    "narrow": f"max_batch_size: 8\n{X}dynamic_batching {{ default_queue_policy {{ max_queue_size: 2 }} }}\n",
    # One row an execution, a queue of three, and requests that may bring their own time limit: no prefetching.
    "queued": f"""max_batch_size: 1
{X}dynamic_batching {{
  priority_levels: 2
  default_priority_level: 2
  default_queue_policy {{ max_queue_size: 3 default_timeout_microseconds: 60000000 allow_timeout_override: true }}
}}
""",
    "asked": """max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "y" data_type: TYPE_STRING dims: [ 1 ] } ]
""",
}
NAMES = tuple(CONFIGS)


def build(repository: Path) -> Path:
    """Write all of them, with one instance each."""
    gates = repository / "gates"
    gates.mkdir()
    for name, config in CONFIGS.items():
        version = repository / name / "1"
        version.mkdir(parents=True)
        source = PARTS if name == "parts" else MODEL.replace("{body}", BODIES[name])
        (version / "model.py").write_text(HEAD.replace("{gates}", str(gates)) + source)
        group = "instance_group [ { count: 1 kind: KIND_CPU } ]"
        (version.parent / "config.pbtxt").write_text(f'name: "{name}"\nbackend: "python"\n{config}{group}\n')
    return repository
