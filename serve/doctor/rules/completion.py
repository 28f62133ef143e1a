"""M8: `auto_complete_config` against config.pbtxt."""

import ast
from collections.abc import Iterator
from typing import Any

from serve.doctor.configuration import Source
from serve.doctor.finding import Problem, Severity
from serve.doctor.rule import PYTHON_MODEL, Example, rule
from serve.doctor.rules.completions import UNKNOWN, Setting, completion, is_known, settings
from serve.doctor.rules.requests import own
from serve.doctor.rules.responses import PYTHON

KEYS = {"add_input": ("name", "data_type", "dims", "optional"), "add_output": ("name", "data_type", "dims")}
NEEDED = ("name", "data_type", "dims")
SEQUENCES = f"{PYTHON}\nsequence_batching {{ }}"
DEFAULT_MODE = f"{PYTHON}\nmodel_transaction_policy {{ decoupled: false }}"


def completing(*lines: str, config: str = PYTHON, returned: str = "        return config\n") -> Example:
    """A Python model whose `auto_complete_config` has these lines."""
    body = "".join(f"        {line}\n" for line in lines) + returned
    method = f"class TritonPythonModel:\n    @staticmethod\n    def auto_complete_config(config):\n{body}\n"
    return Example(config, files={"1/model.py": PYTHON_MODEL.replace("class TritonPythonModel:\n", method)})


def tensor(**changes: str) -> str:
    """The text of a dict for add_input, right for the examples but for the changes; "" leaves a key out."""
    fields = {"name": '"x"', "data_type": '"TYPE_FP32"', "dims": "[2]"} | changes
    return "{" + ", ".join(f'"{key}": {value}' for key, value in fields.items() if value) + "}"


GOOD = completing("config.set_max_batch_size(8)", f"config.add_input({tensor()})")


def _certain(source: Source, *methods: str) -> Iterator[Setting]:
    return (setting for setting in settings(source) if setting.is_certain and setting.method in methods)


@rule(
    "M841",
    Severity.ERROR,
    bad=completing("config.set_max_batch_size(4)"),
    good=GOOD,
    refused="configuration specified max_batch_size 8, but in auto-complete-config function for model 'example' "
    "specified max_batch_size 4",
)
def completed_max_batch_size_is_not_smaller(source: Source) -> Iterator[Problem]:
    """`auto_complete_config` sets a smaller `max_batch_size` than the file.

    Not called with --disable-auto-complete-config: then the model loads.

    Source: python_backend, triton_python_backend_utils.py (ModelConfig.set_max_batch_size).
    Fix: set the same value, or remove max_batch_size from config.pbtxt.
    """
    most = source.configuration.proto.max_batch_size
    for setting in _certain(source, "set_max_batch_size"):
        if isinstance(setting.value, int) and setting.value < most:
            yield Problem(
                source.at(setting.node),
                f"auto_complete_config sets max_batch_size {setting.value} and the configuration has {most}, so the "
                "model cannot load. Set the same value in both.",
            )


@rule(
    "M842",
    Severity.WARNING,
    bad=completing("config.set_max_batch_size(64)"),
    good=GOOD,
)
def completed_max_batch_size_is_the_same(source: Source) -> Iterator[Problem]:
    """`auto_complete_config` sets a larger `max_batch_size` than the file, and wins.

    Measured: 8 in config.pbtxt and 64 in model.py load as 64. With --disable-auto-complete-config it is 8.

    Source: python_backend, triton_python_backend_utils.py (ModelConfig.set_max_batch_size).
    Fix: set the same value, or remove one of them.
    """
    config = source.configuration
    most = config.proto.max_batch_size
    for setting in _certain(source, "set_max_batch_size") if config.document.has("max_batch_size") else ():
        if isinstance(setting.value, int) and setting.value > most:
            yield Problem(
                source.at(setting.node),
                f"auto_complete_config sets max_batch_size {setting.value}, which replaces the {most} of the "
                "configuration. Set the same value in both.",
            )


@rule(
    "M843",
    Severity.ERROR,
    bad=completing(f"config.add_input({tensor(dims='[-1, 2]')})"),
    good=GOOD,
    refused="the model expects dims [-1, 2] but the model configuration specifies dims [2]",
)
def completed_tensors_are_those_of_the_file(source: Source) -> Iterator[Problem]:
    """`auto_complete_config` declares a tensor with another type or other dims than the file.

    A frequent reason: dims with the batch axis, which neither has if max_batch_size is above 0. Types are compared
    first: "configuration expects datatype TYPE_FP32 for input 'x', model provides TYPE_INT64".

    Source: python_backend, triton_python_backend_utils.py (ModelConfig.add_input, add_output).
    Fix: write the same in both, or leave it out of one.
    """
    config = source.configuration
    for setting in _certain(source, *KEYS):
        if not isinstance(setting.value, dict) or _wrong_keys(setting):
            continue
        kind = setting.method.removeprefix("add_")
        for declared in getattr(config.proto, kind):
            if declared.name == setting.value["name"] and (wrong := _difference(config, declared, setting.value)):
                yield Problem(
                    source.at(setting.node),
                    f'auto_complete_config gives {kind} "{declared.name}" {wrong}, so the model cannot load. '
                    "Write the same in both.",
                )


