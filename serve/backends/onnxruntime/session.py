"""One onnxruntime session, built from the parameters of a Triton model configuration."""

import os
from pathlib import Path
from typing import Any

import onnxruntime

Config = dict[str, Any]

GRAPH_LEVELS = {
    -1: onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    0: onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
    1: onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    2: onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
}
SWITCH = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}


class ParameterError(ValueError):
    """A parameter of config.pbtxt has a value that onnxruntime cannot take."""


def create(config: Config, model_file: Path, *, kind: str, device_id: int) -> onnxruntime.InferenceSession:
    """Open `model_file` for one instance.

    `kind` is the instance's: "GPU" selects the CUDA provider on `device_id`, anything else the CPU.
    Raises `ParameterError` for a bad parameter and onnxruntime's own errors for a bad file.
    """
    if kind == "GPU":
        onnxruntime.preload_dlls()
        providers: list[Any] = [("CUDAExecutionProvider", {"device_id": device_id})]
        if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
            raise ParameterError(
                f"model '{config['name']}' has an instance of KIND_GPU but the installed onnxruntime offers only "
                f"{onnxruntime.get_available_providers()}. Install onnxruntime-gpu, or use KIND_CPU."
            )
    else:
        providers = ["CPUExecutionProvider"]
    return onnxruntime.InferenceSession(str(model_file), options(config, kind=kind), providers=providers)


def options(config: Config, *, kind: str) -> onnxruntime.SessionOptions:
    """Session options as the C++ backend derives them, but with the cores shared out between the instances."""
    settings = onnxruntime.SessionOptions()
    level = config.get("optimization", {}).get("graph", {}).get("level", 0)
    settings.graph_optimization_level = GRAPH_LEVELS.get(int(level), GRAPH_LEVELS[0])
    settings.execution_mode = (
        onnxruntime.ExecutionMode.ORT_PARALLEL
        if _choice(config, "execution_mode", {"0": False, "1": True}, default=False)
        else onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    )
    settings.intra_op_num_threads = _count(config, "intra_op_thread_count") or default_threads(config)
    settings.inter_op_num_threads = _count(config, "inter_op_thread_count")
    settings.enable_cpu_mem_arena = _choice(config, "enable_mem_arena", SWITCH, default=True)
    settings.enable_mem_pattern = _choice(config, "enable_mem_pattern", SWITCH, default=True)
    initializers = "session.use_device_allocator_for_initializers"
    if value := parameter(config, initializers):
        settings.add_session_config_entry(initializers, value)
    if kind != "GPU":
        # A spinning pool would take the cores from the server's own threads between two batches.
        settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return settings


def default_threads(config: Config) -> int:
    """Cores per instance: an instance that took all cores would only get in the way of the others."""
    instances = sum(max(1, int(group.get("count", 1))) for group in config.get("instance_group", []))
    return max(1, cores() // max(1, instances))


def cores() -> int:
    """Cores that this process may use: its affinity, or less where a container has a quota (cgroup v2 `cpu.max`)."""
    allowed = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return allowed if quota == "max" else max(1, min(allowed, int(quota) // int(period)))
    except (OSError, ValueError):
        return allowed


def parameter(config: Config, key: str) -> str | None:
    """The `string_value` of a parameter, or None when config.pbtxt does not have it."""
    entry = config.get("parameters", {}).get(key)
    return None if entry is None else str(entry["string_value"])


def _count(config: Config, key: str) -> int:
    text = parameter(config, key) or "0"
    if not text.strip().lstrip("-").isdigit():
        raise ParameterError(
            f"model '{config['name']}' has parameter {key} with value '{text}', which is not a whole number. "
            "Write the number of threads, or leave the parameter out to share the cores between the instances."
        )
    return max(0, int(text))


def _choice(config: Config, key: str, values: dict[str, bool], *, default: bool) -> bool:
    text = parameter(config, key)
    if text is None:
        return default
    if text.lower() not in values:
        raise ParameterError(
            f"Invalid configuration value provided. Expected values for {key} are {' or '.join(values)} but got "
            f"{text} . Correct the parameter of model '{config['name']}' or leave it out."
        )
    return values[text.lower()]
