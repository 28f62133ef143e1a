"""Reads the `parameters` of config.pbtxt as the C++ backend does, with its error messages, and the server's options.

The server's options are those of `--backend-config=onnxruntime,KEY=VALUE`. Triton gives them to C++ backends only, so
they are read from the command line of the tritonserver that started this process.
"""

import itertools
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from tensor_types import Config

FLAG = "--backend-config"
BACKEND = "onnxruntime"
DEFAULT_MAX_BATCH_SIZE = 4
NUMBER = re.compile(r"[+-]?[0-9]{1,18}")
"""A whole number; `int` takes 1_0 and the digits of other scripts as well."""

SWITCH = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}


class ParameterError(ValueError):
    """A parameter has an invalid value, so the model must not load."""


def text(config: Config, key: str) -> str | None:
    """The `string_value` of a parameter; None if config.pbtxt does not have it."""
    entry = config.get("parameters", {}).get(key)
    return None if entry is None else str(entry["string_value"])


def number(config: Config, key: str, default: int = 0) -> int:
    """A whole number; raises `ParameterError` for anything else."""
    value = text(config, key)
    return default if value is None else as_number(config, key, value)


def switch(config: Config, key: str, *, default: bool) -> bool:
    """True for true, on and 1, False for false, off and 0, in any case; raises `ParameterError` for anything else."""
    value = text(config, key)
    return default if value is None else as_switch(config, key, value)


def choice(config: Config, key: str, values: Iterable[str], *, default: str) -> str:
    """One of `values`, for parameters that only this backend has; raises `ParameterError` for anything else."""
    value, allowed = text(config, key) or default, list(values)
    if value not in allowed:
        raise ParameterError(
            f"model '{config['name']}' has parameter {key} with value '{value}', which is none of "
            f"{', '.join(allowed)}. Write one of those, or leave the parameter out for '{default}'."
        )
    return value


def as_number(config: Config, key: str, value: str) -> int:
    """`value` as a whole number; raises `ParameterError`."""
    if not NUMBER.fullmatch(value):
        raise ParameterError(
            f"failed to convert '{value}' to integral number. {_where(config, key)} Write a whole number."
        )
    return int(value)


def as_switch(config: Config, key: str, value: str) -> bool:
    """`value` as a switch; raises `ParameterError`."""
    if value.lower() not in SWITCH:
        raise ParameterError(
            f"failed to convert '{value}' to boolean. {_where(config, key)} Write one of {', '.join(SWITCH)}."
        )
    return SWITCH[value.lower()]


def _where(config: Config, key: str) -> str:
    return f"It is the value of '{key}' of model '{config['name']}'."


def backend_options(arguments: Sequence[str] | None = None) -> dict[str, str]:
    """The server's options for this backend and for all backends; {} if the command line cannot be read.

    An option of this backend wins over the same option of all backends.
    """
    line = list(_command_line() if arguments is None else arguments)
    values = [argument.removeprefix(f"{FLAG}=") for argument in line if argument.startswith(f"{FLAG}=")]
    values += [following for flag, following in itertools.pairwise(line) if flag == FLAG]
    options: dict[str, dict[str, str]] = {"": {}, BACKEND: {}}
    for value in values:
        setting, _, content = value.partition("=")
        backend, _, key = setting.rpartition(",")
        if backend in options:
            options[backend][key] = content
    return options[""] | options[BACKEND]


def default_max_batch_size(options: dict[str, str]) -> int:
    """The max_batch_size of a model whose graph can batch and whose configuration has none; 0 for no batching."""
    value = options.get("default-max-batch-size", "")
    return max(0, int(value)) if NUMBER.fullmatch(value) else DEFAULT_MAX_BATCH_SIZE


def _command_line() -> list[str]:
    try:
        return Path(f"/proc/{os.getppid()}/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return []
