"""A model with one input and one output of each of Triton's data types, which returns its inputs."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from onnx import helper
from tiny_models import save

EXTREMES: dict[str, NDArray[Any]] = {
    "BOOL": np.array([True, False]),
    "UINT8": np.array([1, 255], dtype=np.uint8),
    "UINT16": np.array([1, 65535], dtype=np.uint16),
    "UINT32": np.array([1, 2**32 - 1], dtype=np.uint32),
    "UINT64": np.array([1, 2**64 - 1], dtype=np.uint64),
    "INT8": np.array([-128, 127], dtype=np.int8),
    "INT16": np.array([-(2**15), 1], dtype=np.int16),
    "INT32": np.array([-(2**31), 1], dtype=np.int32),
    "INT64": np.array([-(2**63), 1], dtype=np.int64),
    "BF16": np.array([1.5, -2], dtype=ml_dtypes.bfloat16),
    "FP16": np.array([1.5, -2], dtype=np.float16),
    "FP32": np.array([1.5, np.nan], dtype=np.float32),
    "FP64": np.array([1e300, -2], dtype=np.float64),
    "STRING": np.array(["é".encode(), b"a\x00b"], dtype=np.object_),
}
"""Two values of each type."""
NUMPY = [kind for kind in EXTREMES if kind != "BF16"]
"""BF16 needs a model of its own: onnxruntime's Python interface does not run it beside STRING."""


def echo(repository: Path, name: str, types: list[str], config: str, *, width: int) -> Path:
    """Write a model with the inputs `x_TYPE` and the outputs `y_TYPE` of `width` values in a row."""
    inputs, outputs = (
        [
            helper.make_tensor_value_info(
                f"{letter}_{kind}", helper.np_dtype_to_tensor_dtype(EXTREMES[kind].dtype), ["b", width]
            )
            for kind in types
        ]
        for letter in "xy"
    )
    nodes = [helper.make_node("Identity", [f"x_{kind}"], [f"y_{kind}"]) for kind in types]
    tensors = "".join(
        f'{way} [ {{ name: "{letter}_{kind}" data_type: TYPE_{kind} dims: [ {width} ] }} ]\n'
        for way, letter in (("input", "x"), ("output", "y"))
        for kind in types
    )
    return save(repository, name, helper.make_graph(nodes, "g", inputs, outputs), tensors + config)
