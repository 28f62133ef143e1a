"""Seeded valid inputs from a configuration."""

import numpy as np
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from export.graph.samples import sample

TYPES = {
    "BOOL": np.bool_, "UINT8": np.uint8, "INT16": np.int16, "INT64": np.int64,
    "FP16": np.float16, "FP32": np.float32, "FP64": np.float64, "STRING": np.object_,
}  # fmt: skip


def config(max_batch_size: int) -> ModelConfig:
    inputs = "".join(f'input {{ name: "{name}" data_type: TYPE_{name} dims: [ 2, -1 ] }}' for name in TYPES)
    return text_format.Parse(f"max_batch_size: {max_batch_size} {inputs}", ModelConfig())


def test_samples_have_the_type_and_shape_of_the_configuration() -> None:
    drawn = sample(config(8), rows=3, open_dim=5)
    assert {name: array.dtype for name, array in drawn.items()} == {
        name: np.dtype(dtype) for name, dtype in TYPES.items()
    }
    assert {array.shape for array in drawn.values()} == {(3, 2, 5)}


def test_without_batching_there_is_no_batch_axis() -> None:
    assert {array.shape for array in sample(config(0), rows=3, open_dim=5).values()} == {(2, 5)}


def test_a_seed_gives_its_values() -> None:
    first, same, other = (sample(config(4), rows=2, seed=seed)["FP32"] for seed in (1, 1, 2))
    assert np.array_equal(first, same)
    assert not np.array_equal(first, other)
    assert np.abs(first).max() <= 1
