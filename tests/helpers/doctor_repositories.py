"""Correct model repositories for many backends, in which nothing is an error.

Each has files by path; a path that ends in "/" is an empty folder. Binary model files hold one word, because the doctor
reads only ONNX.
"""

from collections.abc import Mapping
from pathlib import Path

from serve.doctor.example import write_file

BINARY = "binary"
BLS = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            text = pb_utils.get_input_tensor_by_name(request, "text")
            inner = pb_utils.InferenceRequest(
                model_name="encoder", requested_output_names=["embedding"], inputs=[text]
            )
            answer = inner.exec()
            if answer.has_error():
                responses.append(pb_utils.InferenceResponse(error=answer.error()))
                continue
            found = pb_utils.get_output_tensor_by_name(answer, "embedding")
            responses.append(pb_utils.InferenceResponse([found]))
        return responses
"""
ENCODER = """\
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            text = pb_utils.get_input_tensor_by_name(request, "text").as_numpy()
            embedding = np.zeros((len(text), 4), np.float32)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("embedding", embedding)]))
        return responses
"""
RAGGED = """<ir_version: 8, opset_import: ["": 17]>
ragged (float[elements] x, int32[n] counts) => (int64[n] y) { y = Cast<to=7>(counts) }"""
PLAIN = """<ir_version: 8, opset_import: ["": 17]>
plain (float[N,3,224,224] images) => (float[N,3,224,224] features) { features = Relu(images) }"""

BACKENDS: Mapping[str, Mapping[str, str]] = {
    "tensorrt": {
        "detector/config.pbtxt": """
platform: "tensorrt_plan"
backend: "tensorrt"
max_batch_size: 16
input [ { name: "images" data_type: TYPE_FP16 format: FORMAT_NCHW dims: [ 3, 640, 640 ] } ]
output [
  { name: "boxes" data_type: TYPE_FP32 dims: [ 100, 4 ] },
  { name: "scores" data_type: TYPE_FP32 dims: [ 100 ] label_filename: "labels.txt" }
]
instance_group [ { kind: KIND_GPU count: 2 gpus: [ 0 ] profile: [ "0" ] } ]
dynamic_batching { preferred_batch_size: [ 8, 16 ] max_queue_delay_microseconds: 200 }
optimization { cuda { graphs: true } }
""",
        "detector/labels.txt": "cat\ndog\n",
        "detector/1/model.plan": BINARY,
        "detector/2/model.plan": BINARY,
    },
    "pytorch": {
        "classifier/config.pbtxt": """
name: "classifier"
platform: "pytorch_libtorch"
max_batch_size: 8
input [ { name: "INPUT__0" data_type: TYPE_FP32 dims: [ 3, 224, 224 ] } ]
output [ { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 1000 ] } ]
parameters: { key: "INFERENCE_MODE" value: { string_value: "true" } }
dynamic_batching { }
""",
        "classifier/1/model.pt": BINARY,
        "eager/config.pbtxt": """
