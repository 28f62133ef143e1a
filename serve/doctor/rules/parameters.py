"""P5: `parameters` of config.pbtxt, accelerators, and the batch policy and queue limit of our backend."""

import difflib
from collections.abc import Iterator

from google.protobuf.json_format import MessageToDict

from serve.doctor.configuration import Configuration
from serve.doctor.differences import variable_inputs
from serve.doctor.finding import Problem, Severity
from serve.doctor.rule import rule
from serve.policies import queue_limit
from serve.policies.policy_settings import KEYS, PolicyError, PolicySettings

THREADS = ("intra_op_thread_count", "inter_op_thread_count")
NUMBERS = (
    *THREADS, "execution_mode", "cudnn_conv_algo_search", "arena_extend_strategy",
)  # fmt: skip
SWITCHES = ("enable_mem_arena", "enable_mem_pattern")
ONNXRUNTIME = (
    *NUMBERS,
    *SWITCHES,
    "memory.enable_memory_arena_shrinkage",
    "session.use_device_allocator_for_initializers",
    "gpu_mem_limit",
    "do_copy_in_default_stream",
    # of this project's backend
    "nan_outputs",
    "padding_budget",
    "pad",
    "pad_mask",
    "cut",
    "pad_lengths",
    "pad_longest",
    *KEYS,
    queue_limit.KEY,
)
PYTHON = ("EXECUTION_ENV_PATH", "FORCE_CPU_ONLY_INPUT_TENSORS")
EVERY = ("TRITON_BATCH_STRATEGY_PATH",)
KNOWN = {"onnxruntime": (*ONNXRUNTIME, *EVERY), "python": (*PYTHON, *EVERY)}
# onnxruntime's own names, and the names of the server's flags.
RENAMED = {
    "intra_op_num_threads": "intra_op_thread_count",
    "inter_op_num_threads": "inter_op_thread_count",
    "enable_cpu_mem_arena": "enable_mem_arena",
}
CLOSE = 0.85


def parameter_text(key: str, value: str) -> str:
    """One entry of `parameters`."""
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'


def _key(config: Configuration, key: str) -> tuple[str, int, str]:
    """The place of this key in the last entry of `parameters` that has it, which is the one that counts."""
    document = config.document
    entries = [
        index
        for index in range(len(document.values("parameters")))
        if (value := document.value("parameters", index, "key")) and document.slice(value).strip("\"'") == key
    ]
    return "parameters", entries[-1] if entries else 0, "key"


def _meant(key: str, keys: tuple[str, ...]) -> str | None:
    """The known key that an unknown one resembles."""
    if key in RENAMED and RENAMED[key] in keys:
        return RENAMED[key]
    lower = {name.lower(): name for name in keys}
    close = difflib.get_close_matches(key.lower().replace("-", "_"), lower, n=1, cutoff=CLOSE)
    return lower[close[0]] if close else None


@rule(
    "P501",
    Severity.WARNING,
    bad=parameter_text("intra_op_num_threads", "1"),
    good=parameter_text("intra_op_thread_count", "1"),
)
def parameters_are_spelt_as_they_are_read(config: Configuration) -> Iterator[Problem]:
    """A parameter's key is misspelt.

    The backend ignores unknown keys without a warning, so the setting has no effect. Case matters:
    `force_cpu_only_input_tensors: "banana"` loads (measured), in capitals it is refused. onnxruntime calls it
    intra_op_num_threads, Triton's backend intra_op_thread_count.

    Source: onnxruntime_backend README; python_backend, python_be.cc; onnxruntime_backend#34.
    Fix: write the key as the backend reads it (`--fix` does for counts of threads).
    """
    keys = KNOWN.get(config.backend, ())
    for key in config.proto.parameters:
        if key not in keys and (meant := _meant(key, keys)) and meant not in config.proto.parameters:
            yield Problem(
                config.at_parameter(key),
                f'parameter "{key}" is not read by the {config.backend} backend, and has no effect. '
                f'It reads "{meant}": write that.',
                # Other parameters take only some values, and one that was not read may have a wrong one.
                fix=config.document.replaced(f'"{meant}"', *_key(config, key)) if meant in THREADS else (),
            )


