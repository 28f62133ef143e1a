"""Joins the tensors of all requests into one batch, along the batch axis or end to end."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from batch_inputs import BatchInput, batch_inputs
from numpy.typing import NDArray
from tensor_types import Config, GraphTensor

Tensors = Mapping[str, NDArray[np.generic]]
"""The tensors of one request or one batch by name; a request's tensors have the shapes that the client sent."""

Allocate = Callable[[int, "np.dtype[Any]"], NDArray[Any]]
"""Makes an array with that number of elements of a type."""


class GatherError(ValueError):
    """Requests that cannot run together."""


class Gather:
    """Makes the inputs of one run of the graph from its requests.

    A ragged input becomes one tensor of rank 1 with the elements of all requests in their order. Other inputs are
    joined along the batch axis. Batch inputs are added. Joined tensors use buffers that the next call reuses, because
    the page faults of a new 100 MB array cost more than the copy into it. A single request is not copied.
    """

    def __init__(self, config: Config, inputs: Sequence[GraphTensor], allocate: Allocate = np.empty) -> None:
        self._ragged = {tensor["name"] for tensor in config["input"] if tensor.get("allow_ragged_batch")}
        self._scalars = {tensor.name for tensor in inputs if not tensor.shape} - self._ragged
        self._batch_inputs: list[BatchInput] = batch_inputs(config)
        self._plain = not (self._ragged or self._scalars or self._batch_inputs)
        self._buffers = Buffers(allocate)

    def __call__(self, requests: Sequence[Tensors]) -> dict[str, NDArray[np.generic]]:
        """Tensors by graph input for one run.

        Raises `ValueError` if shapes of inputs that are not ragged differ after the batch axis, and `BatchInputError`.
        """
        if self._plain and len(requests) == 1:
            return dict(requests[0])
        feed = {}
        for name in requests[0]:
            arrays = [request[name] for request in requests]
            if name in self._ragged:
                arrays = [array.reshape(-1) for array in arrays]
            feed[name] = arrays[0] if len(arrays) == 1 else self._join(name, arrays)
            if name in self._scalars:
                feed[name] = _scalar(name, feed[name])
        for batch_input in self._batch_inputs:
            feed[batch_input.target] = batch_input.tensor([request[batch_input.source].shape for request in requests])
        return feed

    def _join(self, name: str, arrays: list[NDArray[np.generic]]) -> NDArray[np.generic]:
        shape = (sum(array.shape[0] for array in arrays), *arrays[0].shape[1:])
        return np.concatenate(arrays, out=self._buffers(name, shape, arrays[0].dtype))


class Buffers:
    """Memory by input that the next batch uses again; texts get new arrays."""

    def __init__(self, allocate: Allocate) -> None:
        self._allocate = allocate
        self._kept: dict[str, NDArray[Any]] = {}

    def __call__(self, name: str, shape: Sequence[int], dtype: "np.dtype[Any]") -> NDArray[Any]:
        """An array of this shape; it has the memory of the one before it if that is large enough."""
        if dtype == np.object_:
            return np.empty(shape, dtype=dtype)
        size, buffer = math.prod(shape), self._kept.get(name)
        if buffer is None or buffer.size < size:
            buffer = self._kept[name] = self._allocate(size, dtype)
        return buffer[:size].reshape(shape)


def _scalar(name: str, array: NDArray[np.generic]) -> NDArray[np.generic]:
    if array.size != 1:
        raise GatherError(
            f"input '{name}' is a scalar in the graph, and the run has {array.size} values for it: the C++ backend "
            "would use the first and ignore the others. Send one row per request and set max_batch_size: 0."
        )
    return array.reshape(())
