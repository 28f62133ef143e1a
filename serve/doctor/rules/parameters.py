"""P5: `parameters` of config.pbtxt: keys that are not read, and values that are refused."""

import difflib
from collections import Counter
from collections.abc import Iterator

from serve.doctor.configuration import Configuration
from serve.doctor.finding import Edit, Problem, Severity
from serve.doctor.rule import rule
from serve.policies import queue_limit
from serve.policies.policy_settings import KEYS

NUMBERS = (
    "intra_op_thread_count",
    "inter_op_thread_count",
    "execution_mode",
    "cudnn_conv_algo_search",
    "arena_extend_strategy",
)
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
    "padding_budget_run_elements",
    "pad",
    "pad_mask",
    "cut",
    "pad_lengths",
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
SWITCH_WORDS = ("true", "on", "1", "false", "off", "0")


def parameter_text(key: str, value: str) -> str:
    """One entry of `parameters`."""
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'


def place(config: Configuration, key: str) -> int:
    """The index of the last entry of `parameters` with this key, which is the one that counts; 0 if there is none."""
    document = config.document
    places = [
        index
        for index in range(len(document.values("parameters")))
        if (value := document.value("parameters", index, "key")) and document.slice(value).strip("\"'") == key
    ]
    return places[-1] if places else 0


def replaced_value(config: Configuration, key: str, text: str) -> tuple[Edit, ...]:
    """The edit that gives a parameter another text."""
    return config.document.replaced(f'"{text}"', "parameters", place(config, key), "value", "string_value")


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
    Fix: write the key as the backend reads it.
    """
    keys = KNOWN.get(config.backend, ())
    for key in config.proto.parameters:
        if key not in keys and (meant := _meant(key, keys)) and meant not in config.proto.parameters:
            yield Problem(
                config.at_parameter(key),
                f'parameter "{key}" is not read by the {config.backend} backend, and has no effect. '
                f'It reads "{meant}": write that.',
                fix=config.document.replaced(f'"{meant}"', "parameters", place(config, key), "key"),
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
    "P503",
    Severity.WARNING,
    bad=parameter_text("intra_op_thread_count", "1") + "\n" + parameter_text("intra_op_thread_count", "2"),
    good=parameter_text("intra_op_thread_count", "2"),
)
def a_parameter_is_set_once(config: Configuration) -> Iterator[Problem]:
    """A parameter is written twice.

    The last one counts, without a warning (measured: 1 and then 2 load as 2).

    Source: protobuf, map fields in text format.
    Fix: remove the first entry.
    """
    document = config.document
    keys = [
        document.slice(value).strip("\"'") if (value := document.value("parameters", index, "key")) else ""
        for index in range(len(document.values("parameters")))
    ]
    for key, times in Counter(keys).items():
        if key and times > 1:
            yield Problem(
                config.at_parameter(key),
                f'parameter "{key}" is set {times} times, and only the last one counts. Remove the others.',
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


@rule(
    "P505",
    Severity.ERROR,
    bad=parameter_text("enable_mem_arena", "yes"),
    good=parameter_text("enable_mem_arena", "true"),
    refused="failed to convert 'yes' to boolean",
)
def switches_are_switches(config: Configuration) -> Iterator[Problem]:
    """A switch of the onnxruntime backend is neither on nor off.

    It reads true, on, 1, false, off and 0, in any case.

    Source: onnxruntime_backend, ParseBoolParameter.
    Fix: write true or false.
    """
    for key in SWITCHES:
        value = config.parameter(key)
        if config.backend == "onnxruntime" and value is not None and value.lower() not in SWITCH_WORDS:
            word = {"yes": "true", "no": "false"}.get(value.lower())
            yield Problem(
                config.at_parameter(key),
                f'parameter "{key}" is "{value}", which is neither on nor off: the model cannot load. '
                "Write true or false.",
                fix=replaced_value(config, key, word) if word else (),
            )


@rule(
    "P506",
    Severity.ERROR,
    bad=parameter_text("execution_mode", "2"),
    good=parameter_text("execution_mode", "1"),
    refused="execution_mode are 0 or 1 but got 2",
)
def execution_mode_is_known(config: Configuration) -> Iterator[Problem]:
    """`execution_mode` is neither 0 (sequential) nor 1 (parallel).

    Source: onnxruntime_backend, onnxruntime.cc.
    Fix: write 0, or 1 for a graph with wide branches.
    """
    value = config.parameter("execution_mode")
    is_unknown = value is not None and _is_integer(value) and int(value) not in (0, 1)
    if config.backend == "onnxruntime" and is_unknown:
        yield Problem(
            config.at_parameter("execution_mode"),
            f'execution_mode is "{value}", and only 0 (sequential) and 1 (parallel) exist: the model cannot load. '
            "Write one of them.",
        )


@rule(
    "P507",
    Severity.WARNING,
    bad=parameter_text("inter_op_thread_count", "4"),
    good=parameter_text("inter_op_thread_count", "4") + "\n" + parameter_text("execution_mode", "1"),
)
def inter_op_threads_have_work(config: Configuration) -> Iterator[Problem]:
    """`inter_op_thread_count` has no effect in the sequential mode.

    In that mode, the default, onnxruntime runs one operator after the other and makes no such threads.

    Source: onnxruntime documentation, thread management.
    Fix: add execution_mode 1, or remove inter_op_thread_count.
    """
    value = config.parameter("inter_op_thread_count") or ""
    parallel = config.parameter("execution_mode") == "1"
    if config.backend == "onnxruntime" and value.isdecimal() and int(value) > 1 and not parallel:
        yield Problem(
            config.at_parameter("inter_op_thread_count"),
            f"inter_op_thread_count {value} has no effect in sequential mode, the default. "
            "Add execution_mode 1, or remove it.",
        )


@rule(
    "P508",
    Severity.ERROR,
    bad='backend: "python"\n' + parameter_text("FORCE_CPU_ONLY_INPUT_TENSORS", "false"),
    good='backend: "python"\n' + parameter_text("FORCE_CPU_ONLY_INPUT_TENSORS", "no"),
    refused="Incorrect value for FORCE_CPU_ONLY_INPUT_TENSORS: false",
)
def cpu_only_inputs_are_yes_or_no(config: Configuration) -> Iterator[Problem]:
    """`FORCE_CPU_ONLY_INPUT_TENSORS` is neither yes nor no.

    Capitals are refused as well.

    Source: python_backend, python_be.cc.
    Fix: write yes (inputs are copied to the CPU, the default) or no.
    """
    key = "FORCE_CPU_ONLY_INPUT_TENSORS"
    value = config.parameter(key)
    if config.backend == "python" and value is not None and value not in ("yes", "no"):
        words = dict.fromkeys(("true", "on", "1", "yes"), "yes") | dict.fromkeys(("false", "off", "0", "no"), "no")
        word = words.get(value.lower())
        yield Problem(
            config.at_parameter(key),
            f'{key} is "{value}", and only yes and no are allowed: the model cannot load. Write "{word or "no"}".',
            fix=replaced_value(config, key, word) if word else (),
        )
