"""Random models with mistakes of the kind that `--fix` mends, beside others that it must leave alone."""

import random

from serve.doctor.rule import PYTHON_MODEL, Example
from serve.doctor.rules.ensembles import STEP_CONFIG, ensemble_text, step_text
from serve.doctor.rules.graph_shapes import FIXED, FREE
from serve.doctor.rules.parameters import parameter_text

GRAPHS = (FREE, FREE, FREE.replace("N,2", "N"), FIXED)
ENSEMBLE_SHARE, ONNX_SHARE = 0.1, 0.1
NAMES = (*[""] * 5, 'name: "other"')
SIZES = (*["max_batch_size: 8"] * 5, "max_batch_size: 1", "max_batch_size: 0")
TYPES = (*["TYPE_FP32"] * 7, "FP32", "fp32", "TYPE_INT64")
DIMS = ("2", "2", "2", "-1, 2", "8, 2", "-1", "3")
MORE = (*[""] * 4, "is_shape_tensor: true", "allow_ragged_batch: true", "reshape { shape: [ 2 ] }", "# kept\n")
SCHEDULERS = (
    *("", "dynamic_batching { }", "dynamic_batching { preferred_batch_size: [ 2, 4 ] }"),
    "dynamic_batching {\n  preferred_batch_size: 4  # kept\n  preferred_batch_size: 2\n}",
    "dynamic_batching { preferred_batch_size: [ 4 ], default_queue_policy { max_queue_size: 4 } }",
    "sequence_batching { oldest { max_candidate_sequences: 4 } }",
)
GROUPS = (*["instance_group [ { count: 1 } ]"] * 4, "instance_group { count: 1, kind: CPU }")
ZEROS = "value { data_type: TYPE_FP32 dims: [ 2 ] zero_data: true }"
PYTHON_EXTRAS = (
    *("", "model_transaction_policy { decoupled: false }"),
    *(parameter_text("force_cpu_only_input_tensors", word) for word in ("no", "off")),
    parameter_text("FORCE_CPU_ONLY_INPUT_TENSORS", "true"),
    *(f'model_warmup {{ name: "zeros" inputs {{ key: "{name}" {ZEROS} }} }}' for name in ("x", "z")),
)
ONNX_EXTRAS = (
    *("", parameter_text("intra_op_num_threads", "1"), parameter_text("intra_op_num_threads", "all")),
    *(parameter_text("Execution_mode", word) for word in ("1", "7")),
    f"{parameter_text('batch_policy', 'deadline')} {parameter_text('slo_ms', '50')}",
)


def model(seed: int) -> Example:
    """A model whose configuration is drawn from `seed`."""
    draw = random.Random(seed)
    if draw.random() < ENSEMBLE_SHARE:
        return _ensemble(draw)
    is_onnx = draw.random() < ONNX_SHARE
    lines = [
        'backend: "onnxruntime"' if is_onnx else 'backend: "python"',
        *(draw.choice(part) for part in (NAMES, SIZES)),
        *(_tensor(draw, kind, name) for kind, name in (("input", "x"), ("output", "y"))),
        draw.choice(SCHEDULERS),
        draw.choice(GROUPS),
        *draw.sample(ONNX_EXTRAS if is_onnx else PYTHON_EXTRAS, 2),
    ]
    files = {"1/model.onnx": draw.choice(GRAPHS)} if is_onnx else {"1/model.py": PYTHON_MODEL}
    return Example("\n".join(line for line in lines if line), files=files, whole=True)


def _tensor(draw: random.Random, kind: str, name: str) -> str:
    dims, more = draw.choice(DIMS), draw.choice(MORE if kind == "input" else MORE[:4])
    return f'{kind} [ {{ name: "{name}" data_type: {draw.choice(TYPES)} dims: [ {dims} ] {more} }} ]'


def _ensemble(draw: random.Random) -> Example:
    name = draw.choice(("part", "encoder"))
    part = f'name: "{name}"\n{STEP_CONFIG}'.replace("FP32", draw.choice(("FP32", "INT32")))
    files = {"../part/config.pbtxt": part, "../part/1/model.py": PYTHON_MODEL, "1/": ""}
    steps = ensemble_text(step_text(model=name)).replace(draw.choice(('platform: "ensemble"', "no text")), "")
    tensors = (f'{kind} [ {{ name: "{x}" data_type: FP32 dims: [ 2 ] }} ]\n' for kind, x in TENSORS)
    return Example(f"max_batch_size: 8\n{''.join(tensors)}{steps}", files=files, whole=True)


TENSORS = (("input", "x"), ("output", "y"))
