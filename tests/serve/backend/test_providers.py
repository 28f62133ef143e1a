"""Execution accelerators become onnxruntime's providers with the C++ backend's options and messages."""

from typing import Any

import pytest
from parameters import ParameterError
from providers import CPU, CUDA, OPENVINO, TENSORRT, providers, tensorrt_options

ALL = [TENSORRT, CUDA, OPENVINO, CPU]
CUDA_DEFAULTS = {"cudnn_conv_algo_search": "EXHAUSTIVE", "arena_extend_strategy": "kNextPowerOfTwo"}


def config(parameters: dict[str, str] | None = None, **accelerators: list[dict[str, Any]]) -> dict[str, Any]:
    places = {f"{place}_execution_accelerator": entries for place, entries in accelerators.items()}
    return {
        "name": "m",
        "parameters": {key: {"string_value": value} for key, value in (parameters or {}).items()},
        "optimization": {"execution_accelerators": places},
    }


def chosen(made: dict[str, Any], *, kind: str = "GPU", available: list[str] = ALL) -> list[Any]:
    return providers(made, kind=kind, device_id=2, available=available)


def test_the_cpu_alone_by_default() -> None:
    assert chosen(config(), kind="CPU", available=[CPU]) == [(CPU, {})]
    assert chosen({"name": "m"}, kind="MODEL") == [(CPU, {})]


def test_a_gpu_instance_gets_its_device() -> None:
    assert chosen(config()) == [(CUDA, CUDA_DEFAULTS | {"device_id": "2"}), (CPU, {})]


def test_the_order_is_tensorrt_cuda_openvino_cpu() -> None:
    made = config(gpu=[{"name": "cuda"}, {"name": "tensorrt"}], cpu=[{"name": "openvino"}])
    assert [name for name, _ in chosen(made)] == ALL


def test_openvino_on_the_cpu() -> None:
    assert chosen(config(cpu=[{"name": "openvino"}]), kind="CPU") == [(OPENVINO, {"device_type": "CPU"}), (CPU, {})]


@pytest.mark.parametrize("kind", ["CPU", "GPU"])
def test_unknown_cpu_accelerators(kind: str) -> None:
    with pytest.raises(ParameterError, match="unknown Execution Accelerator 'tensorrt' is requested"):
        chosen(config(cpu=[{"name": "tensorrt"}]), kind=kind)
    with pytest.raises(ParameterError, match=r"unknown Execution Accelerator 'openvino' is requested.*: none"):
        chosen(config(cpu=[{"name": "openvino"}]), kind=kind, available=[CUDA, CPU])


def test_unknown_gpu_accelerators_matter_on_a_gpu_only() -> None:
    made = config(gpu=[{"name": "magic"}])
    with pytest.raises(ParameterError, match="unknown Execution Accelerator 'magic' is requested"):
        chosen(made)
    assert chosen(made, kind="CPU") == [(CPU, {})]


def test_tensorrt_options() -> None:
    parameters = {
        "precision_mode": "FP16",
        "max_workspace_size_bytes": "1073741824",
        "int8_use_native_calibration_table": "true",
        "trt_engine_cache_enable": "on",
        "trt_engine_cache_path": "/cache",
        "trt_builder_optimization_level": "3",
    }
    assert tensorrt_options(config(), parameters) == {
        "trt_fp16_enable": "1",
        "trt_max_workspace_size": "1073741824",
        "trt_int8_use_native_calibration_table": "1",
        "trt_engine_cache_enable": "1",
        "trt_engine_cache_path": "/cache",
        "trt_builder_optimization_level": "3",
    }
    assert tensorrt_options(config(), {"precision_mode": "FP32"}) == {}


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"precision_mode": "FP8"}, "unsupported precision mode 'FP8' is requested"),
        ({"trt_magic": "1"}, "unknown parameter 'trt_magic' is provided for TensorRT Execution Accelerator"),
        ({"trt_max_workspace_size": "1"}, "unknown parameter 'trt_max_workspace_size' is provided"),
        ({"trt_dla_enable": "2"}, "failed to convert '2' to boolean"),
        ({"trt_dla_core": "x"}, "failed to convert 'x' to integral number"),
    ],
)
def test_bad_tensorrt_options(parameters: dict[str, str], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        chosen(config(gpu=[{"name": "tensorrt", "parameters": parameters}]))


def test_cuda_options_win_over_the_deprecated_parameters() -> None:
    parameters = {"cudnn_conv_algo_search": "HEURISTIC", "do_copy_in_default_stream": "true", "anything": "x"}
    made = config(
        {"cudnn_conv_algo_search": "2", "gpu_mem_limit": "5"}, gpu=[{"name": "cuda", "parameters": parameters}]
    )
    assert dict(chosen(made))[CUDA] == CUDA_DEFAULTS | {
        "cudnn_conv_algo_search": "HEURISTIC",
        "do_copy_in_default_stream": "1",
        "anything": "x",
        "gpu_mem_limit": "5",
        "device_id": "2",
    }


def test_deprecated_cuda_parameters() -> None:
    made = config({"cudnn_conv_algo_search": "1", "arena_extend_strategy": "1", "do_copy_in_default_stream": "0"})
    assert dict(chosen(made))[CUDA] == {
        "cudnn_conv_algo_search": "HEURISTIC",
        "arena_extend_strategy": "kSameAsRequested",
        "do_copy_in_default_stream": "0",
        "device_id": "2",
    }
    for key, value in (("cudnn_conv_algo_search", "3"), ("arena_extend_strategy", "-1")):
        with pytest.raises(ParameterError, match=f"unsupported {key} value '{value}' is requested"):
            chosen(config({key: value}))


def test_a_gpu_instance_without_cuda_is_refused() -> None:
    with pytest.raises(ParameterError, match="KIND_GPU but the installed onnxruntime offers only OpenVINO"):
        chosen(config(), available=[OPENVINO, CPU])
