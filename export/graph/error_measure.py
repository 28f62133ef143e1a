"""The one measure of two answers that should be the same, and the difference that rounding explains.

It compares a row in a batch with the row alone, a padded request with the same alone, a file with its reference, and a
variant with its original. An element is compared with what the element at the same position is for other rows, never
with other elements of its row, so a score of 0.5 beside a coordinate of 8,000 counts as much as the coordinate:

    error = |answer - expected| / (variation + rounding / tolerance)

`variation` is the largest less the smallest value of the element over the rows of one family. A family holds rows of
one kind (of usual, small, large or extreme values), so an extreme row does not widen what quiet rows may differ by.
`rounding` is some steps of the element's own size, of the coarsest type on the path from the inputs to the output. Two
answers are the same if no error is above the tolerance, which follows from that type too.

Sums that cancel round by more than the size of their result shows, and a batch is summed in another order than a row.
So before two answers are called different, the noise is measured: what each element changes by when every weight and
input moves by some steps of its type. `TIMES_NOISE` times that is rounding as well. It is measured on runs of the same
batch, so it does not hide that rows mix.

Whole numbers and texts must be equal, except for whole numbers that the noise changes (the index of one of two equals).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx

from export.graph.input_values import Array

TIMES_NOISE = 8
# How many times the tolerance may tell answers of two frameworks apart, and tensors in the middle of a graph.
LOOSER = 10


@dataclass(frozen=True, kw_only=True)
class Rounding:
    """What a type explains: `tolerance`, a share of the variation, and `share`, a share of an element's own size."""

    tolerance: float
    share: float


# Kernels sum in 32 bits and round each result of 16 bits once, so 4 steps of these; sums of 32 and 64 bits have
# thousands of terms.
ROUNDINGS: dict[int, Rounding] = {
    onnx.TensorProto.DOUBLE: Rounding(tolerance=1e-4, share=32 * 2.0**-52),
    onnx.TensorProto.FLOAT: Rounding(tolerance=1e-4, share=32 * 2.0**-23),
    onnx.TensorProto.FLOAT16: Rounding(tolerance=1e-2, share=4 * 2.0**-10),
    onnx.TensorProto.BFLOAT16: Rounding(tolerance=5e-2, share=4 * 2.0**-7),
}
SINGLE = ROUNDINGS[onnx.TensorProto.FLOAT]


