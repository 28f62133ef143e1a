"""The difference between two answers, output by output."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]


def differences(answer: Sequence[Array], expected: Sequence[Array]) -> tuple[float, ...]:
    """The largest difference in each output; infinite if the number of outputs, shapes, types or texts differ."""
    if len(answer) != len(expected):
        return (float("inf"),) * len(expected)
    return tuple(_differ(*pair) for pair in zip(answer, expected, strict=True))


def right(answer: Sequence[Array], expected: Sequence[Array], tolerances: Sequence[float]) -> bool:
    """Whether every output of an answer is within its tolerance."""
    return all(each <= most for each, most in zip(differences(answer, expected), tolerances, strict=True))


def _differ(array: Array, other: Array) -> float:
    if array.shape != other.shape or array.dtype != other.dtype:
        return float("inf")
    if np.array_equal(array, other):
        return 0.0
    if not np.issubdtype(array.dtype, np.floating):
        return float("inf")
    finite = np.isfinite(array) & np.isfinite(other)
    if not np.array_equal(array[~finite], other[~finite], equal_nan=True):
        return float("inf")
    return float(np.max(np.abs(array[finite].astype(np.float64) - other[finite].astype(np.float64)), initial=0.0))


def apart(answers: Sequence[Sequence[Array]], tolerances: Sequence[float]) -> float:
    """By how much any two answers at least differ in some output, beyond twice its tolerance.

    Above 0, no answer is right for two of the requests. Infinite for fewer than two answers.
    """
    smallest = float("inf")
    ordered = sorted(answers, key=_first)
    for number, answer in enumerate(ordered):
        for other in ordered[number + 1 :]:
            # The answers are in order of their first value, and its difference is a lower bound.
            if _beyond(_first(other) - _first(answer), tolerances[0]) >= smallest:
                break
            each = zip(differences(answer, other), tolerances, strict=True)
            smallest = min(smallest, max(_beyond(difference, tolerance) for difference, tolerance in each))
    return smallest


def _beyond(difference: float, tolerance: float) -> float:
    return difference - 2 * tolerance if np.isfinite(tolerance) else -float("inf")


def _first(answer: Sequence[Array]) -> float:
    value = answer[0].flat[0] if answer[0].size else 0
    return float(value) if isinstance(value, np.number | np.bool_) and np.isfinite(value) else 0.0
