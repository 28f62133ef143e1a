"""Chooses onnxruntime's execution providers for an instance, by its kind and `optimization.execution_accelerators`.

Keys, their order and the messages are those of the C++ backend. As there, an instance on a CPU ignores GPU
accelerators, so that one configuration serves both.
"""

from collections.abc import Mapping, Sequence

import parameters
from parameters import ParameterError
from tensor_types import Config

Provider = tuple[str, dict[str, str]]
"""A provider and its options, as `onnxruntime.InferenceSession` takes them."""

TENSORRT, CUDA, OPENVINO, CPU = (f"{name}ExecutionProvider" for name in ("Tensorrt", "CUDA", "OpenVINO", "CPU"))

PRECISIONS = {"FP32": None, "FP16": "trt_fp16_enable", "BF16": "trt_bf16_enable", "INT8": "trt_int8_enable"}
RENAMED = {
    "max_workspace_size_bytes": "trt_max_workspace_size",
    "int8_calibration_table_name": "trt_int8_calibration_table_name",
    "int8_use_native_calibration_table": "trt_int8_use_native_calibration_table",
}
CUDA_SWITCHES = {"do_copy_in_default_stream", "use_ep_level_unified_stream"}
CUDA_CHOICES = {
    "cudnn_conv_algo_search": ("EXHAUSTIVE", "HEURISTIC", "DEFAULT"),
    "arena_extend_strategy": ("kNextPowerOfTwo", "kSameAsRequested"),
}
"""Parameters of the model (a deprecated place) whose value is the index of a CUDA option's value."""


def providers(config: Config, *, kind: str, device_id: int, available: Sequence[str]) -> list[Provider]:
    """The providers for an instance of `kind` (CPU, GPU or MODEL), the preferred one first, the CPU always last.

    `available` are the providers of the installed onnxruntime. Raises `ParameterError` for accelerators and keys that
    the C++ backend refuses, and for missing providers.
    """
    chosen = _gpu(config, device_id, available) if kind == "GPU" else []
    for accelerator in _accelerators(config, "cpu_execution_accelerator"):
        _require(config, accelerator["name"], {"openvino": OPENVINO}, available)
        chosen.append((OPENVINO, {"device_type": "CPU"}))
    return [*chosen, (CPU, {})]


def _gpu(config: Config, device_id: int, available: Sequence[str]) -> list[Provider]:
    if CUDA not in available:
        raise ParameterError(
            f"model '{config['name']}' has an instance of KIND_GPU but the installed onnxruntime offers only "
            f"{', '.join(available)}. Install onnxruntime-gpu, or use KIND_CPU."
        )
    chosen: list[Provider] = []
    cuda: dict[str, str] = {}
    for accelerator in _accelerators(config, "gpu_execution_accelerator"):
        name, options = accelerator["name"], accelerator.get("parameters", {})
        _require(config, name, {"tensorrt": TENSORRT, "cuda": CUDA}, available)
        if name == "tensorrt":
            chosen.append((TENSORRT, tensorrt_options(config, options) | {"device_id": str(device_id)}))
        else:
            cuda = _cuda_options(config, options)
    # In the C++ backend the defaults of the deprecated place win over the accelerator's options; here these win.
    return [*chosen, (CUDA, _deprecated_cuda_options(config) | cuda | {"device_id": str(device_id)})]


def _require(config: Config, name: str, by_name: Mapping[str, str], available: Sequence[str]) -> None:
    if by_name.get(name) not in available:
        names = ", ".join(key for key, provider in by_name.items() if provider in available) or "none"
        raise ParameterError(
            f"unknown Execution Accelerator '{name}' is requested. Model '{config['name']}' asks for it, and the "
            f"installed onnxruntime has, of those that Triton knows at this place: {names}. Remove it, or install an "
            "onnxruntime that has it."
        )


def tensorrt_options(config: Config, accelerator: Mapping[str, str]) -> dict[str, str]:
    """Options of the TensorRT provider from the accelerator's parameters; raises `ParameterError`.

    onnxruntime itself refuses the names and values that it does not know.
    """
    options = {}
    for written, value in accelerator.items():
        key: str | None = RENAMED.get(written, written)
        if written == "precision_mode":
            if value not in PRECISIONS:
                raise ParameterError(
                    f"unsupported precision mode '{value}' is requested. Model '{config['name']}' may use one of "
                    f"{', '.join(PRECISIONS)}."
                )
            key, value = PRECISIONS[value], "1"
        elif written in RENAMED.values() or not str(key).startswith("trt_"):
            raise ParameterError(
                f"unknown parameter '{written}' is provided for TensorRT Execution Accelerator. "
                f"Correct or remove it in the configuration of model '{config['name']}'."
            )
        if key:
            switch = parameters.SWITCH.get(value.lower())
            options[key] = value if switch is None else str(int(switch))
    return options


def _provider_switch(config: Config, key: str, value: str) -> str:
    return "1" if parameters.as_switch(config, key, value) else "0"


def _cuda_options(config: Config, accelerator: Mapping[str, str]) -> dict[str, str]:
    checked = {
        key: _provider_switch(config, key, value) if key in CUDA_SWITCHES else value
        for key, value in accelerator.items()
    }
    return {key: value for key, value in checked.items() if value}


def _deprecated_cuda_options(config: Config) -> dict[str, str]:
    options = {}
    for key, values in CUDA_CHOICES.items():
        index = parameters.number(config, key)
        if not 0 <= index < len(values):
            raise ParameterError(
                f"unsupported {key} value '{index}' is requested. Model '{config['name']}' may use 0 to "
                f"{len(values) - 1}, for {', '.join(values)}."
            )
        options[key] = values[index]
    for key in ("gpu_mem_limit", "do_copy_in_default_stream"):
        if value := parameters.text(config, key):
            options[key] = value
    return options


def _accelerators(config: Config, place: str) -> Sequence[Config]:
    accelerators = (config.get("optimization") or {}).get("execution_accelerators") or {}
    entries: Sequence[Config] = accelerators.get(place, [])
    return entries
