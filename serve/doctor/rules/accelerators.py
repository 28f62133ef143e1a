"""P5: `optimization` of onnxruntime models: graph levels and execution accelerators."""

import difflib
from collections.abc import Iterator

from tritonclient.grpc.model_config_pb2 import ModelInstanceGroup, ModelOptimizationPolicy

from serve.doctor.configuration import Configuration
from serve.doctor.finding import Problem, Severity
from serve.doctor.pairs import variable_inputs
from serve.doctor.rule import Example, rule

ON_CPU, ON_GPU = "cpu_execution_accelerator", "gpu_execution_accelerator"
NAMES = {ON_CPU: ("openvino",), ON_GPU: ("tensorrt", "cuda")}
PRECISIONS = ("FP32", "FP16", "BF16", "INT8")
PROFILES = ("trt_profile_min_shapes", "trt_profile_max_shapes", "trt_profile_opt_shapes")
TENSORRT = {
    "precision_mode",
    "max_workspace_size_bytes",
    "int8_calibration_table_name",
    "int8_use_native_calibration_table",
    "trt_max_partition_iterations",
    "trt_min_subgraph_size",
    "trt_dla_enable",
    "trt_dla_core",
    "trt_engine_cache_enable",
    "trt_engine_cache_path",
    "trt_engine_cache_prefix",
    "trt_dump_subgraphs",
    "trt_force_sequential_engine_build",
    "trt_context_memory_sharing_enable",
    "trt_layer_norm_fp32_fallback",
    "trt_timing_cache_enable",
    "trt_timing_cache_path",
    "trt_force_timing_cache",
    "trt_detailed_build_log",
    "trt_build_heuristics_enable",
    "trt_sparsity_enable",
    "trt_builder_optimization_level",
    "trt_auxiliary_streams",
    "trt_tactic_sources",
    "trt_extra_plugin_lib_paths",
    "trt_cuda_graph_enable",
    "trt_dump_ep_context_model",
    "trt_ep_context_file_path",
    "trt_ep_context_embed_mode",
    *PROFILES,
}
"""Keys that the C++ backend takes for TensorRT; it refuses every other one."""

VARIABLE = 'input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] } ]\noutput [ { name: "y" data_type: TYPE_FP32 '
VARIABLE += "dims: [ -1 ] } ]\n"
CONV_TENSORS = 'input [ { name: "x" data_type: TYPE_FP32 dims: [ 1, -1, -1 ] } ]\n'
CONV_TENSORS += 'output [ { name: "y" data_type: TYPE_FP32 dims: [ 1, -1, -1 ] } ]\n'
CONV = {
    "1/model.onnx": '<ir_version: 8, opset_import: ["" : 17]>\n'
    "example (float[b, 1, h, w] x) => (float[b, 1, yh, yw] y) <float[1, 1, 1, 1] k = {2}> { y = Conv(x, k) }"
}


def _accelerated(field: str, name: str, **parameters: str) -> str:
    entries = " ".join(f'parameters {{ key: "{key}" value: "{value}" }}' for key, value in parameters.items())
    return f'optimization {{ execution_accelerators {{ {field} [ {{ name: "{name}" {entries} }} ] }} }}'


def _accelerators(
    config: Configuration, *places: str
) -> Iterator[tuple[str, int, ModelOptimizationPolicy.ExecutionAccelerators.Accelerator]]:
    """Field, index and accelerator of every accelerator of an onnxruntime model."""
    if config.backend == "onnxruntime":
        for field in places or NAMES:
            for index, accelerator in enumerate(getattr(config.proto.optimization.execution_accelerators, field)):
                yield field, index, accelerator


def _variable(config: Configuration) -> bool:
    return any(True for _ in variable_inputs(config))


@rule("P521", Severity.WARNING, bad="optimization { graph { level: 3 } }", good="optimization { graph { level: 1 } }")
def graph_level_is_known(config: Configuration) -> Iterator[Problem]:
    """`optimization.graph.level` has an unknown value.

    -1 is basic, 0 all (the default), 1 extended, 2 none. Any other number means all, without a warning (measured: 3
    loads).

    Source: onnxruntime_backend README; onnxruntime.cc.
    Fix: write one of the four; level 2 is not the highest, it switches optimisation off.
    """
    level = config.proto.optimization.graph.level
    if config.backend == "onnxruntime" and level not in (-1, 0, 1, 2):
        yield Problem(
            config.at("optimization", "graph", "level"),
            f"graph level {level} is not one of -1 (basic), 0 (all), 1 (extended), 2 (off), and counts as 0. "
            "Write one of those.",
        )