@rule("P502", Severity.INFO, bad=parameter_text("graph_optimization", "2"), good="optimization { graph { level: 2 } }")
def onnxruntime_reads_the_parameter(config: Configuration) -> Iterator[Problem]:
    """The onnxruntime backend does not read a parameter.

    The model loads, and the backend ignores the parameter without a warning. That is right for a note to other
    programs, but not for a setting.

    Source: onnxruntime_backend README.
    Fix: look for the setting in the backend's parameters, `optimization` and accelerators, or remove it.
    """
    for key in config.proto.parameters:
        if config.backend == "onnxruntime" and key not in KNOWN["onnxruntime"] and not _meant(key, ONNXRUNTIME):
            yield Problem(
                config.at_parameter(key),
                f'parameter "{key}" is not read by the onnxruntime backend, and has no effect there. '
                "Remove it, unless another program reads it.",
            )


@rule(
    "P504",
    Severity.ERROR,
    bad=parameter_text("intra_op_thread_count", "all"),
    good=parameter_text("intra_op_thread_count", "0"),
    refused="integral number",
)
def numbers_are_numbers(config: Configuration) -> Iterator[Problem]:
    """A parameter of the onnxruntime backend is not a whole number.

    The model is refused: "failed to convert 'all' to int integral number".

    Source: onnxruntime_backend, ParseParameter; backend, backend_common.cc (ParseIntValue).
    Fix: write a whole number; for thread counts 0 lets onnxruntime choose.
    """
    for key in NUMBERS:
        value = config.parameter(key)
        if config.backend == "onnxruntime" and value is not None and not _is_integer(value):
            yield Problem(
                config.at_parameter(key),
                f'parameter "{key}" is "{value}", which is not a whole number: the model cannot load. Write a number.',
            )


def _is_integer(text: str) -> bool:
    try:
        int(text)
    except ValueError:
        return False
    return True


PROFILES = ("trt_profile_min_shapes", "trt_profile_max_shapes", "trt_profile_opt_shapes")
TENSOR = '[ { name: "%s" data_type: TYPE_FP32 dims: [ -1 ] } ]'
VARIABLE = f"input {TENSOR % 'x'}\noutput {TENSOR % 'y'}\n"


def _accelerated(**parameters: str) -> str:
    entries = " ".join(f'parameters {{ key: "{key}" value: "{value}" }}' for key, value in parameters.items())
    accelerator = f'gpu_execution_accelerator [ {{ name: "tensorrt" {entries} }} ]'
    return f"{VARIABLE}optimization {{ execution_accelerators {{ {accelerator} }} }}"


@rule(
    "P526",
    Severity.WARNING,
    bad=_accelerated(precision_mode="FP16"),
    good=_accelerated(
        trt_profile_min_shapes="x:1x1", trt_profile_opt_shapes="x:8x64", trt_profile_max_shapes="x:8x512"
    ),
)
def tensorrt_knows_the_shapes(config: Configuration) -> Iterator[Problem]:
    """The TensorRT accelerator has no shape profile, and an input has a variable shape.

    TensorRT builds a new engine during the request whenever a shape lies outside the earlier ones. That takes seconds
    to minutes, in which the instance answers no request.

    Source: onnxruntime documentation, TensorRT execution provider (explicit shapes); onnxruntime#6978, server#3701.
    Fix: set trt_profile_min_shapes, trt_profile_opt_shapes and trt_profile_max_shapes, and warm the model up.
    """
    if config.backend != "onnxruntime" or not any(True for _ in variable_inputs(config)):
        return
    accelerators = config.proto.optimization.execution_accelerators.gpu_execution_accelerator
    for index, accelerator in enumerate(accelerators):
        if accelerator.name == "tensorrt" and not all(key in accelerator.parameters for key in PROFILES):
            yield Problem(
                config.at("optimization", "execution_accelerators", "gpu_execution_accelerator", index),
                "TensorRT builds an engine for each new shape while requests wait, and an input has a -1. "
                f"Set {', '.join(PROFILES)}.",
            )


AIMD = parameter_text("batch_policy", "aimd")
DEADLINE = parameter_text("batch_policy", "deadline") + "\n" + parameter_text("slo_ms", "50")
CARRIED, LIMIT_CARRIED = "policy_loop.py", "queue_limit.py"


