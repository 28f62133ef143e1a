"""The lines of config.pbtxt that give a model an execution accelerator or threads."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

import onnx
from google.protobuf.text_encoding import CEscape
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

from export.graph.input_values import read_bounds
from export.graph.onnx_graph import dims, graph_inputs
from export.variant.precision import DYNAMIC, FP16, STATIC
from triton_batching.terminal import Mistake

TENSORRT = "tensorrt"
THREADS = "intra_op_thread_count"
MODES = {None: "FP32", FP16: "FP16", STATIC: "INT8"}
# What TensorRT may take while it tries algorithms; onnxruntime's default.
WORKSPACE_BYTES = 2**30


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    """What a variant runs on, besides its graph: an accelerator of Triton's onnxruntime backend, and threads.

    `open_sizes` are the smallest and largest size of open dimensions, None if the user names none. `engine_cache` is a
    folder of the server.
    """

    name: str | None
    precision: str | None
    threads: int | None
    open_sizes: tuple[int, int] | None
    engine_cache: PurePosixPath

    def lines(self, config: ModelConfig, model: onnx.ModelProto, variant: str) -> Iterator[str]:
        """What to append to a configuration; raises `Mistake` if it cannot have it."""
        if self.threads:
            if THREADS in config.parameters:
                raise Mistake(f"{config.name}: its configuration has {THREADS} already. Change it there.")
            yield "# Threads of one execution on a CPU."
            yield f'parameters {{ key: "{THREADS}" value {{ string_value: "{self.threads}" }} }}'
        if self.name and config.HasField("optimization"):
            raise Mistake(
                f"{config.name}: its configuration has optimization already, and a second one does not load. Remove it "
                "from the configuration of the original, or leave --accelerator out and write it there."
            )
        if self.name == TENSORRT:
            yield from self._tensorrt(config, model, variant)

    def check(self, config: ModelConfig) -> None:
        """Refuse what cannot run: raises `Mistake`."""
        if self.name != TENSORRT:
            return
        if self.precision == DYNAMIC:
            raise Mistake(
                "--accelerator tensorrt --precision int8-dynamic: TensorRT runs no DynamicQuantizeLinear. Use "
                "int8-static."
            )
        groups = config.instance_group
        if groups and all(group.kind == ModelInstanceGroup.KIND_CPU for group in groups):
            raise Mistake(
                f"--accelerator tensorrt: every instance of {config.name} is of KIND_CPU, which ignores it. Remove the "
                "kind from its instance_group."
            )

    def _tensorrt(self, config: ModelConfig, model: onnx.ModelProto, variant: str) -> Iterator[str]:
        parameters = {
            "precision_mode": MODES[self.precision],
            "max_workspace_size_bytes": str(WORKSPACE_BYTES),
            "trt_engine_cache_enable": "true",
            "trt_engine_cache_path": str(self.engine_cache / variant),
            "trt_timing_cache_enable": "true",
            "trt_timing_cache_path": str(self.engine_cache / variant),
            **self._profile(config, model),
        }
        yield "# On a GPU TensorRT builds an engine at the first request, which takes minutes, and keeps it in the"
        yield "# cache below: put that on a volume. On a CPU all of this is ignored."
        yield "# The profile holds the shapes of all requests: up to max_batch_size rows, fastest for full batches."
        yield "optimization { execution_accelerators { gpu_execution_accelerator [ {"
        yield '  name: "tensorrt"'
        for key, value in parameters.items():
            yield f'  parameters {{ key: "{key}" value: "{CEscape(value, as_utf8=True)}" }}'  # type: ignore[arg-type]
        yield "} ] } }"

    def _profile(self, config: ModelConfig, model: onnx.ModelProto) -> Mapping[str, str]:
        """The shapes of every input: one row, and full batches."""
        inputs = {value.name: dims(value)[1:] for value in graph_inputs(model)}
        open_names = sorted(name for name, inner in inputs.items() if any(isinstance(dim, str) for dim in inner))
        if open_names and self.open_sizes is None:
            raise Mistake(
                f"--accelerator tensorrt: input {', '.join(open_names)} has open dimensions, and TensorRT builds an "
                "engine for each new shape unless it knows their range. Name it: --open-dims lo:hi."
            )
        smallest, largest = self.open_sizes or (1, 1)
        full = max(config.max_batch_size, 1)
        return {
            "trt_profile_min_shapes": _shapes(inputs, 1, smallest),
            "trt_profile_opt_shapes": _shapes(inputs, full, largest),
            "trt_profile_max_shapes": _shapes(inputs, full, largest),
        }


def open_sizes(text: str | None) -> tuple[int, int] | None:
    """Read `lo:hi` of --open-dims; raises `Mistake`."""
    if text is None:
        return None
    bounds = read_bounds(text)
    if bounds is None or bounds.low < 1 or bounds.low != int(bounds.low) or bounds.high != int(bounds.high):
        raise Mistake(f"--open-dims {text}: not two sizes. Write lo:hi with 1 <= lo <= hi, for example 1:512.")
    return int(bounds.low), int(bounds.high)


def _shapes(inputs: Mapping[str, Sequence[int | str]], rows: int, size: int) -> str:
    """The form of onnxruntime's profiles: `name:8x1x32,other:8x4`."""
    return ",".join(
        f"{name}:{'x'.join(str(dim if isinstance(dim, int) else size) for dim in (rows, *inner))}"
        for name, inner in inputs.items()
    )
