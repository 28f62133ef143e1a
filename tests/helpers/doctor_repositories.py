"""A correct repository with models of many backends, in which the doctor must find no error.

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
        "recurrent",
        f"""
backend: "tensorrt" max_batch_size: 16
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
        inputs=tensor("frame", "FP32", "80, -1"),
        outputs=f"{tensor('letters', 'INT32', '-1')}, {tensor('hidden_out', 'FP32', '4')}",
        model_plan=WEIGHTS,
    ),
    "recurrent/initial_state/hidden": "0123456789abcdef",
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
    **model(
        "reader",
        'backend: "python"',
        inputs=tensor("COUNT", "INT32", "1"),
        outputs=tensor("WORD", "INT32", "1"),
        model_py=f"""{PYTHON}
    def execute(self, requests):
        for request in requests:
            count = pb_utils.get_input_tensor_by_name(request, "COUNT")
            call = pb_utils.InferenceRequest(model_name="writer", requested_output_names=["WORD"], inputs=[count])
            words = [part for part in call.exec(decoupled=True) if part.output_tensors()]
            last = pb_utils.get_output_tensor_by_name(words[-1], "WORD")
            response = pb_utils.InferenceResponse([last])
            request.get_response_sender().send(response, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
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
MODELS = {**SEQUENCES, **STREAMS, **RAGGED}
