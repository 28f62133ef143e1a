"""The parameters of config.pbtxt that say how the instances of a model form their batches.

Carried by folders beside their model.py, so it imports nothing of this project.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MODES = ("all", "aimd", "deadline")
KEYS = ("batch_policy", "slo_ms", "aimd_step", "aimd_factor", "batch_policy_log")
SWITCH = {"true": True, "false": False}


class PolicyError(ValueError):
    """A parameter that cannot be used, so the model must not load."""


@dataclass(frozen=True, kw_only=True)
class PolicySettings:
    """`batch_policy` and what belongs to it.

    `slo_s`: the target, seconds; of aimd for a batch, of deadline for a request that brings no timeout of its own.
    `step` (rows) and `factor`: how far aimd goes up and down. `log`: whether each batch is a line of the server's log.
    """

    mode: str
    max_rows: int
    slo_s: float
    step: float = 1.0
    factor: float = 0.9
    log: bool = False

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "PolicySettings | None":
        """As config.pbtxt says (Triton's JSON), None for `all`; raises `PolicyError`."""
        where = f"model '{config.get('name', '')}'"
        parameters = {key: str(one.get("string_value", "")) for key, one in (config.get("parameters") or {}).items()}
        mode = parameters.get("batch_policy", "all")
        if mode not in MODES:
            raise PolicyError(
                f"{where} has batch_policy '{mode}', which is none of {', '.join(MODES)}. Write one of those."
            )
        if mode == "all":
            return None
        _refuse_without_batches(f"{where} has batch_policy '{mode}'", config)
        if "slo_ms" not in parameters:
            raise PolicyError(
                f"{where} has batch_policy '{mode}' and no slo_ms, so there is no time to keep to. Add the parameter "
                "slo_ms, in milliseconds."
            )
        log = parameters.get("batch_policy_log", "false")
        if log not in SWITCH:
            raise PolicyError(
                f"{where} has batch_policy_log '{log}', which is neither true nor false. Write one of them."
            )
        return cls(
            mode=mode,
            max_rows=int(config["max_batch_size"]),
            slo_s=_number(where, parameters, "slo_ms", "more than 0") / 1e3,
            step=_number(where, parameters, "aimd_step", "more than 0", default=cls.step),
            factor=_number(where, parameters, "aimd_factor", "between 0 and 1", default=cls.factor, below=1.0),
            log=SWITCH[log],
        )


def _refuse_without_batches(where: str, config: Mapping[str, Any]) -> None:
    if int(config.get("max_batch_size", 0)) < 1:
        raise PolicyError(
            f"{where} and max_batch_size 0, so it has no batches. Set max_batch_size, or remove the policy."
        )
    if config.get("sequence_batching") is not None:
        raise PolicyError(f"{where} and sequence_batching, whose order a policy would break. Remove one of them.")
    if (config.get("model_transaction_policy") or {}).get("decoupled"):
        raise PolicyError(f"{where} and is decoupled: a policy answers each request once. Remove one of them.")


def _number(
    where: str,
    parameters: Mapping[str, str],
    key: str,
    meaning: str,
    *,
    default: float = 0.0,
    below: float = float("inf"),
) -> float:
    """A number above 0; `meaning` says in words what it must be."""
    text = parameters.get(key)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value < below:
        raise PolicyError(f"{where} has {key} '{text}', which is no number {meaning}. Write one.")
    return value
