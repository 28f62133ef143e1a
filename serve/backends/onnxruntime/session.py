"""Opens an onnxruntime session for a Triton model configuration, as the C++ backend does."""

import os
from collections.abc import Mapping
from pathlib import Path

import onnxruntime
import parameters
from parameters import ParameterError
from providers import CPU, providers
from tensor_types import Config

GRAPH_LEVELS = {
    -1: onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    0: onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
    1: onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    2: onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
}


def create(
    config: Config, version_folder: Path, *, kind: str, device_id: int, server: Mapping[str, str] | None = None
) -> onnxruntime.InferenceSession:
    """Open the model of `version_folder` for one instance.

    The `kind` "GPU" selects the CUDA provider on `device_id`, any other kind the CPU. `server` are the server's options
    for this backend. Raises `ParameterError` for an invalid parameter, a missing file or a provider that does not
    start, and onnxruntime's errors for an invalid file.
    """
    if kind == "GPU":
        onnxruntime.preload_dlls()
    chosen = providers(config, kind=kind, device_id=device_id, available=onnxruntime.get_available_providers())
    opened = onnxruntime.InferenceSession(
        str(model_file(config, version_folder)), options(config, kind=kind, server=server or {}), providers=chosen
    )
    if missing := [name for name, _ in chosen if name not in opened.get_providers()]:
        # onnxruntime would continue on the CPU.
        raise ParameterError(
            f"model '{config['name']}': onnxruntime could not start {', '.join(missing)} for this instance and would "
            "use the CPU instead; the server's log has its reason. Install the missing libraries, or use KIND_CPU."
        )
    opened.disable_fallback()
    return opened


def inspect(config: Config, version_folder: Path) -> onnxruntime.InferenceSession:
    """Open the model on the CPU, not optimised, to read its inputs and outputs."""
    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = GRAPH_LEVELS[2]
    _register_libraries(config, settings)
    return onnxruntime.InferenceSession(str(model_file(config, version_folder)), settings, providers=[CPU])


def model_file(config: Config, version_folder: Path) -> Path:
    """The ONNX file: `default_model_filename` or model.onnx, or the model.onnx in a directory of that name.

    Raises `ParameterError` if there is none.
    """
    path = version_folder / (config.get("default_model_filename") or "model.onnx")
    if path.is_dir():
        path /= "model.onnx"
    if not path.is_file():
        raise ParameterError(
            f"unable to find '{path}' for model instance '{config['name']}'. Export the model to that path, or name "
            "its file in default_model_filename."
        )
    return path


def options(config: Config, *, kind: str, server: Mapping[str, str] | None = None) -> onnxruntime.SessionOptions:
    """Session options as in the C++ backend, but each instance gets its share of the cores."""
    settings = onnxruntime.SessionOptions()
    level = (config.get("optimization", {}).get("graph") or {}).get("level", 0)
    settings.graph_optimization_level = GRAPH_LEVELS.get(int(level), GRAPH_LEVELS[0])
    settings.execution_mode = _execution_mode(config)
    settings.intra_op_num_threads, settings.inter_op_num_threads = _threads(config, server or {})
    settings.enable_cpu_mem_arena = parameters.switch(config, "enable_mem_arena", default=True)
    settings.enable_mem_pattern = parameters.switch(config, "enable_mem_pattern", default=True)
    initializers = "session.use_device_allocator_for_initializers"
    if value := parameters.text(config, initializers):
        settings.add_session_config_entry(initializers, value)
    if kind != "GPU":
        # Spinning threads would take the cores from the server's threads between two batches.
        settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    _register_libraries(config, settings)
    return settings


def run_options(config: Config) -> onnxruntime.RunOptions | None:
    """Options of every run; None if the configuration has none."""
    key = "memory.enable_memory_arena_shrinkage"
    value = parameters.text(config, key)
    if value is None:
        return None
    settings = onnxruntime.RunOptions()
    settings.add_run_config_entry(key, value)
    return settings


def default_threads(config: Config) -> int:
    """Cores per instance, because instances that each use all cores slow one another down."""
    instances = sum(max(1, int(group.get("count", 1))) for group in config.get("instance_group", []))
    return max(1, cores() // max(1, instances))


def cores() -> int:
    """Cores that this process may use: its affinity, or less with a container's quota (cgroup v2 `cpu.max`)."""
    allowed = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return allowed if quota == "max" else max(1, min(allowed, int(quota) // int(period)))
    except (OSError, ValueError):
        return allowed


def _threads(config: Config, server: Mapping[str, str]) -> tuple[int, int]:
    """Threads within and across operators; the server's global pool wins if it is on, as in the C++ backend."""
    keys = ("intra_op_thread_count", "inter_op_thread_count")
    if parameters.as_switch(config, "enable-global-threadpool", server.get("enable-global-threadpool", "false")):
        intra, inter = (parameters.as_number(config, key, server.get(key, "0")) for key in keys)
    else:
        intra, inter = (parameters.number(config, key) for key in keys)
    return (intra if intra > 0 else default_threads(config)), max(0, inter)


def _execution_mode(config: Config) -> onnxruntime.ExecutionMode:
    mode = parameters.number(config, "execution_mode")
    modes = {0: onnxruntime.ExecutionMode.ORT_SEQUENTIAL, 1: onnxruntime.ExecutionMode.ORT_PARALLEL}
    if mode not in modes:
        raise ParameterError(
            f"Invalid configuration value provided. Expected values for  execution_mode are 0 or 1 but got {mode} . "
            f"Correct the parameter of model '{config['name']}' or leave it out."
        )
    return modes[mode]


def _register_libraries(config: Config, settings: onnxruntime.SessionOptions) -> None:
    for library in (config.get("model_operations") or {}).get("op_library_filename", []):
        try:
            settings.register_custom_ops_library(library)
        except Exception as error:
            raise ParameterError(
                f"model '{config['name']}': the custom operator library '{library}' cannot be loaded ({error}). Write "
                "its absolute path in model_operations, and build it for this onnxruntime."
            ) from error