def _is_read(config: Configuration, carried: str = CARRIED) -> bool:
    """Whether what serves the model reads the parameters."""
    if config.backend == "onnxruntime":
        return True
    path = config.model_file
    return config.backend == "python" and path is not None and path.with_name(carried).is_file()


def can_be_limited(config: Configuration) -> bool:
    """Whether this project's backend, or the model.py, reads `queue_limit_ms`."""
    return _is_read(config, LIMIT_CARRIED)


def is_limited(config: Configuration) -> bool:
    """Whether what serves the model refuses requests that wait too long, apart from Triton's own queue policy."""
    policy = _policy(config)
    # With a batch policy nothing reads the limit.
    has_limit = not policy and config.parameter(queue_limit.KEY) is not None and _is_read(config, LIMIT_CARRIED)
    return has_limit or policy == "deadline"


def _policy(config: Configuration) -> str:
    """`aimd` or `deadline`; "" for any other value, or if it is not read."""
    value = config.parameter("batch_policy") or ""
    return value if value in ("aimd", "deadline") and _is_read(config) else ""


@rule("P541", Severity.ERROR, bad=AIMD, good=f"{AIMD}\n{parameter_text('slo_ms', '30')}", refused="and no slo_ms")
def a_policy_can_be_used(config: Configuration) -> Iterator[Problem]:
    """A batch policy is unknown, has no target, or is set for a model that cannot have one.

    This project's backend refuses the model. `batch_policy` is all, aimd or deadline; the last two need `slo_ms`, in
    milliseconds, and `max_batch_size`. A model with the sequence batcher and a decoupled model cannot have one.
    `aimd_step` is a number above 0, `aimd_factor` one between 0 and 1, `batch_policy_log` true or false.

    Source: serve/backends/onnxruntime/README.md.
    Fix: add or correct the parameter that the message names.
    """
    if not _is_read(config):
        return
    try:
        PolicySettings.of({"name": config.model.name, **MessageToDict(config.proto, preserving_proto_field_name=True)})
    except PolicyError as error:
        yield Problem(config.at_parameter(error.key), f"{error} The model cannot load.")


@rule(
    "P543",
    Severity.WARNING,
    bad=f"{DEADLINE}\ndynamic_batching {{ max_queue_delay_microseconds: 2000 }}",
    good=f"{DEADLINE}\ndynamic_batching {{ }}",
)
def a_policy_sees_requests_at_once(config: Configuration) -> Iterator[Problem]:
    """The batcher delays requests before a batch policy gets them.

    The policy forms the batches itself, from requests as they come. It does not know of a delay in Triton's batcher,
    which is added to every request and taken from its deadline.

    Source: serve/backends/onnxruntime/README.md.
    Fix: remove max_queue_delay_microseconds.
    """
    delay = config.proto.dynamic_batching.max_queue_delay_microseconds
    if delay and (policy := _policy(config)):
        yield Problem(
            config.at("dynamic_batching", "max_queue_delay_microseconds"),
            f"batch_policy {policy} does not know of requests that the batcher delays, here for up to {delay} us. "
            "Remove the delay.",
            fix=config.document.removed("dynamic_batching", "max_queue_delay_microseconds"),
        )


@rule(
    "P545",
    Severity.INFO,
    bad=f"{DEADLINE}\ninstance_group [ {{ count: 2 kind: KIND_CPU }} ]",
    good=f"{DEADLINE}\ninstance_group [ {{ count: 1 kind: KIND_CPU }} ]",
)
def a_policy_has_one_instance(config: Configuration) -> Iterator[Problem]:
    """A model with a batch policy has several instances.

    Each instance takes requests immediately and has a queue of its own, so a request may wait for one instance while
    another is idle.

    Source: serve/backends/onnxruntime/README.md.
    Fix: write count: 1, and let the policy form larger batches.
    """
    for index, group in enumerate(config.proto.instance_group):
        if group.count > 1 and (policy := _policy(config)):
            yield Problem(
                config.at("instance_group", index, "count"),
                f"batch_policy {policy} on {group.count} instances: each has a queue of its own, so a request may wait "
                "while another instance is idle. Use count: 1.",
            )
