"""What a torch module allocates in one inference, recorded by torch.profiler."""

from pathlib import Path

import numpy as np
import pytest
from torch import nn

from export import eager_memory
from export.graph.torch_onnx import Reference
from perf.studies.memory_lab.traces.reading import read


def test_every_tensor_of_an_inference_is_recorded_and_released(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Softplus(), nn.Linear(1000, 10), nn.Softplus())
    reference = Reference(module, input_name="x", output_name="y")
    path = eager_memory.record(reference, {"x": np.zeros((3, 1000), np.float32)}, tmp_path / "new" / "eager.json")
    (trace,) = read(path)
    # Three rows of 1000, 10 and 10 floats; the first is released once the linear layer has read it.
    sizes = [allocation.requested_bytes for allocation in trace.allocations]
    assert [size for size in sizes if size >= 120] == [12_000, 120, 120]
    assert trace.unmatched == ()
    assert trace.remarks == ()
    assert trace.live_peak_bytes >= 12_120


def test_the_program_says_which_models_it_knows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert eager_memory.main(["absent", "--to", str(tmp_path / "eager.json")]) == 2
    assert "'absent' is not a model of the catalogue. Known: " in capsys.readouterr().err
    assert eager_memory.main(["ranker", "--to", str(tmp_path / "eager.json")]) == 2
    assert "'ranker' is ragged or not a torch model" in capsys.readouterr().err
    assert eager_memory.main(["resnet50", "--rows", "0", "--to", str(tmp_path / "eager.json")]) == 2