backend: "pytorch"
runtime: "model.py"
max_batch_size: 8
input [ { name: "INPUT" data_type: TYPE_FP32 dims: [ 16 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_FP32 dims: [ 4 ] } ]
dynamic_batching { }
""",
        "eager/1/model.py": "# a torch.nn.Module",
    },
    "tensorflow": {
        "ranking/config.pbtxt": """
platform: "tensorflow_savedmodel"
max_batch_size: 32
input [ { name: "ids" data_type: TYPE_INT64 dims: [ -1 ] reshape { shape: [ -1 ] } } ]
output [ { name: "score" data_type: TYPE_FP32 dims: [ 1 ] reshape { shape: [ ] } } ]
version_policy: { all { } }
dynamic_batching { max_queue_delay_microseconds: 100 }
""",
        "ranking/1/model.savedmodel/saved_model.pb": BINARY,
        "ranking/1/model.savedmodel/variables/": "",
        "frozen/config.pbtxt": """
platform: "tensorflow_graphdef"
input: { name: "x", data_type: TYPE_FP32, dims: 1, dims: 28, dims: 28 }
output: { name: "y", data_type: TYPE_FP32, dims: 1, dims: 10 }
""",
        "frozen/3/model.graphdef": BINARY,
    },
    "openvino": {
        "segmenter/config.pbtxt": """
backend: "openvino"
max_batch_size: 4
input [ { name: "image" data_type: TYPE_FP32 dims: [ 3, -1, -1 ] } ]
output [ { name: "mask" data_type: TYPE_FP32 dims: [ 1, -1, -1 ] } ]
parameters: { key: "ENABLE_BATCH_PADDING" value: { string_value: "NO" } }
instance_group [ { kind: KIND_CPU count: 1 } ]
dynamic_batching { }
""",
        "segmenter/1/model.xml": BINARY,
        "segmenter/1/model.bin": BINARY,
    },
    "vllm": {
        "chat/config.pbtxt": """
backend: "vllm"
instance_group [ { count: 1 kind: KIND_MODEL } ]
""",
        "chat/1/model.json": '{"model": "facebook/opt-125m"}',
    },
    "tensorrtllm": {
        "tensorrt_llm/config.pbtxt": """
name: "tensorrt_llm"
backend: "tensorrtllm"
max_batch_size: 64
model_transaction_policy { decoupled: true }
dynamic_batching {
  preferred_batch_size: [ 64 ] max_queue_delay_microseconds: 0 default_queue_policy { max_queue_size: 0 }
}
input [
  { name: "input_ids" data_type: TYPE_INT32 dims: [ -1 ] allow_ragged_batch: true },
  { name: "input_lengths" data_type: TYPE_INT32 dims: [ 1 ] reshape: { shape: [ ] } },
  { name: "request_output_len" data_type: TYPE_INT32 dims: [ 1 ] },
  { name: "end_id" data_type: TYPE_INT32 dims: [ 1 ] reshape: { shape: [ ] } optional: true }
]
output [ { name: "output_ids" data_type: TYPE_INT32 dims: [ -1, -1 ] } ]
instance_group [ { count: 1 kind : KIND_CPU } ]
parameters: { key: "gpt_model_type" value: { string_value: "inflight_fused_batching" } }
parameters: { key: "gpt_model_path" value: { string_value: "/engines/llama" } }
""",
        "tensorrt_llm/1/": "",
    },
    "fil": {
        "fraud/config.pbtxt": """
backend: "fil"
max_batch_size: 32768
input [ { name: "input__0" data_type: TYPE_FP32 dims: [ 32 ] } ]
output [ { name: "output__0" data_type: TYPE_FP32 dims: [ 1 ] } ]
instance_group [ { kind: KIND_AUTO } ]
parameters [
  { key: "model_type" value: { string_value: "xgboost" } },
  { key: "output_class" value: { string_value: "true" } }
]
dynamic_batching { }
""",
        "fraud/1/xgboost.model": BINARY,
    },
    "dali": {
        "preprocess/config.pbtxt": """
name: "preprocess"
backend: "dali"
max_batch_size: 256
input [ { name: "ENCODED" data_type: TYPE_UINT8 dims: [ -1 ] allow_ragged_batch: true } ]
output [ { name: "IMAGE" data_type: TYPE_FP32 dims: [ 224, 224, 3 ] } ]
parameters: [ { key: "num_threads" value: { string_value: "12" } } ]
dynamic_batching { }
""",
        "preprocess/1/model.dali": BINARY,
    },
    "onnxruntime": {
        # Nothing but the file: the server completes it.
        "bare/1/model.onnx": PLAIN,
        "images/config.pbtxt": """
# A comment, and fields in the order of another tool.
input < name: 'images' data_type: TYPE_FP32 dims: [3, 224, 224] >;
output { name: "features", data_type: TYPE_FP32, dims: [3, 224, 224] }
max_batch_size: 0x10
backend: "onnx" "runtime"
dynamic_batching { }
instance_group [ { count: 1 kind: KIND_CPU } ]
""",
        "images/1/model.onnx": PLAIN,
        "ragged/config.pbtxt": """
backend: "onnxruntime"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true } ]
batch_input [ { kind: BATCH_ELEMENT_COUNT target_name: "counts" data_type: TYPE_INT32 source_input: "x" } ]
output [ { name: "y" data_type: TYPE_INT64 dims: [ ] reshape { shape: [ ] } } ]
dynamic_batching { }
""".replace("dims: [ ] reshape", "dims: [ 1 ] reshape"),
        "ragged/1/model.onnx": RAGGED,
    },
    "python_bls": {
        "router/config.pbtxt": """
backend: "python"
max_batch_size: 16
input [ { name: "text" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "embedding" data_type: TYPE_FP32 dims: [ 4 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
dynamic_batching { }
""",
        "router/1/model.py": BLS,
        "encoder/config.pbtxt": """
backend: "python"
max_batch_size: 16
input [ { name: "text" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "embedding" data_type: TYPE_FP32 dims: [ 4 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
dynamic_batching { }
""",
        "encoder/1/model.py": ENCODER,
    },
    "custom": {
        "square/config.pbtxt": """
backend: "square"
max_batch_size: 0
model_transaction_policy { decoupled: True }
input [ { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU } ]
""",
        "square/1/": "",
        "identity.identity/config.pbtxt": """
max_batch_size: 8
input [ { name: "IN" data_type: TYPE_INT32 dims: [ 16 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 16 ] } ]
dynamic_batching { }
""",
        "identity.identity/1/": "",
    },
}


def build(files: Mapping[str, str], repository: Path) -> Path:
    """Write a repository to disk."""
    repository.mkdir()
    for path, text in files.items():
        write_file(repository / path, text, is_folder=path.endswith("/"))
    return repository
