"""Models for the tests of the clients: Python models with exactly one property each, and no dependency but numpy."""

from pathlib import Path

MODEL = """
import json
import time

import numpy as np
import triton_python_backend_utils as pb_utils


def array(request, name):
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy()


def response(**outputs):
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, value) for name, value in outputs.items()])


class TritonPythonModel:
    count = 0

    def execute(self, requests):
        self.count += 1
        return [self.answer(request) for request in requests]

    def answer(self, request):
        {body}
"""
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
    # The same, and sleeps where it does not fail.
    "narrow": """x = array(request, "x")
        if (x < 0).any():
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("no time before now"))
        time.sleep(float(x.max()))
        return response(y=x)""",
    # Sleeps for as many seconds as the request says, and tells which execution it was.
    "slow": """x = array(request, "x")
        time.sleep(float(x.max()))
        return response(y=np.full_like(x, self.count))""",
    "queued": """x = array(request, "x")
        time.sleep(float(x.max()))
        return response(y=np.full_like(x, self.count))""",
    "ragged": """return response(y=array(request, "x").sum(axis=1, keepdims=True))""",
    "asked": """received = {"id": request.request_id(), "parameters": json.loads(request.parameters() or "{}")}
        return response(y=np.array([[json.dumps(received)]], dtype=np.object_))""",
}
X = """input [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""
CONFIGS = {
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
NAMES = tuple(BODIES)


def build(repository: Path) -> Path:
    """Write all of them, with one instance each."""
    for name, body in BODIES.items():
        version = repository / name / "1"
        version.mkdir(parents=True)
        (version / "model.py").write_text(MODEL.replace("{body}", body))
        config = f'name: "{name}"\nbackend: "python"\n{CONFIGS[name]}instance_group [ {{ count: 1 kind: KIND_CPU }} ]\n'
        (version.parent / "config.pbtxt").write_text(config)
    return repository
