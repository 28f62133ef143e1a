"""The rows on which a variant is compared with its original, and those that calibrate it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from export.graph.axis_proof import choose_rows, session_of
from export.graph.input_values import Range, Rows, ranges, read_samples
from export.graph.onnx_graph import graph_inputs
from export.graph.recipe import Recipe
from triton_batching.terminal import Mistake

RECOGNISERS = ("text_recognition", "text_recognition_512")
WORDS, ROWS = 200, 64
# A proof of the batch axis needs two rows, and half of the rows are compared.
LEAST = 4
# Not those of the words that trained the recogniser (export/words/reading_accuracy.py).
SEED, CALIBRATION_SEED = 3_000_003, 4_000_003


@dataclass(frozen=True, kw_only=True)
class TrialRows:
    """Rows to compare and rows for calibration, where they are from, and the word in each picture of `rows`, if any."""

    rows: Rows
    calibration: Rows
    origin: str
    words: Sequence[str] = ()
    drawn_at_random: bool = False


def trial_rows(
    model: onnx.ModelProto,
    recipe: Recipe | None,
    *,
    samples: Path | None,
    calibrate: Path | None,
    chosen: Mapping[str, Range],
) -> TrialRows:
    """The user's rows, or words for the text recogniser, or random rows; raises `Mistake` or `NoValidRow`.

    Rows from one source are split: every other one calibrates, and the rest is compared.
    """
    if samples and calibrate:
        rows, calibration = read_samples(samples, model), read_samples(calibrate, model)
        return TrialRows(rows=rows, calibration=calibration, origin=str(samples))
    if only := samples or calibrate:
        return _split(_enough(read_samples(only, model), only), str(only))
    if recipe and recipe.model in RECOGNISERS:
        try:
            return _words(graph_inputs(model)[0].name)
        except ModuleNotFoundError as error:
            rows = _random(model, chosen)
            return _split(rows, f"random rows, as words cannot be drawn: {error}", drawn_at_random=True)
    return _split(_random(model, chosen), "random rows", drawn_at_random=True)


def _enough(rows: Rows, path: Path) -> Rows:
    """The rows, of which half can be compared; raises `Mistake`."""
    if (count := len(next(iter(rows.values())))) < LEAST:
        raise Mistake(
            f"{path}: has {count} rows. Every other one calibrates and the rest is compared, so give {LEAST} or more."
        )
    return rows


def _split(rows: Rows, origin: str, *, drawn_at_random: bool = False) -> TrialRows:
    return TrialRows(
        rows={name: array[1::2] for name, array in rows.items()},
        calibration={name: array[::2] for name, array in rows.items()},
        origin=origin,
        drawn_at_random=drawn_at_random,
    )


def _random(model: onnx.ModelProto, chosen: Mapping[str, Range]) -> Rows:
    rows, _ = choose_rows(session_of(model), model, ranges(model, chosen, {}), rows=2 * ROWS)
    return rows


def _words(name: str) -> TrialRows:
    """Pictures of words; raises ModuleNotFoundError if what draws them is not installed."""
    from export.models import word_image
    from export.words.pictures import draw_picture, draw_word

    def pictures(seed: int, count: int) -> tuple[Rows, list[str]]:
        rng = np.random.default_rng(seed)
        drawn = [draw_picture(rng, draw_word(rng)) for _ in range(count)]
        return {name: np.stack([word_image.prepare(one.picture) for one in drawn])}, [one.word for one in drawn]

    rows, words = pictures(SEED, WORDS)
    return TrialRows(
        rows=rows, calibration=pictures(CALIBRATION_SEED, ROWS)[0], origin=f"{WORDS} drawn words", words=words
    )
