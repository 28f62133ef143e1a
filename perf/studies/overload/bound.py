"""The bound of a configuration's queue: its own, none, or another one."""

from tritonclient.grpc.model_config_pb2 import ModelConfig

from serve.policies import queue_limit
from triton_batching.terminal import Mistake

OWN, NONE = "own", "none"
POLICY, SLO = "batch_policy", "slo_ms"


def bounded(config: ModelConfig, bound: str) -> ModelConfig:
    """A copy of `config` with this bound: `own` keeps its bounds, `none` removes all.

    Other bounds replace all, joined by `+`: `limit:MS`, `deadline:MS`, `timeout:MS` and `size:REQUESTS` (the last two
    are Triton's queue policy), and `delay:US`. Raises `Mistake`.
    """
    changed = ModelConfig()
    changed.CopyFrom(config)
    if bound == OWN:
        return changed
    changed.dynamic_batching.ClearField("default_queue_policy")
    for name in (queue_limit.KEY, POLICY, SLO):
        changed.parameters.pop(name, None)
    for part in () if bound == NONE else bound.split("+"):
        _set(changed, part, bound)
    return changed


def _set(config: ModelConfig, part: str, bound: str) -> None:
    name, _, value = part.partition(":")
    queue, parameters = config.dynamic_batching, config.parameters
    try:
        match name:
            case "limit":
                parameters[queue_limit.KEY].string_value = f"{float(value):g}"
            case "deadline":
                parameters[POLICY].string_value, parameters[SLO].string_value = "deadline", f"{float(value):g}"
            case "timeout":
                queue.default_queue_policy.default_timeout_microseconds = int(float(value) * 1e3)
            case "size":
                queue.default_queue_policy.max_queue_size = int(value)
            case "delay":
                queue.max_queue_delay_microseconds = int(value)
            case _:
                raise ValueError(name)
    except ValueError as error:
        raise Mistake(
            f"--bound {bound}: '{part}' is no bound. Write own, none, or some of limit:MS, deadline:MS, timeout:MS, "
            "size:REQUESTS and delay:US, joined by +."
        ) from error
