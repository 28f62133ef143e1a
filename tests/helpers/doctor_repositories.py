"""A correct repository with models of several backends, in which the doctor must find no error.

The files are by path; a path that ends in "/" is an empty folder. An ONNX file is in ONNX's text format; a model file
of another backend holds anything, because the doctor does not read it.
"""

from collections.abc import Mapping

ONNX = '<ir_version: 8, opset_import: ["" : 17]>\n'
WEIGHTS = "weights of a backend that the doctor does not read"
PYTHON = "import numpy as np\nimport triton_python_backend_utils as pb_utils\n\n\nclass TritonPythonModel:\n"


def tensor(name: str, kind: str, dims: str, rest: str = "") -> str:
    return f'{{ name: "{name}" data_type: TYPE_{kind} dims: [ {dims} ] {rest} }}'


def control(name: str, kind: str) -> str:
    return f'{{ name: "{name}" control [ {{ kind: CONTROL_SEQUENCE_{kind} }} ] }}'


def parameters(**values: str) -> str:
    entry = 'parameters {{ key: "{}" value: {{ string_value: "{}" }} }}\n'
    return "".join(entry.format(key, value) for key, value in values.items())


def step(model: str, inputs: Mapping[str, str], outputs: Mapping[str, str], version: int = -1) -> str:
    maps = [f'input_map {{ key: "{key}" value: "{value}" }}' for key, value in inputs.items()]
    maps += [f'output_map {{ key: "{key}" value: "{value}" }}' for key, value in outputs.items()]
    return f'step [ {{ model_name: "{model}" model_version: {version} {" ".join(maps)} }} ]\n'


def model(name: str, config: str, *, inputs: str, outputs: str, **files: str) -> dict[str, str]:
    """A model of the repository; `files` are by the name of a file of version 1, with _ for its last dot."""
    paths = {f"{name}/1/{'.'.join(path.rsplit('_', 1))}": text for path, text in files.items()} or {f"{name}/1/": ""}
    return {**paths, f"{name}/config.pbtxt": f"{config.strip()}\ninput [ {inputs} ]\noutput [ {outputs} ]\n"}


