"""The difference between two answers."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]


def differ(answer: Sequence[Array], expected: Sequence[Array]) -> float:
    """The largest difference of two answers; infinite if their number, shapes, types or texts differ."""
    if len(answer) != len(expected):
        return float("inf")
    return max((_differ(*pair) for pair in zip(answer, expected, strict=True)), default=0.0)


def _differ(array: Array, other: Array) -> float:
    if array.shape != other.shape or array.dtype != other.dtype:
        return float("inf")
    if np.array_equal(array, other):
        return 0.0
    if not np.issubdtype(array.dtype, np.floating):
        return float("inf")
    largest = float(np.max(np.abs(array.astype(np.float64) - other.astype(np.float64))))
    return largest if np.isfinite(largest) else float("inf")


def apart(answers: Sequence[Sequence[Array]]) -> float:
    """The smallest difference of any two answers; infinite for fewer than two."""
    smallest = float("inf")
    ordered = sorted(answers, key=_first)
    for number, answer in enumerate(ordered):
        for other in ordered[number + 1 :]:
            # The answers are in order of their first value, and its difference is a lower bound.
            if _first(other) - _first(answer) >= smallest:
                break
            smallest = min(smallest, differ(answer, other))
    return smallest


def _first(answer: Sequence[Array]) -> float:
    value = answer[0].flat[0] if answer[0].size else 0
    return float(value) if isinstance(value, np.number | np.bool_) and np.isfinite(value) else 0.0
