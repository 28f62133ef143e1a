"""Reads the parameters of config.pbtxt that choose how the instances of a model form their batches.

Copied beside model.py (serve/policies/README.md), so it imports nothing of this project.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MODES = ("all", "aimd", "deadline")
KEYS = ("batch_policy", "slo_ms", "aimd_step", "aimd_factor", "batch_policy_log")
SWITCH = {"true": True, "false": False}


class PolicyError(ValueError):
    """The parameter `key` is invalid, so the model must not load."""

    def __init__(self, key: str, text: str) -> None:
        super().__init__(text)
        self.key = key


@dataclass(frozen=True, kw_only=True)
class PolicySettings:
    """The parameter `batch_policy` and its settings.

    `slo_s`: the target in seconds, of a batch for aimd, of a request without its own timeout for deadline. `step`
    (rows) and `factor`: how aimd raises and lowers the batch size. `log`: whether the server logs each batch.
    """

    mode: str
    max_rows: int
    slo_s: float
    step: float = 1.0
    factor: float = 0.9
    log: bool = False

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "PolicySettings | None":
        """Read the configuration (Triton's JSON); None for `all`. Raises `PolicyError`."""
        where = f"model '{config.get('name', '')}'"
        values = (config.get("parameters") or {}).items()
        parameters = {key: str(value.get("string_value", "")) for key, value in values}
        mode = parameters.get("batch_policy", "all")
        if mode not in MODES:
            raise _error("batch_policy", f"{where} has batch_policy '{mode}', which is none of {', '.join(MODES)}")
        if mode == "all":
            return None
        where = f"{where} has batch_policy '{mode}'"
        _refuse_without_batches(where, config)
        if "slo_ms" not in parameters:
            raise PolicyError(
                "batch_policy", f"{where} and no slo_ms, so there is no time to keep. Add slo_ms, in milliseconds."
            )
        log = parameters.get("batch_policy_log", "false")
        if log not in SWITCH:
            raise _error("batch_policy_log", f"{where} and batch_policy_log '{log}', which is not true or false")
        return cls(
            mode=mode,
            max_rows=int(config["max_batch_size"]),
            slo_s=_number(where, parameters, "slo_ms") / 1e3,
            step=_number(where, parameters, "aimd_step", default=cls.step),
            factor=_number(where, parameters, "aimd_factor", default=cls.factor, below=1.0),
            log=SWITCH[log],
        )


def _refuse_without_batches(where: str, config: Mapping[str, Any]) -> None:
    if int(config.get("max_batch_size", 0)) < 1:
        reason = "max_batch_size 0, so it has no batches"
    elif config.get("sequence_batching") is not None:
        reason = "sequence_batching, whose order a policy would break"
    elif (config.get("model_transaction_policy") or {}).get("decoupled"):
        reason = "is decoupled, while a policy answers each request once"
    else:
        return
    raise PolicyError("batch_policy", f"{where} and {reason}. Remove one of them.")


def _number(
    where: str, parameters: Mapping[str, str], key: str, *, default: float = 0.0, below: float = math.inf
) -> float:
    """A number above 0; raises `PolicyError`."""
    text = parameters.get(key)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 < value < below:
        meaning = "more than 0" if below == math.inf else f"between 0 and {below:g}"
        raise _error(key, f"{where} and {key} '{text}', which is not a number {meaning}")
    return value


def _error(key: str, text: str) -> PolicyError:
    return PolicyError(key, f"{text}. Write one.")
