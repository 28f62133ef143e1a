"""Step 1: the answers of a served model against those of onnxruntime on the CPU, in this process."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

from clients import Model
from export.graph.samples import sample
from export.repository import REPOSITORY, served_file
from perf.measure.service_time_run import StepProgress
from perf.studies.experiment import onnxruntime_alone
from perf.studies.gpu.extent import Extent
from perf.studies.gpu.models import DYNAMIC
from perf.studies.gpu.record import CUDA, Finding, difference
from serve.launcher import Settings, launch
from triton_batching.machine import cores
from triton_batching.terminal import Failure


def answers(extent: Extent, _: Path, progress: StepProgress) -> list[Finding]:
    """Each model with one row, and with full batches."""
    found = []
    for name in extent.answers:
        progress(name, False)
        found.append(_model(name, extent))
        progress(name, True)
    return found


def _model(name: str, extent: Extent) -> Finding:
    alone = onnxruntime_alone(served_file(name, REPOSITORY), cores())
    with launch(Settings(models=(name,), config_name=DYNAMIC)) as server:
        config = server.configs[name]
        check_kind(config, extent.device)
        sizes, worst = sorted({1, config.max_batch_size}), 0.0
        with Model(name, url=server.grpc_url) as model:
            for rows in sizes:
                feed = sample(config, rows=rows, seed=rows)
                expected = alone.run([output.name for output in config.output], feed)
                worst = max(worst, farthest(model.predict(feed), expected))
    what = f"{name}: difference from onnxruntime on the CPU"
    return difference(what, worst, extent.tolerance, f"{', '.join(map(str, sizes))} rows")


def farthest(answer: Any, expected: list[NDArray[Any]]) -> float:
    """The largest difference of the outputs, each as a share of its largest value; NaN if an answer has one."""
    given = answer if isinstance(answer, tuple) else (answer,)
    parts = [np.abs(one - right).max() / np.abs(right).max() for one, right in zip(given, expected, strict=True)]
    return float(np.max(parts))


def check_kind(config: ModelConfig, device: str) -> None:
    """Raise `Failure` if the server runs the model on another device: then nothing here says anything of a GPU."""
    wanted = ModelInstanceGroup.KIND_GPU if device == CUDA else ModelInstanceGroup.KIND_CPU
    kinds = {group.kind for group in config.instance_group}
    if kinds != {wanted}:
        names = ", ".join(sorted(ModelInstanceGroup.Kind.Name(kind) for kind in kinds)) or "none"
        raise Failure(
            f"{config.name}: its instances are of {names}, so it does not run on {device}. Read the server's log: "
            "python -m serve --model " + config.name
        )
