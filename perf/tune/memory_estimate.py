"""The memory that candidates need at least, by perf.memory, before anything is measured."""

import functools
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

from export.graph.ragged_feed import is_ragged
from export.graph.samples import sample
from perf.memory.estimate.batch_memory import Model
from perf.records.candidate import Candidate
from perf.records.resource_use import Limits, ResourceUse
from perf.tune.limits import Estimate
from triton_batching.terminal import Failure, Mistake

MIB = 2**20


def estimated(config: ModelConfig, file: Path, limits: Limits, *, gpu: bool) -> tuple[Estimate, str]:
    """The estimate of `estimates`; if there is none, or no limit of memory, one that knows nothing, and why."""
    if not limits.of_memory:
        return unknown, ""
    try:
        return estimates(config, file, gpu=gpu), ""
    except (Failure, Mistake) as error:
        return unknown, f"the memory is only measured, not estimated before: {error}"


def unknown(_: Candidate) -> ResourceUse:
    """The estimate of a model about whose memory nothing is known."""
    return ResourceUse()


def estimates(config: ModelConfig, file: Path, *, gpu: bool) -> Estimate:
    """What candidates of this configuration need for the weights and activations of the model in `file`.

    Each instance has a copy of its own. `gpu`: the machine has one, where all instances run but those of KIND_CPU. The
    processes themselves and other models are not counted. Raises `Failure` or `Mistake` for a model that cannot be
    estimated.
    """
    if file.suffix != ".onnx":
        raise Failure(f"{file.name} is no ONNX file")
    if is_ragged(config) or config.optimization.HasField("execution_accelerators"):
        raise Failure("ragged inputs and execution accelerators are not estimated")
    model = Model.as_served(file)
    shapes = {name: array.shape[1:] for name, array in sample(config, rows=1).items()}
    on_gpu = gpu and not any(group.kind == ModelInstanceGroup.KIND_CPU for group in config.instance_group)

    @functools.cache
    def least_mib(rows: int) -> float:
        return model.least_bytes({name: (rows, *shape) for name, shape in shapes.items()}) / MIB

    def of(candidate: Candidate) -> ResourceUse:
        mib = candidate.instances * least_mib(candidate.max_batch_size)
        return ResourceUse(gpu_memory_mib=mib) if on_gpu else ResourceUse(server_memory_mib=mib)

    least_mib(1)  # raises now what it would raise later
    return of
