"""Rows of several kinds, because a graph may mix its rows for some values only: small, large, saturating ones."""

from collections.abc import Mapping, Sequence

import numpy as np

from export.graph.input_values import Array, Range, Rows

# Times the guessed range: where a threshold or a square may begin to count, and where a sigmoid is 1.
SCALES = (0.01, 10.0, 1000.0)
ROWS = 3


def families(valid: Mapping[str, Range], rows: Rows) -> list[tuple[str, Rows]]:
    """`rows`, and smaller families made of them, each with `beyond`: numbers of a guessed range times `SCALES`.

    The last family has every input at its lowest and highest valid value, and at 0.
    """
    few = {name: array[:ROWS] for name, array in rows.items()}
    drawn = {name: bounds for name, bounds in valid.items() if not bounds.follows}
    guessed = {name for name, bounds in drawn.items() if bounds.guessed and rows[name].dtype.kind in "fiu"}
    larger = [
        (beyond(times), few | {name: scaled(few[name], [times]) for name in guessed})
        for times in (SCALES if guessed else ())
    ]
    bounds = few | {name: _bounds(each, few[name]) for name, each in drawn.items()}
    return [("", rows), *larger, ("", bounds)] if drawn else [("", rows)]


def beyond(times: float) -> str:
    """Which values of a guessed range show a difference, and what to do if no request has them."""
    return (
        f". Only values {times:g} times the guessed range show it. If requests never have them, give the range: "
        "--range NAME=lo:hi"
    )


def scaled(array: Array, times: Sequence[float]) -> Array:
    """Rows times a factor each, infinite (or another number, if whole) where their type is too small."""
    factors = np.array(times, dtype=array.dtype).reshape(-1, *[1] * (array.ndim - 1))
    with np.errstate(over="ignore"):
        return np.asarray(array * factors)


def _bounds(bounds: Range, rows: Array) -> Array:
    """Rows of one value each."""
    values = [bounds.low, bounds.high, min(max(0, bounds.low), bounds.high)]
    return np.stack([np.full_like(row, value) for row, value in zip(rows, values, strict=False)])
