"""Correct repositories, in which nothing is an error: sequences, implicit state, ragged batches, streams, caches.

Each has files by path. An ONNX file is in ONNX's text format; files of other backends hold anything.
"""

ONNX = '<ir_version: 8, opset_import: ["" : 17]>\n'
WEIGHTS = "weights of a backend that the doctor does not read"


def tensor(name: str, kind: str, dims: str, rest: str = "") -> str:
    return f'{{ name: "{name}" data_type: TYPE_{kind} dims: [ {dims} ] {rest} }}'


def control(name: str, what: str) -> str:
    return f'{{ name: "{name}" control [ {{ kind: CONTROL_SEQUENCE_{what} }} ] }}'


CONTROLS = ", ".join(
    [
        control("START", "START fp32_false_true: [ 0, 1 ]"),
        control("END", "END bool_false_true: [ false, true ]"),
        control("READY", "READY int32_false_true: [ 0, 1 ]"),
        control("ID", "CORRID data_type: TYPE_UINT64"),
    ]
)
ACCUMULATOR = f"""{ONNX}
accumulator (float[b, 1] x, float[b, 1] START, bool[b, 1] END, int32[b, 1] READY, uint64[b, 1] ID, float[b, 1] SUM_IN)
=> (float[b, 1] SUM, float[b, 1] SUM_OUT)
{{ more = Add(x, SUM_IN)
SUM = Add(more, START)
SUM_OUT = Identity(SUM) }}
"""

DIRECT_SEQUENCES = {
    "accumulator/1/model.onnx": ACCUMULATOR,
    "accumulator/config.pbtxt": f"""
name: "accumulator"
platform: "onnxruntime_onnx"
max_batch_size: 4
input [ {tensor("x", "FP32", "1")} ]
output [ {tensor("SUM", "FP32", "1")} ]
sequence_batching {{
  max_sequence_idle_microseconds: 5000000
  direct {{ max_queue_delay_microseconds: 1000 minimum_slot_utilization: 0.75 }}
  control_input [ {CONTROLS} ]
  state [ {{
    input_name: "SUM_IN" output_name: "SUM_OUT" data_type: TYPE_FP32 dims: [ 1 ]
    initial_state {{ name: "zeros" data_type: TYPE_FP32 dims: [ 1 ] zero_data: true }}
  }} ]
}}
instance_group [ {{ kind: KIND_GPU count: 1 }} ]
""",
}

IMPLICIT_STATE_FROM_A_FILE = {
    "recurrent/2/model.plan": WEIGHTS,
    "recurrent/initial_state/hidden": "0123456789abcdef",
    "recurrent/config.pbtxt": f"""
backend: "tensorrt"
max_batch_size: 16
input [ {tensor("frame", "FP32", "80, -1")} ]
output [ {tensor("letters", "INT32", "-1")}, {tensor("hidden_out", "FP32", "4")} ]
sequence_batching {{
  oldest {{ max_candidate_sequences: 256 preferred_batch_size: [ 8, 16 ] max_queue_delay_microseconds: 2000 }}
  control_input [ {control("START", "START int32_false_true: [ 0, 1 ]")} ]
  state [
    {{ input_name: "hidden_in" output_name: "hidden_out" data_type: TYPE_FP32 dims: [ 4 ]
      use_same_buffer_for_input_output: true
      initial_state {{ name: "hidden" data_type: TYPE_FP32 dims: [ 4 ] data_file: "hidden" }} }},
    {{ input_name: "cache_in" output_name: "cache_out" data_type: TYPE_FP16 dims: [ -1, 4 ]
      initial_state {{ name: "empty" data_type: TYPE_FP16 dims: [ 1, 4 ] zero_data: true }} }}
  ]
}}
""",
}

SEQUENCES_IN_PYTHON = {
    "dialogue/1/model.py": """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.turns = {}

    def execute(self, requests):
        responses = []
        for request in requests:
            identifier = request.correlation_id()
            start = pb_utils.get_input_tensor_by_name(request, "START").as_numpy().item()
            text = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
            turns = 1 if start else self.turns.get(identifier, 0) + 1
            if turns > 100:
                error = pb_utils.TritonError("too many turns", pb_utils.TritonError.INVALID_ARG)
                responses.append(pb_utils.InferenceResponse(output_tensors=[], error=error))
                continue
            self.turns[identifier] = turns
            if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END:
                del self.turns[identifier]
            count = np.full(text.shape, turns, dtype=np.int32)
            responses.append(pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("TURNS", count)]))
        return responses

    def finalize(self):
        self.turns.clear()
""",
    "dialogue/config.pbtxt": f"""
name: "dialogue"
backend: "python"
max_batch_size: 8
input [ {tensor("TEXT", "STRING", "1")} ]
output [ {tensor("TURNS", "INT32", "1")} ]
sequence_batching {{
  oldest {{ max_candidate_sequences: 1000 }}
  control_input [ {control("START", "START bool_false_true: [ false, true ]")},
                  {control("ID", "CORRID data_type: TYPE_STRING")} ]
}}
instance_group [ {{ kind: KIND_CPU }} ]
""",
    "iterative/1/model.py": """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            if x[0, 0] > 1:
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                responses.append(None)
            else:
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", x)]))
        return responses
""",
    "iterative/config.pbtxt": f"""
backend: "python"
max_batch_size: 4
input [ {tensor("x", "FP32", "1")} ]
output [ {tensor("y", "FP32", "1")} ]
sequence_batching {{ iterative_sequence: true }}
""",
}