def _difference(config: Any, declared: Any, given: dict[str, Any]) -> str:
    """The first field that differs, in the order of Triton's checks; "" if none does for certain."""
    data_type = config.type_name(declared.data_type)
    if data_type != "TYPE_INVALID" and isinstance(given["data_type"], str) and given["data_type"] != data_type:
        return f"{given['data_type']}, and the configuration has {data_type}"
    dims = [*declared.dims]
    if dims and is_known(given["dims"]) and given["dims"] != dims:
        return f"dims {given['dims']}, and the configuration has {dims}"
    optional = given.get("optional", UNKNOWN)
    if isinstance(optional, bool) and optional != declared.optional:
        return f"optional {optional}, and the configuration has {declared.optional}"
    return ""


def _wrong_keys(setting: Setting) -> str:
    """What is wrong with the keys of a dict for add_input or add_output; "" if nothing is."""
    allowed = KEYS[setting.method]
    if unknown := [key for key in setting.value if key not in allowed]:
        return f'has "{unknown[0]}", and only {", ".join(allowed)} are allowed'
    missing = [key for key in NEEDED if key not in setting.value]
    return f'has no "{missing[0]}"' if missing else ""


@rule(
    "M844",
    Severity.ERROR,
    bad=completing(f"config.add_input({tensor(allow_ragged_batch='True')})"),
    good=GOOD,
    refused="contains property other than 'name', 'data_type', 'dims' and 'optional'",
)
def completed_tensors_have_the_right_keys(source: Source) -> Iterator[Problem]:
    """A dict for `add_input` or `add_output` has a key too many, or lacks one.

    It needs name, data_type and dims; an input may have optional. Without one: "input 'x' in auto-complete-config
    function for model ... is missing 'dims' property". Everything else, for example allow_ragged_batch and reshape,
    must be in config.pbtxt.

    Source: python_backend, triton_python_backend_utils.py (ModelConfig.add_input, add_output); server#8278.
    Fix: add the missing key; move others to config.pbtxt.
    """
    for setting in settings(source):
        if setting.method in KEYS and isinstance(setting.value, dict) and (wrong := _wrong_keys(setting)):
            yield Problem(
                source.at(setting.node),
                f"the dict for {setting.method} {wrong}, so the model cannot load. It needs name, data_type and dims.",
            )


@rule(
    "M845",
    Severity.ERROR,
    bad=completing("config.set_dynamic_batching()", config=SEQUENCES),
    good=completing("config.set_dynamic_batching()"),
    refused="tries to set scheduling_choice as 'dynamic_batching'",
)
def completed_scheduler_is_that_of_the_file(source: Source) -> Iterator[Problem]:
    """`auto_complete_config` asks for the dynamic batcher, and the file has the sequence batcher.

    Source: python_backend, triton_python_backend_utils.py (ModelConfig.set_dynamic_batching).
    Fix: remove one of them.
    """
    if source.configuration.scheduler == "sequence_batching":
        for setting in _certain(source, "set_dynamic_batching"):
            yield Problem(
                source.at(setting.node),
                "auto_complete_config sets dynamic_batching and the configuration has sequence_batching, so the model "
                "cannot load. Remove one of them.",
            )


@rule(
    "M846",
    Severity.ERROR,
    bad=completing('config.set_model_transaction_policy({"decoupled": True})', config=DEFAULT_MODE),
    good=completing('config.set_model_transaction_policy({"decoupled": False})', config=DEFAULT_MODE),
    refused="trying to change decoupled property in auto-complete-config",
)
def completed_transaction_policy_is_that_of_the_file(source: Source) -> Iterator[Problem]:
    """`auto_complete_config` sets another transaction policy than the file, or an unknown one.

    The only key is decoupled; another one is refused too: "contains property other than 'decoupled'".

    Source: python_backend, triton_python_backend_utils.py (ModelConfig.set_model_transaction_policy).
    Fix: write {"decoupled": ...} as in config.pbtxt, or remove it there.
    """
    proto = source.configuration.proto
    has_policy = proto.HasField("model_transaction_policy")
    for setting in settings(source):
        if setting.method != "set_model_transaction_policy" or not isinstance(setting.value, dict):
            continue
        decoupled = setting.value.get("decoupled", UNKNOWN)
        if any(key != "decoupled" for key in setting.value):
            wrong = "has a key other than decoupled"
        elif has_policy and isinstance(decoupled, bool) and decoupled != proto.model_transaction_policy.decoupled:
            wrong = f"is not the configuration's, decoupled: {str(not decoupled).lower()}"
        else:
            continue
        if setting.is_certain:
            yield Problem(
                source.at(setting.node),
                f"the transaction policy of auto_complete_config {wrong}, so the model cannot load. Correct it.",
            )


@rule(
    "M847",
    Severity.ERROR,
    bad=completing("config.set_max_batch_size(8)", returned=""),
    good=GOOD,
    refused="must return a valid pb.ModelConfig object",
)
def completion_returns_the_configuration(source: Source) -> Iterator[Problem]:
    """`auto_complete_config` does not return the configuration.

    Source: python_backend, pb_stub.cc (AutoCompleteModelConfig).
    Fix: end it with `return config`.
    """
    function = completion(source)
    if function is None or isinstance(function.body[-1], ast.Raise):
        return
    returns = [node for node in own(function) if isinstance(node, ast.Return)]
    if not any(node.value is not None and not _is_none(node.value) for node in returns):
        yield Problem(
            source.at(function),
            "auto_complete_config does not return the configuration, so the model cannot load. Return its argument.",
        )


def _is_none(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is None
