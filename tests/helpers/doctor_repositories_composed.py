"""Correct repositories, in which nothing is an error: pipelines, nested ensembles, BLS, many backends."""

from doctor_repositories_stateful import ONNX, WEIGHTS, tensor

PIPELINE = {
    "decode/1/model.dali": WEIGHTS,
    "decode/config.pbtxt": f"""
name: "decode"
backend: "dali"
max_batch_size: 64
input [ {tensor("JPEG", "UINT8", "-1", "allow_ragged_batch: true")} ]
output [ {tensor("PICTURE", "FP32", "3, 224, 224")} ]
parameters [ {{ key: "num_threads" value {{ string_value: "4" }} }} ]
dynamic_batching {{ }}
""",
    "classify/3/model.plan": WEIGHTS,
    "classify/config.pbtxt": f"""
platform: "tensorrt_plan"
max_batch_size: 64
input [ {tensor("input", "FP32", "3, 224, 224", "format: FORMAT_NCHW")} ]
output [ {tensor("logits", "FP32", "1000", 'label_filename: "labels.txt"')} ]
instance_group [ {{ kind: KIND_GPU count: 2 gpus: [ 0 ] profile: [ "0" ] }} ]
dynamic_batching {{ }}
optimization {{ cuda {{ graphs: true }} }}
""",
    "classify/labels.txt": "cat\ndog\n",
    "explain/1/model.py": """
import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        output = pb_utils.get_output_config_by_name(config, "NAME")
        self.type = pb_utils.triton_string_to_numpy(output["data_type"])

    def execute(self, requests):
        responses = []
        for request in requests:
            logits = pb_utils.get_input_tensor_by_name(request, "LOGITS").as_numpy()
            threshold = pb_utils.get_input_tensor_by_name(request, "THRESHOLD")
            least = 0.0 if threshold is None else threshold.as_numpy().item()
            best = [str(row.argmax()) if row.max() >= least else "" for row in logits]
            names = np.array(best, dtype=object).astype(self.type).reshape(-1, 1)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("NAME", names)]))
        return responses
""",
    "explain/config.pbtxt": f"""
backend: "python"
max_batch_size: 64
input [ {tensor("LOGITS", "FP32", "1000")}, {tensor("THRESHOLD", "FP32", "1", "optional: true")} ]
output [ {tensor("NAME", "STRING", "1")} ]
dynamic_batching {{ }}
""",
    "pipeline/1/": "",
    "pipeline/config.pbtxt": f"""
name: "pipeline"
platform: "ensemble"
max_batch_size: 32
input [ {tensor("JPEG", "UINT8", "-1")} ]
output [ {tensor("NAME", "STRING", "1")}, {tensor("LOGITS", "FP32", "1000")} ]
ensemble_scheduling {{
  step [
    {{ model_name: "decode" model_version: -1
      input_map {{ key: "JPEG" value: "JPEG" }} output_map {{ key: "PICTURE" value: "picture" }} }},
    {{ model_name: "classify" model_version: 3
      input_map {{ key: "input" value: "picture" }} output_map {{ key: "logits" value: "LOGITS" }} }},
    {{ model_name: "explain" model_version: -1
      input_map {{ key: "LOGITS" value: "LOGITS" }} output_map {{ key: "NAME" value: "NAME" }} }}
  ]
}}
response_cache {{ enable: true }}
""",
}

NESTED_ENSEMBLES = {
    "trees/1/xgboost.json": WEIGHTS,
    "trees/config.pbtxt": f"""
backend: "fil"
max_batch_size: 32768
input [ {tensor("input__0", "FP32", "32")} ]
output [ {tensor("output__0", "FP32", "2")} ]
instance_group [ {{ kind: KIND_AUTO }} ]
parameters [
  {{ key: "model_type" value: {{ string_value: "xgboost_json" }} }},
  {{ key: "predict_proba" value: {{ string_value: "true" }} }},
  {{ key: "output_class" value: {{ string_value: "true" }} }}
]
dynamic_batching {{ }}
""",
    "features/1/model.savedmodel/saved_model.pb": WEIGHTS,
    "features/config.pbtxt": f"""
platform: "tensorflow_savedmodel"
max_batch_size: 128
input [ {tensor("row", "FP64", "-1")} ]
output [ {tensor("features", "FP32", "32")} ]
dynamic_batching {{ preferred_batch_size: [ 64, 128 ] max_queue_delay_microseconds: 500 }}
""",
    "inner/1/": "",
    "inner/config.pbtxt": f"""
platform: "ensemble"
max_batch_size: 128
input [ {tensor("ROW", "FP64", "16")} ]
output [ {tensor("CLASS", "FP32", "2")} ]
ensemble_scheduling {{
  step [ {{ model_name: "features" model_version: -1
           input_map {{ key: "row" value: "ROW" }} output_map {{ key: "features" value: "f" }} }},
         {{ model_name: "trees" model_version: -1
           input_map {{ key: "input__0" value: "f" }} output_map {{ key: "output__0" value: "CLASS" }} }} ]
}}
""",
    "outer/1/": "",
    "outer/config.pbtxt": f"""
platform: "ensemble"
max_batch_size: 0
input [ {tensor("ROWS", "FP64", "-1, 16")} ]
output [ {tensor("CLASSES", "FP32", "-1, 2")} ]
ensemble_scheduling {{
  step [ {{ model_name: "inner" model_version: -1
           input_map {{ key: "ROW" value: "ROWS" }} output_map {{ key: "CLASS" value: "CLASSES" }} }} ]
}}
""",
}