@rule(
    "P522",
    Severity.ERROR,
    bad=_accelerated(ON_CPU, "tensorrt"),
    good="instance_group [ { count: 1 } ]",
    refused="unknown Execution Accelerator 'tensorrt' is requested",
)
def accelerators_are_known(config: Configuration) -> Iterator[Problem]:
    """The onnxruntime backend does not know an accelerator.

    It knows openvino for the CPU, tensorrt and cuda for the GPU, in lower case. It does not check accelerators for the
    GPU while the instances run on the CPU.

    Source: onnxruntime_backend, onnxruntime.cc (LoadModel).
    Fix: move it to the other place, or correct the name.
    """
    for field, index, accelerator in _accelerators(config):
        if accelerator.name not in NAMES[field]:
            yield Problem(
                config.at("optimization", "execution_accelerators", field, index, "name"),
                f'{field} "{accelerator.name}" is unknown, so the model cannot load. Use one of '
                f"{', '.join(NAMES[field])}.",
            )


@rule(
    "P523",
    Severity.ERROR,
    bad=_accelerated(ON_GPU, "tensorrt", trt_max_workspace_size="1073741824"),
    good=_accelerated(ON_GPU, "tensorrt", max_workspace_size_bytes="1073741824"),
)
def tensorrt_options_are_known(config: Configuration) -> Iterator[Problem]:
    """The TensorRT accelerator has an unknown parameter.

    On a GPU the model is refused: "unknown parameter '...' is provided for TensorRT Execution Accelerator". Most keys
    are onnxruntime's; workspace size and calibration have Triton's names.

    Source: onnxruntime_backend, onnxruntime.cc and README (TensorRT options).
    Fix: write the key as in that README.
    """
    for field, index, accelerator in _accelerators(config, ON_GPU):
        for key in accelerator.parameters if accelerator.name == "tensorrt" else ():
            if key not in TENSORRT:
                close = difflib.get_close_matches(key, TENSORRT, n=1)
                yield Problem(
                    config.at("optimization", "execution_accelerators", field, index, "parameters"),
                    f'"{key}" is not a parameter of the TensorRT accelerator: on a GPU the model cannot load. '
                    + (f'Write "{close[0]}"?' if close else "Remove it."),
                )


@rule(
    "P524",
    Severity.ERROR,
    bad=_accelerated(ON_GPU, "tensorrt", precision_mode="fp16"),
    good=_accelerated(ON_GPU, "tensorrt", precision_mode="FP16"),
)
def precision_is_known(config: Configuration) -> Iterator[Problem]:
    """`precision_mode` of the TensorRT accelerator is none of FP32, FP16, BF16 and INT8.

    On a GPU the model is refused: "unsupported precision mode 'fp16' is requested".

    Source: onnxruntime_backend, onnxruntime.cc.
    Fix: write it in upper case.
    """
    for field, index, accelerator in _accelerators(config, ON_GPU):
        mode = accelerator.parameters.get("precision_mode")
        if accelerator.name == "tensorrt" and mode is not None and mode not in PRECISIONS:
            yield Problem(
                config.at("optimization", "execution_accelerators", field, index, "parameters"),
                f'precision_mode "{mode}" is not one of {", ".join(PRECISIONS)}: on a GPU the model cannot load. '
                "Write one of those.",
            )


@rule(
    "P525",
    Severity.WARNING,
    bad="instance_group [ { kind: KIND_CPU count: 1 } ]\n" + _accelerated(ON_GPU, "tensorrt"),
    good="instance_group [ { count: 1 } ]\n" + _accelerated(ON_GPU, "tensorrt"),
)
def accelerators_suit_the_instances(config: Configuration) -> Iterator[Problem]:
    """An accelerator is for the GPU and all instances are on the CPU.

    It is ignored without a warning (measured: the model loads without a GPU and TensorRT).

    Source: onnxruntime_backend, onnxruntime.cc looks at the instance's kind first.
    Fix: remove the accelerator, or use KIND_GPU or no kind.
    """
    groups = config.proto.instance_group
    if not groups or any(group.kind != ModelInstanceGroup.KIND_CPU for group in groups):
        return
    for field, index, accelerator in _accelerators(config, ON_GPU):
        yield Problem(
            config.at("optimization", "execution_accelerators", field, index),
            f'accelerator "{accelerator.name}" is for the GPU and every instance is on the CPU, so it is ignored. '
            "Remove it, or remove the kind of the instances.",
        )


