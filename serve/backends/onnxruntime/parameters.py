"""The `parameters` of config.pbtxt: text by key, read as the C++ backend reads it, with its error messages."""

from collections.abc import Iterable

from tensor_types import Config

SWITCH = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}


class ParameterError(ValueError):
    """A parameter has a value that cannot be used, so the model must not load."""


def text(config: Config, key: str) -> str | None:
    """The `string_value` of a parameter, or None when config.pbtxt does not have it."""
    entry = config.get("parameters", {}).get(key)
    return None if entry is None else str(entry["string_value"])


def number(config: Config, key: str, default: int = 0) -> int:
    """A whole number; raises `ParameterError` for anything else."""
    value = text(config, key)
    return default if value is None else as_number(config, key, value)


def switch(config: Config, key: str, *, default: bool) -> bool:
    """true, on or 1; false, off or 0; in any case. Raises `ParameterError` for anything else."""
    value = text(config, key)
    return default if value is None else as_switch(config, key, value)


def choice(config: Config, key: str, values: Iterable[str], *, default: str) -> str:
    """One of a few words; raises `ParameterError` for anything else. These parameters are this backend's own."""
    value = text(config, key) or default
    if value not in (known := list(values)):
        raise ParameterError(
            f"model '{config['name']}' has parameter {key} with value '{value}', which is none of "
            f"{', '.join(known)}. Write one of those, or leave the parameter out for '{default}'."
        )
    return value


def as_number(config: Config, key: str, value: str) -> int:
    """`value` as a whole number; raises `ParameterError`."""
    try:
        return int(value)
    except ValueError:
        raise ParameterError(
            f"failed to convert '{value}' to integral number. {_where(config, key)} Write a whole number."
        ) from None


def as_switch(config: Config, key: str, value: str) -> bool:
    """`value` as a switch; raises `ParameterError`."""
    if value.lower() not in SWITCH:
        raise ParameterError(
            f"failed to convert '{value}' to boolean. {_where(config, key)} Write one of {', '.join(SWITCH)}."
        )
    return SWITCH[value.lower()]


def _where(config: Config, key: str) -> str:
    return f"It is the value of '{key}' of model '{config['name']}'."