LOGIC = {
    "router/1/model.py": """
import asyncio

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    async def execute(self, requests):
        return await asyncio.gather(*[self.answer(request) for request in requests])

    async def answer(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "x")
        calls = [
            pb_utils.InferenceRequest(model_name=name, requested_output_names=["y"], inputs=[x]).async_exec()
            for name in ("first", "second")
        ]
        for answer in await asyncio.gather(*calls):
            if answer.has_error():
                return pb_utils.InferenceResponse(error=answer.error())
        y = pb_utils.get_output_tensor_by_name(answer, "y")
        return pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("z", y.as_numpy())])
""",
    "router/config.pbtxt": f"""
backend: "python"
max_batch_size: 8
input [ {tensor("x", "FP32", "4")} ]
output [ {tensor("z", "FP32", "4")} ]
dynamic_batching {{ }}
parameters {{ key: "FORCE_CPU_ONLY_INPUT_TENSORS" value {{ string_value: "no" }} }}
parameters {{ key: "tenant" value {{ string_value: "north" }} }}
""",
    **{
        f"{name}/{file}": text
        for name in ("first", "second")
        for file, text in {
            "1/model.pt": WEIGHTS,
            "config.pbtxt": f"""
backend: "pytorch"
max_batch_size: 8
input [ {tensor("x", "FP32", "4")} ]
output [ {tensor("y", "FP32", "4")} ]
instance_group [ {{ kind: KIND_GPU count: 1 }} ]
dynamic_batching {{ }}
parameters {{ key: "INFERENCE_MODE" value {{ string_value: "true" }} }}
parameters {{ key: "DISABLE_OPTIMIZED_EXECUTION" value {{ string_value: "true" }} }}
""",
        }.items()
    },
}

MANY_BACKENDS = {
    "pass/1/": "",
    "pass/config.pbtxt": f"""
backend: "identity"
max_batch_size: 8
input [ {tensor("INPUT0", "UINT8", "-1")} ]
output [ {tensor("OUTPUT0", "UINT8", "-1")} ]
instance_group [ {{ kind: KIND_CPU }} ]
parameters [ {{ key: "execute_delay_ms" value: {{ string_value: "10" }} }} ]
""",
    "forever/1/": "",
    "forever/config.pbtxt": f"""
backend: "repeat"
input [ {tensor("IN", "INT32", "-1")}, {tensor("DELAY", "UINT32", "-1")}, {tensor("WAIT", "UINT32", "1")} ]
output [ {tensor("OUT", "INT32", "1")}, {tensor("IDX", "UINT32", "1")} ]
model_transaction_policy {{ decoupled: true }}
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
""",
    "eager/1/model.py": "import torch\n\n\nclass Net(torch.nn.Module):\n    def forward(self, x):\n        return x\n",
    "eager/config.pbtxt": f"""
backend: "pytorch"
runtime: "model.py"
max_batch_size: 8
input [ {tensor("INPUT__0", "FP32", "4")} ]
output [ {tensor("OUTPUT__0", "FP32", "4")} ]
dynamic_batching {{ }}
""",
    "unwritten/1/model.onnx": f"{ONNX}unwritten (float[b, 2] x) => (float[b, 2] y) {{ y = Identity(x) }}",
    "tokens/1/model.py": """
import os
import sys

sys.path.append(os.path.dirname(__file__))
from tokenizer import TokenizerModel as TritonPythonModel
""",
    "tokens/1/tokenizer.py": "class TokenizerModel:\n    def execute(self, requests):\n        return []\n",
    "tokens/config.pbtxt": f"""
backend: "python"
max_batch_size: 8
input [ {tensor("TEXT", "STRING", "1")} ]
output [ {tensor("IDS", "INT32", "-1")} ]
dynamic_batching {{ }}
parameters {{ key: "EXECUTION_ENV_PATH" value: {{ string_value: "$$TRITON_MODEL_DIRECTORY/environment" }} }}
""",
    "tokens/environment/lib/python3.10/site.py": "",
    "own/1/weights": WEIGHTS,
    "own/config.pbtxt": f"""
backend: "company_backend"
max_batch_size: 4
input [ {tensor("a", "BF16", "4")} ]
output [ {tensor("b", "BF16", "4")} ]
dynamic_batching {{ }}
instance_group [ {{ count: 1 passive: false host_policy: "near" }} ]
parameters {{ key: "intra_op_num_threads" value {{ string_value: "of its own" }} }}
""",
}

REPOSITORIES = {
    name.lower(): files for name, files in sorted(globals().items()) if name.isupper() and isinstance(files, dict)
}
