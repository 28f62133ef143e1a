"""How far the answers of a variant are from those of its original."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnxruntime

from export.graph.axis_proof import run, take
from export.graph.error_measure import Rounding, Scale
from export.graph.input_values import Array, Rows
from export.models import alphabet

Answers = dict[str, Array]


@dataclass(frozen=True, kw_only=True)
class OutputError:
    """The largest and the mean error of one output (`export.graph.error_measure`), and the tolerance.

    `agreement` is the share of places where the largest value along the last axis is at the same index (top-1 of a
    classifier), or of equal whole numbers; None for an output with neither.
    """

    output: str
    largest: float
    mean: float
    agreement: float | None


@dataclass(frozen=True, kw_only=True)
class WordsRead:
    """Words that original and variant read right, and that they read alike, of `count`."""

    original: int
    variant: int
    alike: int
    count: int

    def __str__(self) -> str:
        return f"{self.variant} of {self.count} right, before {self.original}; {self.alike} alike"


def answers(session: onnxruntime.InferenceSession, rows: Rows, batch: int, say: Callable[[str], None]) -> Answers:
    """Every output for all rows, in batches of `batch` as a server runs them."""
    count, parts = len(next(iter(rows.values()))), []
    for start in range(0, count, batch):
        say(f"row {start} of {count}")
        parts.append(run(session, take(rows, start, start + batch)))
    names = [output.name for output in session.get_outputs()]
    return {name: np.concatenate([part[index] for part in parts]) for index, name in enumerate(names)}


def compare(original: Answers, variant: Answers, rounding: Rounding) -> list[OutputError]:
    """The difference of every output; whole numbers and texts differ by the share of places that are not equal."""
    return [_output(name, np.asarray(original[name]), np.asarray(variant[name]), rounding) for name in original]


def words_read(original: Array, variant: Array, words: Sequence[str]) -> WordsRead:
    """What the text recogniser reads in pictures of known words."""
    before, after = alphabet.decode(original), alphabet.decode(variant)

    def equal(one: Sequence[str], other: Sequence[str]) -> int:
        return sum(a == b for a, b in zip(one, other, strict=True))

    return WordsRead(
        original=equal(before, words), variant=equal(after, words), alike=equal(before, after), count=len(words)
    )


def worst(errors: Sequence[OutputError]) -> float:
    """The largest difference of all outputs; NaN counts as infinite."""
    return max(error.largest for error in errors)


def _output(name: str, original: Array, variant: Array, rounding: Rounding) -> OutputError:
    if original.shape == variant.shape and original.dtype.kind not in "fV":
        different = float(np.mean(original != variant)) if original.size else 0.0
        return OutputError(output=name, largest=different, mean=different, agreement=1 - different)
    errors = Scale([*original], rounding).errors(variant, original)
    return OutputError(
        output=name,
        largest=float(errors.max(initial=0.0)),
        mean=float(errors.mean()) if errors.size else 0.0,
        agreement=_agreement(original, variant),
    )


def _agreement(original: Array, variant: Array) -> float | None:
    if original.shape != variant.shape or original.ndim < 2 or original.shape[-1] < 2 or not original.size:
        return None
    return float(np.mean(original.argmax(axis=-1) == variant.argmax(axis=-1)))