def coarsest(found: Sequence[Rounding]) -> Rounding:
    """The one of the type with the largest steps."""
    return max(found, key=lambda rounding: rounding.share)


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The largest error of some answers, its tolerance, and where it is: an output, and the indices of an element.

    `what` says which shapes or values differ if the error is infinite.
    """

    error: float = 0.0
    tolerance: float = SINGLE.tolerance
    output: str = ""
    element: tuple[int, ...] = ()
    what: str = ""

    @property
    def exceeds(self) -> bool:
        """Whether the answers are not the same; NaN exceeds as well."""
        return not self.error <= self.tolerance

    @property
    def where(self) -> str:
        """The element, as `scores[5, 2]`."""
        return f"{self.output}[{', '.join(map(str, self.element))}]"

    def __str__(self) -> str:
        """The error in words, after "differs by"."""
        if not self.error:
            return "bit-equal"
        if self.what:
            return self.what
        return f"{self.error:.1e} of what {self.where} varies by (limit {self.tolerance:.0e})"


def largest(differences: Sequence[Difference]) -> Difference:
    """The one that is the largest part of its tolerance."""
    return max(differences, key=lambda each: each.error / each.tolerance, default=Difference())


class Scale:
    """What each element of one output may differ by, from the answers to rows of one family."""

    def __init__(self, answers: Sequence[Array], rounding: Rounding, noise: Array | None = None) -> None:
        """`answers` are of single rows, without an axis for rows; short ones count for the positions that they have.

        `noise` is as in `add_noise`.
        """
        self.rounding = rounding
        shape = np.max([answer.shape for answer in answers], axis=0).astype(int)
        low, high = np.full(shape, np.inf), np.full(shape, -np.inf)
        for answer in answers if answers[0].dtype.kind in "fV" else ():
            own, values = tuple(map(slice, answer.shape)), answer.astype(np.float64)
            finite = np.isfinite(values)
            low[own] = np.minimum(low[own], np.where(finite, values, np.inf))
            high[own] = np.maximum(high[own], np.where(finite, values, -np.inf))
        seen = low <= high
        self._variation = np.where(seen, high, 0.0) - np.where(seen, low, 0.0)
        self._size = np.where(seen, np.maximum(np.abs(low), np.abs(high)), 0.0)
        self._noise: Array = np.zeros(())
        if noise is not None:
            self.add_noise(noise)

    def add_noise(self, noise: Array) -> None:
        """Take what each element changes by when weights and inputs move by some steps."""
        if noise.shape == self._size.shape:
            self._noise = noise

    def errors(self, actual: Array, expected: Array) -> Array:
        """The error of each element of rows (rows, *shape); infinite where one alone is NaN or infinite."""
        if actual.shape != expected.shape:
            return np.full(1, np.inf)
        if actual.dtype == object:
            return np.where(actual == expected, 0.0, np.inf)
        before, after = expected.astype(np.float64), actual.astype(np.float64)
        own = tuple(map(slice, expected.shape[1:]))
        noise = self._noise[own] if self._noise.ndim else self._noise
        rounding = self.rounding.share * self._size[own] + TIMES_NOISE * noise
        scale = self._variation[own] + rounding / self.rounding.tolerance
        with np.errstate(invalid="ignore", divide="ignore"):
            same = (actual == expected) | (np.isnan(before) & np.isnan(after))
            errors = np.where(same, 0.0, np.abs(after - before) / scale)
        return np.where(np.isnan(errors), np.inf, errors)


class Measure:
    """Compares answers to rows of one family, for every output of a graph.

    `alone` are the answers to each row alone, one array (1, *shape) per output; `noise` gives what each element of
    every output changes by, and is called when answers seem to differ.
    """

    def __init__(
        self,
        names: Sequence[str],
        alone: Sequence[Sequence[Array]],
        roundings: Sequence[Rounding],
        noise: Callable[[], Sequence[Array]] | None = None,
    ) -> None:
        self._names, self._noise = names, noise
        self._scales = [
            Scale([answer[index][0] for answer in alone], rounding)
            for index, rounding in enumerate(roundings if alone else ())
        ]

    def compare(
        self, actual: Sequence[Array], expected: Sequence[Array], *, first_row: int = 0, looser: float = 1
    ) -> Difference:
        """The largest difference of all outputs.

        `first_row` is the place of these rows in their batch. The tolerance is `looser` times that of the type.
        """
        errors = self._errors(actual, expected)
        limits = [looser * scale.rounding.tolerance for scale in self._scales]
        exceeds = any((each > limit).any() for each, limit in zip(errors, limits, strict=True))
        if self._noise is not None and exceeds:
            for scale, noise in zip(self._scales, self._noise(), strict=True):
                scale.add_noise(noise)
            self._noise = None
            errors = self._errors(actual, expected)
        found = zip(self._names, errors, limits, actual, expected, strict=True)
        return largest([_worst(*each, first_row) for each in found if each[1].size])

    def _errors(self, actual: Sequence[Array], expected: Sequence[Array]) -> list[Array]:
        return [scale.errors(*pair) for scale, *pair in zip(self._scales, actual, expected, strict=True)]


def _worst(name: str, errors: Array, tolerance: float, actual: Array, expected: Array, first_row: int) -> Difference:
    at = tuple(map(int, np.unravel_index(int(errors.argmax()), errors.shape)))
    found = Difference(
        error=float(errors.max()), tolerance=tolerance, output=name, element=(at[0] + first_row, *at[1:])
    )
    if actual.shape != expected.shape:
        return replace(found, what=f"its shape, {[*actual.shape]} and not {[*expected.shape]}")
    if not np.isfinite(found.error):
        return replace(found, what=f"{found.where}, which is {actual[at]} and not {expected[at]}")
    return found
