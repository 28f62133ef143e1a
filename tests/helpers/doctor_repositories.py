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
        "dialogue",
        f"""
name: "dialogue" backend: "python" max_batch_size: 8 instance_group [ {{ kind: KIND_CPU }} ]
sequence_batching {{
  oldest {{ max_candidate_sequences: 1000 }}
  control_input [ {control("START", "START bool_false_true: [ false, true ]")},
                  {control("ID", "CORRID data_type: TYPE_STRING")} ]
}}""",
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
            self.turns[identifier] = turns
            if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END:
                del self.turns[identifier]
            count = np.full((1, 1), turns, dtype=np.int32)
            responses.append(pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("TURNS", count)]))
        return responses
""",
    )
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
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("WORD", np.array([word], dtype=np.int32))]))
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
instance_group [ {{ count: 1 kind : KIND_CPU }} ] {parameters(gpt_model_type="inflight_fused_batching")}""",
        inputs=f"{tensor('input_ids', 'INT32', '-1', 'allow_ragged_batch: true')}, "
        + tensor("end_id", "INT32", "1", "reshape: { shape: [ ] } optional: true"),
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
        "classify",
        """
platform: "tensorrt_plan" max_batch_size: 64 dynamic_batching { } optimization { cuda { graphs: true } }
instance_group [ { kind: KIND_GPU count: 2 gpus: [ 0 ] profile: [ "0" ] } ]
""",
        inputs=tensor("input", "FP32", "3, 8, 8", "format: FORMAT_NCHW"),
        outputs=tensor("logits", "FP32", "10", 'label_filename: "labels.txt"'),
        model_plan=WEIGHTS,
    ),
    "classify/3/model.plan": WEIGHTS,
    "classify/labels.txt": "cat\ndog\n",
    **model(
        "features",
        """
platform: "tensorflow_savedmodel" max_batch_size: 128 version_policy { all { } }
dynamic_batching { preferred_batch_size: [ 64, 128 ] max_queue_delay_microseconds: 500 }
""",
        inputs=tensor("row", "FP64", "-1", "reshape { shape: [ -1 ] }"),
        outputs=tensor("picture", "FP32", "3, 8, 8"),
        **{"model.savedmodel/saved_model_pb": WEIGHTS},
    ),
    **model(
        "inner",
        f"""
name: "inner" platform: "ensemble" max_batch_size: 64 response_cache {{ enable: true }}
ensemble_scheduling {{
  {step("features", {"row": "ROW"}, {"picture": "p"})}
  {step("classify", {"input": "p"}, {"logits": "LOGITS"}, version=3)}
}}""",
        inputs=tensor("ROW", "FP64", "16"),
        outputs=tensor("LOGITS", "FP32", "10"),
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
max_batch_size: 0x10 backend: "onnx" "runtime" dynamic_batching { } instance_group [ { count: 1 kind: KIND_CPU } ]
""",
    **model(
        "tokens",
        'backend: "python" max_batch_size: 8 dynamic_batching { }\n'
        + parameters(EXECUTION_ENV_PATH="$$TRITON_MODEL_DIRECTORY/environment"),
        inputs=tensor("TEXT", "STRING", "1"),
        outputs=tensor("IDS", "INT32", "-1"),
        model_py="import sys\n\nsys.path.append('.')\nfrom tokenizer import TokenizerModel as TritonPythonModel\n",
        tokenizer_py="class TokenizerModel:\n    def execute(self, requests):\n        return []\n",
    ),
    "tokens/environment/lib/python3.10/site.py": "",
}
MODELS = {**SEQUENCES, **STREAMS, **RAGGED, **PIPELINE, **OTHERS}
