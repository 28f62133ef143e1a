"""The model repository that a soak serves: four models with whole numbers as answers, so equal to the bit.

pictures   a simulated model, two instances, dynamic batching (Python)
policed    the same with `batch_policy: deadline`, which refuses requests that would be late (Python)
packed     sums of values in strings (Python)
sums       sums of a ragged input, two instances (an ONNX graph)
"""

import shutil
from pathlib import Path

import onnx

from export.repository import REPOSITORY
from perf.studies.soak.call import PACKED, PICTURES, POLICED, SUMS

_PICTURES = """
max_batch_size: 8
input [ { name: "picture" data_type: TYPE_FP32 dims: [ 1, 32, 100 ] } ]
output [ { name: "mean" data_type: TYPE_FP32 dims: [ 26, 37 ] } ]
dynamic_batching { }
"""
_FREE = """
instance_group [ { count: 2 kind: KIND_CPU } ]
parameters { key: "fixed_ms" value { string_value: "3" } }
parameters { key: "row_ms" value { string_value: "0.2" } }
"""
_POLICED = """
instance_group [ { count: 1 kind: KIND_CPU } ]
parameters { key: "fixed_ms" value { string_value: "6" } }
parameters { key: "row_ms" value { string_value: "2" } }
parameters { key: "batch_policy" value { string_value: "deadline" } }
parameters { key: "slo_ms" value { string_value: "40" } }
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
# Running totals over all requests of the batch; a request's sum is the total at its end less that at its start.
_SUMS_GRAPH = """
<ir_version: 8, opset_import: ["" : 17]>
sums (float[elements] values, int32[offset] offsets) => (float[requests, 1] sum)
<float[1] nothing = {0}, int64 first_axis = {0}, int64[1] zero = {0}, int64[1] one = {1}, int64[1] last = {-1},
 int64[1] end = {9223372036854775807}>
{
  behind_zero = Concat <axis = 0> (nothing, values)
  totals = CumSum (behind_zero, first_axis)
  starts = Slice (offsets, zero, last)
  ends = Slice (offsets, one, end)
  before = Gather (totals, starts)
  after = Gather (totals, ends)
  flat = Sub (after, before)
  sum = Unsqueeze (flat, one)
}
"""


def build(folder: Path) -> Path:
    """Write the four models into `folder`, and return it."""
    _python(folder, PICTURES, "simulated_accelerator", _PICTURES + _FREE)
    _python(folder, POLICED, "simulated_accelerator", _PICTURES + _POLICED)
    _python(folder, PACKED, "python_batched_service", _PACKED)
    version = folder / SUMS / "1"
    version.mkdir(parents=True)
    onnx.save(onnx.parser.parse_model(_SUMS_GRAPH), version / "model.onnx")
    (version.parent / "config.pbtxt").write_text(f'name: "{SUMS}"\nbackend: "onnxruntime"\n{_SUMS}')
    return folder


def _python(folder: Path, name: str, source: str, config: str) -> None:
    """A model of the project's own repository under another name and configuration."""
    ignored = shutil.ignore_patterns("__*")
    shutil.copytree(REPOSITORY / source / "1", folder / name / "1", ignore=ignored)
    (folder / name / "config.pbtxt").write_text(f'name: "{name}"\nbackend: "python"\n{config}')
