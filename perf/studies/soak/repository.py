"""The model repository that a soak serves: four models with whole numbers as answers, so equal to the bit.

pictures   a simulated model, two instances, dynamic batching (Python)
policed    the same with `batch_policy: deadline`, which refuses requests that would be late (Python)
packed     sums of values in strings (Python)
sums       sums of a ragged input, two instances (an ONNX graph)
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from export.repository import REPOSITORY
from perf.studies.soak.job import PACKED, PICTURES, POLICED, SUMS

_PICTURES = """
max_batch_size: 8
input [ { name: "picture" data_type: TYPE_FP32 dims: [ 1, 32, 100 ] } ]
output [ { name: "mean" data_type: TYPE_FP32 dims: [ 26, 37 ] } ]
dynamic_batching { }
"""
_PACKED = """
max_batch_size: 8
input [ { name: "INPUT" data_type: TYPE_STRING dims: [ 1 ] } ]
output [
  { name: "SUM" data_type: TYPE_FP32 dims: [ 1 ] },
  { name: "LENGTH" data_type: TYPE_INT32 dims: [ 1 ] }
]
dynamic_batching { max_queue_delay_microseconds: 2000 }
instance_group [ { count: 1 kind: KIND_CPU } ]
"""
_SUMS = """
max_batch_size: 16
input [ { name: "values" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true } ]
batch_input [
  {
    kind: BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO
    target_name: "offsets" data_type: TYPE_INT32 source_input: "values"
  }
]
output [ { name: "sum" data_type: TYPE_FP32 dims: [ 1 ] } ]
dynamic_batching { max_queue_delay_microseconds: 2000 }
instance_group [ { count: 2 kind: KIND_CPU } ]
"""


def build(folder: Path) -> Path:
    """Write the four models into `folder`, and return it."""
    instances = "instance_group [ {{ count: {} kind: KIND_CPU }} ]\n"
    policy = _parameters({"fixed_ms": "6", "row_ms": "2", "batch_policy": "deadline", "slo_ms": "40"})
    _python(
        folder,
        PICTURES,
        "simulated_accelerator",
        _PICTURES + instances.format(2) + _parameters({"fixed_ms": "3", "row_ms": "0.2"}),
    )
    _python(folder, POLICED, "simulated_accelerator", _PICTURES + instances.format(1) + policy)
    _python(folder, PACKED, "python_batched_service", _PACKED)
    version = folder / SUMS / "1"
    version.mkdir(parents=True)
    onnx.save(_sums(), version / "model.onnx")
    (version.parent / "config.pbtxt").write_text(f'name: "{SUMS}"\nbackend: "onnxruntime"\n{_SUMS}')
    return folder


def _python(folder: Path, name: str, source: str, config: str) -> None:
    """A model of the project's own repository under another name and configuration."""
    ignored = shutil.ignore_patterns("__*")
    shutil.copytree(REPOSITORY / source / "1", folder / name / "1", ignore=ignored)
    (folder / name / "config.pbtxt").write_text(f'name: "{name}"\nbackend: "python"\n{config}')


def _parameters(values: Mapping[str, str]) -> str:
    return "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n' for key, value in values.items()
    )


def _sums() -> onnx.ModelProto:
    """Running totals over all requests of the batch; a request's sum is the total at its end less that at its start."""
    nodes = [
        helper.make_node("Concat", ["nothing", "values"], ["behind_zero"], axis=0),
        helper.make_node("CumSum", ["behind_zero", "first_axis"], ["totals"]),
        helper.make_node("Slice", ["offsets", "zero", "last"], ["starts"]),
        helper.make_node("Slice", ["offsets", "one", "end"], ["ends"]),
        helper.make_node("Gather", ["totals", "starts"], ["before"]),
        helper.make_node("Gather", ["totals", "ends"], ["after"]),
        helper.make_node("Sub", ["after", "before"], ["flat"]),
        helper.make_node("Unsqueeze", ["flat", "one"], ["sum"]),
    ]
    constants: Mapping[str, NDArray[Any]] = {
        "nothing": np.zeros(1, np.float32),
        "first_axis": np.array(0, np.int64),
        "zero": np.array([0], np.int64),
        "one": np.array([1], np.int64),
        "last": np.array([-1], np.int64),
        "end": np.array([np.iinfo(np.int64).max], np.int64),
    }
    graph = helper.make_graph(
        nodes,
        SUMS,
        [
            helper.make_tensor_value_info("values", TensorProto.FLOAT, ["elements"]),
            helper.make_tensor_value_info("offsets", TensorProto.INT32, ["offsets"]),
        ],
        [helper.make_tensor_value_info("sum", TensorProto.FLOAT, ["requests", 1])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model