SEQUENCES = {
    **model(
        "accumulator",
        f"""
name: "accumulator" platform: "onnxruntime_onnx" max_batch_size: 4
sequence_batching {{
  max_sequence_idle_microseconds: 5000000
  direct {{ max_queue_delay_microseconds: 1000 minimum_slot_utilization: 0.75 }}
  control_input [ {control("START", "START fp32_false_true: [ 0, 1 ]")},
    {control("END", "END bool_false_true: [ false, true ]")},
    {control("READY", "READY int32_false_true: [ 0, 1 ]")}, {control("ID", "CORRID data_type: TYPE_UINT64")} ]
  state [ {{
    input_name: "SUM_IN" output_name: "SUM_OUT" data_type: TYPE_FP32 dims: [ 1 ]
    initial_state {{ name: "zeros" data_type: TYPE_FP32 dims: [ 1 ] zero_data: true }}
  }} ]
}}
instance_group [ {{ kind: KIND_GPU count: 1 }} ]
""",
        inputs=tensor("x", "FP32", "1"),
        outputs=tensor("SUM", "FP32", "1"),
        model_onnx=f"""{ONNX}
accumulator (float[b, 1] x, float[b, 1] START, bool[b, 1] END, int32[b, 1] READY, uint64[b, 1] ID, float[b, 1] SUM_IN)
=> (float[b, 1] SUM, float[b, 1] SUM_OUT)
{{ more = Add(x, SUM_IN)
SUM = Add(more, START)
SUM_OUT = Identity(SUM) }}
""",
    ),
    **model(
        "dialogue",
        f"""
name: "dialogue" backend: "python" max_batch_size: 8
sequence_batching {{
  oldest {{ max_candidate_sequences: 1000 }}
  control_input [ {control("START", "START bool_false_true: [ false, true ]")},
                  {control("ID", "CORRID data_type: TYPE_STRING")} ]
}}
instance_group [ {{ kind: KIND_CPU }} ]
""",
        inputs=tensor("TEXT", "STRING", "1"),
        outputs=tensor("TURNS", "INT32", "1"),
        model_py=f"""{PYTHON}
    def initialize(self, args):
        self.turns = {{}}

    def execute(self, requests):
        responses = []
        for request in requests:
            identifier = request.correlation_id()
            start = pb_utils.get_input_tensor_by_name(request, "START").as_numpy().item()
            turns = 1 if start else self.turns.get(identifier, 0) + 1
            if turns > 100:
                error = pb_utils.TritonError("too many turns", pb_utils.TritonError.INVALID_ARG)
                responses.append(pb_utils.InferenceResponse(output_tensors=[], error=error))
                continue
            self.turns[identifier] = turns
            if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END:
                del self.turns[identifier]
            count = np.full((1, 1), turns, dtype=np.int32)
            responses.append(pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("TURNS", count)]))
        return responses
""",
    ),
    **model(
        "iterative",
        'backend: "python" max_batch_size: 4 sequence_batching { iterative_sequence: true }',
        inputs=tensor("x", "FP32", "1"),
        outputs=tensor("y", "FP32", "1"),
        model_py=f"""{PYTHON}
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
    ),
}
STREAMS = {
    **model(
        "writer",
        'backend: "python" model_transaction_policy { decoupled: true } instance_group [ { count: 1 } ]',
        inputs=tensor("COUNT", "INT32", "1"),
        outputs=tensor("WORD", "INT32", "1"),
        model_py=f"""import threading

{PYTHON}
    def execute(self, requests):
        for request in requests:
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
""",
    ),
    "language/1/model.json": '{"model": "facebook/opt-125m", "gpu_memory_utilization": 0.5}',
    "language/config.pbtxt": 'backend: "vllm"\ninstance_group [ { count: 1 kind: KIND_MODEL } ]\n',
    **model(
        "tensorrt_llm",
        f"""
name: "tensorrt_llm" backend: "tensorrtllm" max_batch_size: 64 model_transaction_policy {{ decoupled: true }}
dynamic_batching {{
  preferred_batch_size: [ 64 ] max_queue_delay_microseconds: 0 default_queue_policy {{ max_queue_size: 0 }}
}}
instance_group [ {{ count: 1 kind : KIND_CPU }} ]
{parameters(gpt_model_type="inflight_fused_batching", gpt_model_path="/engines/llama")}""",
        inputs=", ".join(
            [
                tensor("input_ids", "INT32", "-1", "allow_ragged_batch: true"),
                tensor("input_lengths", "INT32", "1", "reshape: { shape: [ ] }"),
                tensor("end_id", "INT32", "1", "reshape: { shape: [ ] } optional: true"),
            ]
        ),
        outputs=tensor("output_ids", "INT32", "-1, -1"),
    ),
}
RAGGED = model(
    "encoder",
    """
backend: "onnxruntime" max_batch_size: 32 dynamic_batching { } instance_group [ { count: 1 } ]
batch_input [
  { kind: BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO target_name: "OFFSETS" data_type: TYPE_INT32 source_input: "ids" },
  { kind: BATCH_MAX_ELEMENT_COUNT_AS_SHAPE target_name: "LONGEST" data_type: TYPE_INT32 source_input: "ids" }
]
batch_output [ { target_name: "states" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "ids" } ]
""",
    inputs=", ".join(tensor(name, "INT64", "-1", "allow_ragged_batch: true") for name in ("ids", "kinds")),
    outputs=f"{tensor('states', 'FP32', '-1, 4')}, {tensor('pooled', 'FP32', '2')}",
    model_onnx=f"""{ONNX}
encoder (int64[n] ids, int64[n] kinds, int32[starts] OFFSETS, int32[longest] LONGEST)
=> (float[n, 4] states, float[items, 2] pooled)
<float[8, 4] table = {{{", ".join(["0"] * 32)}}}>
{{ both = Add(ids, kinds)
states = Gather(table, both)
pooled = Identity(states) }}
""",
)
PIPELINE = {
    **model(
        "decode",
        f'name: "decode" backend: "dali" max_batch_size: 64 dynamic_batching {{ }}\n{parameters(num_threads="4")}',
        inputs=tensor("JPEG", "UINT8", "-1", "allow_ragged_batch: true"),
        outputs=tensor("PICTURE", "FP32", "3, 224, 224"),
        model_dali=WEIGHTS,
    ),
    **model(
        "classify",
        """
platform: "tensorrt_plan" max_batch_size: 64 dynamic_batching { } optimization { cuda { graphs: true } }
instance_group [ { kind: KIND_GPU count: 2 gpus: [ 0 ] profile: [ "0" ] } ]
""",
        inputs=tensor("input", "FP32", "3, 224, 224", "format: FORMAT_NCHW"),
        outputs=tensor("logits", "FP32", "1000", 'label_filename: "labels.txt"'),
        model_plan=WEIGHTS,
    ),
    "classify/3/model.plan": WEIGHTS,
    "classify/labels.txt": "cat\ndog\n",
    **model(
        "explain",
        'backend: "python" max_batch_size: 64 dynamic_batching { }',
        inputs=f"{tensor('LOGITS', 'FP32', '1000')}, {tensor('THRESHOLD', 'FP32', '1', 'optional: true')}",
        outputs=tensor("NAME", "STRING", "1"),
        model_py=f"""import json

{PYTHON}
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
    ),
    **model(
        "pipeline",
        f"""
name: "pipeline" platform: "ensemble" max_batch_size: 32 response_cache {{ enable: true }}
ensemble_scheduling {{
  {step("decode", {"JPEG": "JPEG"}, {"PICTURE": "picture"})}
  {step("classify", {"input": "picture"}, {"logits": "LOGITS"}, version=3)}
  {step("explain", {"LOGITS": "LOGITS"}, {"NAME": "NAME"})}
}}
""",
        inputs=tensor("JPEG", "UINT8", "-1"),
        outputs=f"{tensor('NAME', 'STRING', '1')}, {tensor('LOGITS', 'FP32', '1000')}",
    ),
}
NESTED = {
    **model(
        "trees",
        f"""
backend: "fil" max_batch_size: 32768 dynamic_batching {{ }} instance_group [ {{ kind: KIND_AUTO }} ]
{parameters(model_type="xgboost_json", predict_proba="true", output_class="true")}""",
        inputs=tensor("input__0", "FP32", "32"),
        outputs=tensor("output__0", "FP32", "2"),
        xgboost_json=WEIGHTS,
    ),
    **model(
        "features",
        """
platform: "tensorflow_savedmodel" max_batch_size: 128 version_policy { all { } }
dynamic_batching { preferred_batch_size: [ 64, 128 ] max_queue_delay_microseconds: 500 }
""",
        inputs=tensor("row", "FP64", "-1", "reshape { shape: [ -1 ] }"),
        outputs=tensor("features", "FP32", "32"),
        **{"model.savedmodel/saved_model_pb": WEIGHTS},
    ),
    **model(
        "inner",
        f"""
platform: "ensemble" max_batch_size: 128
ensemble_scheduling {{
  {step("features", {"row": "ROW"}, {"features": "f"})}
  {step("trees", {"input__0": "f"}, {"output__0": "CLASS"})}
}}
""",
        inputs=tensor("ROW", "FP64", "16"),
        outputs=tensor("CLASS", "FP32", "2"),
    ),
    **model(
        "outer",
        f"""
platform: "ensemble" max_batch_size: 0
ensemble_scheduling {{ {step("inner", {"ROW": "ROWS"}, {"CLASS": "CLASSES"})} }}
""",
        inputs=tensor("ROWS", "FP64", "-1, 16"),
        outputs=tensor("CLASSES", "FP32", "-1, 2"),
    ),
}
ACCELERATED = {
    **model(
        "speech",
        f"""
backend: "onnxruntime" max_batch_size: 8 dynamic_batching {{ }}
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
{parameters(intra_op_thread_count="4", enable_mem_arena="TRUE")}
model_warmup [ {{ name: "long" batch_size: 8
  inputs {{ key: "sound" value {{ data_type: TYPE_FP32 dims: [ 160000 ] zero_data: true }} }} }} ]
""",
        inputs=tensor("sound", "FP32", "-1"),
        outputs=tensor("clean", "FP32", "-1"),
        model_onnx=f"{ONNX}speech (float[b, t] sound) => (float[b, t] clean) {{ clean = Identity(sound) }}",
    ),
}
OTHERS = {
    # Nothing but the file: the server completes it.
    "unwritten/1/model.onnx": f"{ONNX}unwritten (float[b, 2] x) => (float[b, 2] y) {{ y = Identity(x) }}",
    "images/1/model.onnx": f"{ONNX}i (float[n,3,8] images) => (float[n,3,8] features) {{ features = Relu(images) }}",
    "images/config.pbtxt": """
# A comment, and fields in the order of another tool.
input < name: 'images' data_type: TYPE_FP32 dims: [3, 8] >;
output { name: "features", data_type: TYPE_FP32, dims: [3, 8] }
max_batch_size: 0x10
backend: "onnx" "runtime"
dynamic_batching { }
instance_group [ { count: 1 kind: KIND_CPU } ]
""",
    **model(
        "tokens",
        f"""
backend: "python" max_batch_size: 8 dynamic_batching {{ }}
{parameters(EXECUTION_ENV_PATH="$$TRITON_MODEL_DIRECTORY/environment")}""",
        inputs=tensor("TEXT", "STRING", "1"),
        outputs=tensor("IDS", "INT32", "-1"),
        model_py="import os\nimport sys\n\nsys.path.append(os.path.dirname(__file__))\n"
        "from tokenizer import TokenizerModel as TritonPythonModel\n",
        tokenizer_py="class TokenizerModel:\n    def execute(self, requests):\n        return []\n",
    ),
    "tokens/environment/lib/python3.10/site.py": "",
}
MODELS = {**SEQUENCES, **STREAMS, **RAGGED, **PIPELINE, **NESTED, **ACCELERATED, **OTHERS}