RAGGED = {
    "encoder/1/model.onnx": f"""{ONNX}
encoder (int64[n] ids, int64[n] kinds, int32[starts] OFFSETS, int32[longest] LONGEST)
=> (float[n, 4] states, float[items, 2] pooled)
<float[8, 4] table = {{{", ".join(["0"] * 32)}}}>
{{ both = Add(ids, kinds)
states = Gather(table, both)
pooled = Identity(states) }}
""",
    "encoder/config.pbtxt": f"""
backend: "onnxruntime"
max_batch_size: 32
input [ {tensor("ids", "INT64", "-1", "allow_ragged_batch: true")},
        {tensor("kinds", "INT64", "-1", "allow_ragged_batch: true")} ]
batch_input [
  {{ kind: BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO target_name: "OFFSETS" data_type: TYPE_INT32
    source_input: "ids" }},
  {{ kind: BATCH_MAX_ELEMENT_COUNT_AS_SHAPE target_name: "LONGEST" data_type: TYPE_INT32 source_input: "ids" }}
]
output [ {tensor("states", "FP32", "-1, 4")}, {tensor("pooled", "FP32", "2")} ]
batch_output [ {{ target_name: "states" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "ids" }} ]
dynamic_batching {{ }}
instance_group [ {{ count: 1 }} ]
""",
}

STREAMS = {
    "writer/1/model.py": """
import threading

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.running = 0
        self.lock = threading.Lock()

    def execute(self, requests):
        for request in requests:
            with self.lock:
                self.running += 1
            sender = request.get_response_sender()
            count = pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy().item()
            threading.Thread(target=self.write, args=(sender, count), daemon=True).start()
        return None

    def write(self, sender, count):
        for word in range(count):
            if sender.is_cancelled():
                break
            out = pb_utils.Tensor("WORD", np.array([word], dtype=np.int32))
            sender.send(pb_utils.InferenceResponse(output_tensors=[out]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        with self.lock:
            self.running -= 1
""",
    "writer/config.pbtxt": f"""
backend: "python"
input [ {tensor("COUNT", "INT32", "1")} ]
output [ {tensor("WORD", "INT32", "1")} ]
model_transaction_policy {{ decoupled: true }}
instance_group [ {{ count: 1 }} ]
""",
    "language/1/model.json": '{"model": "facebook/opt-125m", "gpu_memory_utilization": 0.5}',
    "language/config.pbtxt": 'backend: "vllm"\ninstance_group [ { count: 1 kind: KIND_MODEL } ]\n',
    "reader/1/model.py": """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            count = pb_utils.get_input_tensor_by_name(request, "COUNT")
            call = pb_utils.InferenceRequest(model_name="writer", requested_output_names=["WORD"], inputs=[count])
            words = [part for part in call.exec(decoupled=True) if part.output_tensors()]
            last = pb_utils.get_output_tensor_by_name(words[-1], "WORD")
            response = pb_utils.InferenceResponse([last])
            request.get_response_sender().send(response, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
""",
    "reader/config.pbtxt": f"""
backend: "python"
input [ {tensor("COUNT", "INT32", "1")} ]
output [ {tensor("WORD", "INT32", "1")} ]
""",
}

WARMED_AND_CACHED = {
    "vision/1/model.xml": WEIGHTS,
    "vision/1/model.bin": WEIGHTS,
    "vision/warmup/picture": "x" * (3 * 8 * 8 * 4),
    "vision/config.pbtxt": f"""
backend: "openvino"
max_batch_size: 16
input [ {tensor("picture", "FP32", "3, -1, -1")} ]
output [ {tensor("class", "FP32", "10")} ]
dynamic_batching {{ default_queue_policy {{ max_queue_size: 100 }} }}
response_cache {{ enable: true }}
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
model_warmup [
  {{ name: "one" batch_size: 1
    inputs {{ key: "picture" value {{ data_type: TYPE_FP32 dims: [ 3, 8, 8 ] random_data: true }} }} }},
  {{ name: "real" batch_size: 16 count: 3
    inputs {{ key: "picture" value {{ data_type: TYPE_FP32 dims: [ 3, 8, 8 ] input_data_file: "picture" }} }} }}
]
""",
    "speech/1/model.onnx": f"{ONNX}speech (float[b, t] sound) => (float[b, t] clean) {{ clean = Identity(sound) }}",
    "speech/config.pbtxt": f"""
backend: "onnxruntime"
max_batch_size: 8
input [ {tensor("sound", "FP32", "-1")} ]
output [ {tensor("clean", "FP32", "-1")} ]
dynamic_batching {{ }}
instance_group [ {{ kind: KIND_GPU count: 1
  rate_limiter {{ resources [ {{ name: "memory" count: 2 }} ] priority: 2 }} }} ]
optimization {{
  graph {{ level: 1 }}
  execution_accelerators {{ gpu_execution_accelerator [ {{ name: "tensorrt"
    parameters {{ key: "precision_mode" value: "FP16" }}
    parameters {{ key: "max_workspace_size_bytes" value: "1073741824" }}
    parameters {{ key: "trt_profile_min_shapes" value: "sound:1x1600" }}
    parameters {{ key: "trt_profile_opt_shapes" value: "sound:8x16000" }}
    parameters {{ key: "trt_profile_max_shapes" value: "sound:8x160000" }} }} ] }}
}}
parameters {{ key: "intra_op_thread_count" value {{ string_value: "4" }} }}
parameters {{ key: "enable_mem_arena" value {{ string_value: "TRUE" }} }}
model_warmup [ {{ name: "long" batch_size: 8
  inputs {{ key: "sound" value {{ data_type: TYPE_FP32 dims: [ 160000 ] zero_data: true }} }} }} ]
""",
}

REPOSITORIES = {
    name.lower(): files for name, files in sorted(globals().items()) if name.isupper() and isinstance(files, dict)
}
