"""One batch back into answers: every output cut along the batch axis, in request order."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class RowsError(ValueError):
    """An output does not have one row for every row of the batch."""


def scatter(name: str, output: NDArray[np.generic], rows: Sequence[int]) -> list[NDArray[np.generic]]:
    """Cut `output` of shape (sum(rows), ...) into views of `rows[0]`, `rows[1]`, ... rows; nothing is copied.

    Raises `RowsError` when there are fewer or more rows: the C++ backend drops surplus rows silently, which
    hides a model whose output is not per row.
    """
    total = sum(rows)
    if output.ndim == 0 or output.shape[0] != total:
        raise RowsError(
            f"failed to split the output tensor '{name}' in responses: expected batch size of {total}, "
            f"model returned shape {list(output.shape)}. The output is not one row per input row: set "
            "max_batch_size: 0 or export the model with the batch axis kept."
        )
    ends = np.cumsum(rows)
    return [output[end - count : end] for end, count in zip(ends, rows, strict=True)]
