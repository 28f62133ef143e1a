"""Requests into one batch: the tensors of all requests, joined along the batch axis."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Tensors = Mapping[str, NDArray[np.generic]]
"""The tensors of one request or one batch by name, each of shape (rows, ...)."""


def gather(requests: Sequence[Tensors]) -> Tensors:
    """Join requests of rows r1, r2, ... into one batch of r1 + r2 + ... rows.

    One request is passed through as it is; more cost exactly one copy of each tensor.
    Raises `ValueError` when the shapes beyond the batch axis differ.
    """
    if len(requests) == 1:
        return requests[0]
    return {name: np.concatenate([request[name] for request in requests]) for name in requests[0]}
