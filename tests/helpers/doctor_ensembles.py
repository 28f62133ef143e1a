"""More models for the correct repository: ensembles and their steps, and one model for each other backend."""

from doctor_repositories import ONNX, PYTHON, WEIGHTS, model, parameters, step, tensor

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
CALLS = {
    **model(
        "router",
        f"""
backend: "python" max_batch_size: 8 dynamic_batching {{ }}
{parameters(FORCE_CPU_ONLY_INPUT_TENSORS="no", tenant="north")}""",
        inputs=tensor("x", "FP32", "4"),
        outputs=tensor("z", "FP32", "4"),
        model_py=f"""import asyncio

{PYTHON}
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
    ),
    **{
        path: text
        for name in ("first", "second")
        for path, text in model(
            name,
            f"""
backend: "pytorch" max_batch_size: 8 dynamic_batching {{ }} instance_group [ {{ kind: KIND_GPU count: 1 }} ]
{parameters(INFERENCE_MODE="true", DISABLE_OPTIMIZED_EXECUTION="true")}""",
            inputs=tensor("x", "FP32", "4"),
            outputs=tensor("y", "FP32", "4"),
            model_pt=WEIGHTS,
        ).items()
    },
}
WARMED_AND_CACHED = {
    **model(
        "vision",
        f"""
backend: "openvino" max_batch_size: 16 dynamic_batching {{ default_queue_policy {{ max_queue_size: 100 }} }}
response_cache {{ enable: true }}
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
{parameters(ENABLE_BATCH_PADDING="NO")}
model_warmup [
  {{ name: "one" batch_size: 1
    inputs {{ key: "picture" value {{ data_type: TYPE_FP32 dims: [ 3, 8, 8 ] random_data: true }} }} }},
  {{ name: "real" batch_size: 16 count: 3
    inputs {{ key: "picture" value {{ data_type: TYPE_FP32 dims: [ 3, 8, 8 ] input_data_file: "picture" }} }} }}
]
""",
        inputs=tensor("picture", "FP32", "3, -1, -1"),
        outputs=tensor("class", "FP32", "10"),
        model_xml=WEIGHTS,
        model_bin=WEIGHTS,
    ),
    "vision/warmup/picture": "x" * (3 * 8 * 8 * 4),
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
    **model(
        "pass",
        'backend: "identity" max_batch_size: 8 instance_group [ { kind: KIND_CPU } ]'
        + parameters(execute_delay_ms="10"),
        inputs=tensor("INPUT0", "UINT8", "-1"),
        outputs=tensor("OUTPUT0", "UINT8", "-1"),
    ),
    **model(
        "identity.identity",
        "max_batch_size: 8 dynamic_batching { }",
        inputs=tensor("IN", "INT32", "16"),
        outputs=tensor("OUT", "INT32", "16"),
    ),
    **model(
        "forever",
        'backend: "repeat" model_transaction_policy { decoupled: True } instance_group [ { count: 1 kind: KIND_CPU } ]',
        inputs=f"{tensor('IN', 'INT32', '-1')}, {tensor('DELAY', 'UINT32', '-1')}, {tensor('WAIT', 'UINT32', '1')}",
        outputs=f"{tensor('OUT', 'INT32', '1')}, {tensor('IDX', 'UINT32', '1')}",
    ),
    **model(
        "eager",
        'backend: "pytorch" runtime: "model.py" max_batch_size: 8 dynamic_batching { }',
        inputs=tensor("INPUT__0", "FP32", "4"),
        outputs=tensor("OUTPUT__0", "FP32", "4"),
        model_py="import torch\n\n\nclass Net(torch.nn.Module):\n    def forward(self, x):\n        return x\n",
    ),
    "frozen/3/model.graphdef": WEIGHTS,
    "frozen/config.pbtxt": """
platform: "tensorflow_graphdef"
input: { name: "x", data_type: TYPE_FP32, dims: 1, dims: 28, dims: 28 }
output: { name: "y", data_type: TYPE_FP32, dims: 1, dims: 10 }
""",
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
    "own/1/weights": WEIGHTS,
    "own/config.pbtxt": f"""
backend: "company_backend" max_batch_size: 4 dynamic_batching {{ }}
input [ {tensor("a", "BF16", "4")} ]
output [ {tensor("b", "BF16", "4")} ]
instance_group [ {{ count: 1 passive: false host_policy: "near" }} ]
{parameters(intra_op_num_threads="of its own")}""",
}
MODELS = {**PIPELINE, **NESTED, **CALLS, **WARMED_AND_CACHED, **OTHERS}