@rule(
    "P526",
    Severity.WARNING,
    bad=VARIABLE + _accelerated(ON_GPU, "tensorrt", precision_mode="FP16"),
    good=(
        VARIABLE
        + _accelerated(
            ON_GPU,
            "tensorrt",
            trt_profile_min_shapes="x:1x1",
            trt_profile_opt_shapes="x:8x64",
            trt_profile_max_shapes="x:8x512",
        )
    ),
)
def tensorrt_knows_the_shapes(config: Configuration) -> Iterator[Problem]:
    """The TensorRT accelerator has no shape profile, and an input has a variable shape.

    TensorRT builds a new engine during the request whenever a shape lies outside the earlier ones. That takes seconds
    to minutes, in which the instance answers no request.

    Source: onnxruntime documentation, TensorRT execution provider (explicit shapes); onnxruntime#6978, server#3701.
    Fix: set trt_profile_min_shapes, trt_profile_opt_shapes and trt_profile_max_shapes, and warm the model up.
    """
    for field, index, accelerator in _accelerators(config, ON_GPU):
        if (
            accelerator.name == "tensorrt"
            and _variable(config)
            and not all(key in accelerator.parameters for key in PROFILES)
        ):
            yield Problem(
                config.at("optimization", "execution_accelerators", field, index),
                "TensorRT builds an engine for each new shape while requests wait, and an input has a -1. "
                f"Set {', '.join(PROFILES)}.",
            )


@rule(
    "P527",
    Severity.WARNING,
    bad=Example("instance_group [ { kind: KIND_GPU count: 1 } ]\n" + CONV_TENSORS, files=CONV),
    good=Example(
        "instance_group [ { kind: KIND_GPU count: 1 } ]\n"
        + CONV_TENSORS
        + 'parameters { key: "cudnn_conv_algo_search" value { string_value: "1" } }',
        files=CONV,
    ),
)
def convolutions_are_not_searched_for_each_shape(config: Configuration) -> Iterator[Problem]:
    """A graph with convolutions has inputs of variable shape, and cuDNN searches algorithms exhaustively.

    For every new shape cuDNN then tries all algorithms during the request, a pause of 0.3 to 1.3 s each time (reported
    in the source). The exhaustive search is the default.

    Source: onnxruntime CUDA provider (cudnn_conv_algo_search); onnxruntime#6978, onnxruntime#12120, PaddleX#5057.
    Fix: set the parameter cudnn_conv_algo_search to 1 (HEURISTIC), or pad to a few fixed shapes and warm them up.
    """
    kinds = {group.kind for group in config.proto.instance_group}
    on_gpu = ModelInstanceGroup.KIND_GPU in kinds and config.target.gpus != 0  # I403 reports a missing GPU
    key = "cudnn_conv_algo_search"
    is_set = config.parameter(key) in ("1", "2") or any(
        accelerator.parameters.get(key, "EXHAUSTIVE") != "EXHAUSTIVE"
        for _, _, accelerator in _accelerators(config, ON_GPU)
    )
    accelerated = any(accelerator.name == "tensorrt" for _, _, accelerator in _accelerators(config, ON_GPU))
    if not on_gpu or is_set or accelerated or not _variable(config) or config.graph is None:
        return
    if any(node.op_type in ("Conv", "ConvTranspose") for node in config.graph.proto.graph.node):
        yield Problem(
            config.at_parameter(key),
            "the graph has convolutions and an input of variable shape, and cuDNN searches all algorithms for each new "
            f'shape while requests wait. Set the parameter {key} to "1".',
            fix=config.document.appended(f'parameters {{ key: "{key}" value {{ string_value: "1" }} }}')
            if config.parameter(key) is None
            else (),
        )
