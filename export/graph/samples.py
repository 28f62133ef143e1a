"""Draws valid inputs of a model from its configuration."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig

Array = NDArray[np.generic]
Draw = Callable[[np.random.Generator, list[int]], Array]

# Values that every model accepts: small and finite; whole numbers are not negative because they may be indices.
_DRAWS: dict[str, Draw] = {
    "TYPE_BOOL": lambda rng, shape: rng.integers(0, 2, shape).astype(np.bool_),
    "TYPE_FP16": lambda rng, shape: rng.uniform(-1, 1, shape).astype(np.float16),
    "TYPE_FP32": lambda rng, shape: rng.uniform(-1, 1, shape).astype(np.float32),
    "TYPE_FP64": lambda rng, shape: rng.uniform(-1, 1, shape),
    "TYPE_STRING": lambda rng, shape: np.array(
        [f"sample {number}".encode() for number in rng.integers(0, 1000, int(np.prod(shape)))],
        dtype=np.object_,
    ).reshape(shape),
}


# Elements of a request along a dimension that config.pbtxt leaves open.
OPEN_DIM = 16


def sample(config: ModelConfig, *, rows: int, seed: int = 0, open_dim: int = OPEN_DIM) -> dict[str, Array]:
    """Draw one valid request of `rows` rows: input name -> array of shape (rows, *dims), or dims without batching.

    A dims entry of -1 becomes `open_dim`. The same seed gives the same values for the same configuration.
    """
    rng = np.random.default_rng(seed)
    batch = [rows] if config.max_batch_size > 0 else []
    return {
        tensor.name: draw(DataType.Name(tensor.data_type))(
            rng, batch + [open_dim if dim == -1 else dim for dim in tensor.dims]
        )
        for tensor in config.input
    }


def draw(data_type: str) -> Draw:
    """The generator for one Triton data type; integers of every width are drawn from 0 to 99."""
    if data_type in _DRAWS:
        return _DRAWS[data_type]
    dtype = np.dtype(data_type.removeprefix("TYPE_").lower())
    return lambda rng, shape: rng.integers(0, 100, shape).astype(dtype)
