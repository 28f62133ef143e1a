"""How far two answers are apart."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]


def differ(found: Sequence[Array], expected: Sequence[Array]) -> float:
    """Largest difference between two answers; infinite when their number, shapes, types or any text differ."""
    if len(found) != len(expected):
        return float("inf")
    return max((_differ(one, other) for one, other in zip(found, expected, strict=True)), default=0.0)


def _differ(one: Array, other: Array) -> float:
    if one.shape != other.shape or one.dtype != other.dtype:
        return float("inf")
    if np.array_equal(one, other):
        return 0.0
    if not np.issubdtype(one.dtype, np.floating):
        return float("inf")
    largest = float(np.max(np.abs(one.astype(np.float64) - other.astype(np.float64))))
    return largest if np.isfinite(largest) else float("inf")


def apart(answers: Sequence[Sequence[Array]]) -> float:
    """Smallest difference between any two answers; infinite for fewer than two."""
    best = float("inf")
    ordered = sorted(answers, key=_first)
    for number, one in enumerate(ordered):
        for other in ordered[number + 1 :]:
            # Answers are ordered by one of their values, which bounds the difference from below.
            if _first(other) - _first(one) >= best:
                break
            best = min(best, differ(one, other))
    return best


def _first(answer: Sequence[Array]) -> float:
    value = answer[0].flat[0] if answer[0].size else 0
    return float(value) if isinstance(value, np.number | np.bool_) and np.isfinite(value) else 0.0
