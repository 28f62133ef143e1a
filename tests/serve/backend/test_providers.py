"""Execution accelerators become onnxruntime's providers with the C++ backend's options and messages."""

from collections.abc import Callable
from typing import Any

import backend_inputs
from providers import CPU, CUDA, OPENVINO, TENSORRT, providers

ALL = (TENSORRT, CUDA, OPENVINO, CPU)
CUDA_DEFAULTS = {"cudnn_conv_algo_search": "EXHAUSTIVE", "arena_extend_strategy": "kNextPowerOfTwo"}
MAGIC = {"name": "magic"}


def config(parameters: dict[str, str] | None = None, /, **accelerators: list[dict[str, Any]]) -> dict[str, Any]:
    entries = {f"{place}_execution_accelerator": each for place, each in accelerators.items()}
    return backend_inputs.config(parameters, optimization={"execution_accelerators": entries})


def chosen(made: dict[str, Any], kind: str = "GPU", available: tuple[str, ...] = ALL) -> list[Any]:
    return providers(made, kind=kind, device_id=2, available=list(available))


def tensorrt(**parameters: str) -> dict[str, Any]:
    return config(gpu=[{"name": "tensorrt", "parameters": parameters}])


def test_providers_of_an_instance() -> None:
    """In the order of TensorRT, CUDA, OpenVINO, CPU; an accelerator of a GPU is ignored on a CPU."""
    assert chosen(config(), "CPU", (CPU,)) == chosen(config(gpu=[MAGIC]), "CPU") == [(CPU, {})]
    assert chosen(backend_inputs.config(), "MODEL") == [(CPU, {})]
    assert chosen(config()) == [(CUDA, CUDA_DEFAULTS | {"device_id": "2"}), (CPU, {})]
    assert chosen(config(cpu=[{"name": "openvino"}]), "CPU") == [(OPENVINO, {"device_type": "CPU"}), (CPU, {})]
    every = config(gpu=[{"name": "cuda"}, {"name": "tensorrt"}], cpu=[{"name": "openvino"}])
    assert [name for name, _ in chosen(every)] == list(ALL)


def test_tensorrt_options() -> None:
    made = tensorrt(
        precision_mode="FP16",
        max_workspace_size_bytes="1073741824",
        int8_use_native_calibration_table="true",
        trt_engine_cache_enable="on",
        trt_engine_cache_path="/cache",
        trt_builder_optimization_level="3",
    )
    assert {
        "trt_fp16_enable": "1",
        "trt_max_workspace_size": "1073741824",
        "trt_int8_use_native_calibration_table": "1",
        "trt_engine_cache_enable": "1",
        "trt_engine_cache_path": "/cache",
        "trt_builder_optimization_level": "3",
    }.items() <= dict(chosen(made))[TENSORRT].items()
    assert "trt_fp16_enable" not in dict(chosen(tensorrt(precision_mode="FP32")))[TENSORRT]


def test_cuda_options_win_over_the_deprecated_parameters() -> None:
    deprecated = {"cudnn_conv_algo_search": "1", "arena_extend_strategy": "1", "do_copy_in_default_stream": "0"}
    assert dict(chosen(config(deprecated)))[CUDA] == {
        "cudnn_conv_algo_search": "HEURISTIC",
        "arena_extend_strategy": "kSameAsRequested",
        "do_copy_in_default_stream": "0",
        "device_id": "2",
    }
    own = {"cudnn_conv_algo_search": "HEURISTIC", "do_copy_in_default_stream": "true", "anything": "x"}
    deprecated = {"cudnn_conv_algo_search": "2", "gpu_mem_limit": "5"}
    made = config(deprecated, gpu=[{"name": "cuda", "parameters": own}])
    assert dict(chosen(made))[CUDA] == CUDA_DEFAULTS | {
        "cudnn_conv_algo_search": "HEURISTIC",
        "do_copy_in_default_stream": "1",
        "anything": "x",
        "gpu_mem_limit": "5",
        "device_id": "2",
    }


def test_what_is_refused(golden: Callable[..., None]) -> None:
    cases: dict[str, tuple[Any, ...]] = {
        "an accelerator of a GPU that does not exist": (config(gpu=[MAGIC]),),
        "an accelerator of a GPU as one of the CPU": (config(cpu=[{"name": "tensorrt"}]), "CPU"),
        "an accelerator that onnxruntime lacks": (config(cpu=[{"name": "openvino"}]), "GPU", (CUDA, CPU)),
        "a GPU instance without CUDA": (config(), "GPU", (OPENVINO, CPU)),
        "a precision that does not exist": (tensorrt(precision_mode="FP8"),),
        "a parameter that does not exist": (tensorrt(magic="1"),),
        "a parameter of onnxruntime that Triton does not pass": (tensorrt(trt_max_workspace_size="1"),),
        "a deprecated parameter of another value": (config({"cudnn_conv_algo_search": "3"}),),
        "another one": (config({"arena_extend_strategy": "-1"}),),
    }
    golden("backend_providers", backend_inputs.refusals(chosen, cases))
