"""How far the answer of a padded request may be from its answer alone: what rounding explains, column by column."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from export.graph.axis_proof import take
from export.graph.input_values import Array
from export.graph.padding_requests import Alone, Requests

# Single rows that show the noise of another batch size, and how many times worse padding may be.
NOISY_ROWS, TIMES_NOISE = 3, 4
BFLOAT16_STEP = 2**-7


@dataclass(frozen=True, kw_only=True)
class Limit:
    """The allowed difference and the largest value of each column (the last axis) of an output."""

    allowed: Array
    largest: Array

    def exceeded(self, actual: Array, expected: Array) -> tuple[bool, float]:
        """Whether two answers differ by more, and the largest difference as a share of its column's largest value."""
        if actual.shape != expected.shape:
            return True, float("inf")
        if expected.dtype.kind not in "fV":
            equal = np.array_equal(actual, expected)
            return not equal, 0.0 if equal else float("inf")
        if not expected.size:
            return False, 0.0
        errors = np.abs(actual.astype(np.float64) - expected.astype(np.float64))
        if not np.isfinite(errors).all():
            return True, float("inf")
        return bool((errors > self.allowed).any()), float((errors / self.largest).max())


def limits_of(requests: Requests, alone: Alone, tolerance: float) -> list[Limit]:
    """A limit for each output of requests of one length.

    A column may be wrong by `tolerance` of what it varies by, by a tenth of that of its largest value, and by a few
    times what a request differs by in another batch without padding. So a small column beside a large one counts.
    """
    rows = list(alone.usable[-NOISY_ROWS:])
    singles = [requests.run(take(alone.rows, row, row + 1)) for row in rows]
    return [
        _limit(
            output[list(alone.usable)],
            [(single[index], output[row : row + 1]) for row, single in zip(rows, singles, strict=True) if single],
            tolerance,
        )
        for index, output in enumerate(alone.outputs)
    ]


def _limit(output: Array, again: Sequence[tuple[Array, Array]], tolerance: float) -> Limit:
    if output.dtype.kind not in "fV" or not output.size:
        return Limit(allowed=np.zeros(1), largest=np.ones(1))
    step = np.finfo(output.dtype).eps if output.dtype.kind == "f" else BFLOAT16_STEP
    values = _columns(output)
    largest = np.abs(values).max(axis=0)
    spread = np.abs(values - values.mean(axis=0)).max(axis=0)
    noise = np.zeros_like(largest)
    for single, row in again:
        if single.shape == row.shape:
            noise = np.maximum(noise, np.abs(_columns(single) - _columns(row)).max(axis=0))
    noise = np.minimum(noise, tolerance * largest)  # more than that is no rounding
    allowed = tolerance * spread + max(tolerance / 10, 4 * float(step)) * largest + TIMES_NOISE * noise
    return Limit(allowed=allowed, largest=np.where(largest > 0, largest, 1.0))


def _columns(output: Array) -> Array:
    columns = output.shape[-1] if output.ndim > 1 else 1
    return output.reshape(-1, columns).astype(np.float64)
