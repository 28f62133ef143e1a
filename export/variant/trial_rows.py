"""The rows on which a variant is compared with its original, and those that calibrate it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from PIL import Image

from export.graph.axis_proof import choose_rows, session_of
from export.graph.input_values import Range, Rows, ranges, read_samples
from export.graph.onnx_graph import graph_inputs
from export.graph.recipe import Recipe
from export.models import word_image
from triton_batching.terminal import Mistake

RECOGNISERS = ("text_recognition", "text_recognition_512")
# Pictures of words that did not train the recogniser, side by side in one picture, and the words in the same order.
PICTURES, WORDS = (Path(__file__).with_name(f"words.{ending}") for ending in ("png", "txt"))
ROWS = 64
# A proof of the batch axis needs two rows, and half of the rows are compared.
LEAST = 4


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
        return _words(graph_inputs(model)[0].name)
    rows, _ = choose_rows(session_of(model), model, ranges(model, chosen, {}), rows=2 * ROWS)
    return _split(rows, "random rows", drawn_at_random=True)


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


def word_pictures() -> tuple[NDArray[np.uint8], list[str]]:
    """Grey pictures (N, 32, 100) of drawn words, as the recogniser takes them, and the words."""
    sheet = np.asarray(Image.open(PICTURES))
    height, width = word_image.HEIGHT, word_image.WIDTH
    parts = sheet.reshape(sheet.shape[0] // height, height, sheet.shape[1] // width, width).swapaxes(1, 2)
    return parts.reshape(-1, height, width), WORDS.read_text().split()


def _words(name: str) -> TrialRows:
    """Rows of words, of which the last calibrate."""
    pictures, words = word_pictures()
    rows = word_image.scale(pictures[:, np.newaxis])
    return TrialRows(
        rows={name: rows[:-ROWS]},
        calibration={name: rows[-ROWS:]},
        origin=f"{len(rows) - ROWS} drawn words",
        words=words[:-ROWS],
    )
