"""How many words a text recogniser reads right on rendered pictures that it has not seen."""

from collections.abc import Container, Sequence

import numpy as np
import torch
from PIL import Image
from torch import nn

from export.models import alphabet, word_image
from export.words import pictures as words

WORDS = 1000
# Words on which training chooses the weights that it keeps, and words that only the final record is made from.
VALIDATION_SEED = 1_000_003
HELD_OUT_SEED = 2_000_003


def pictures(seed: int, count: int = WORDS, taken: Container[str] = ()) -> list[words.WordPicture]:
    """`count` pictures of one seed, without words of 3 or more characters of `taken` (shorter ones are too few)."""
    rng = np.random.default_rng(seed)
    return [words.draw_picture(rng, words.draw_word(rng, taken)) for _ in range(count)]


def measure(
    model: nn.Module, width: int | None, seed: int = VALIDATION_SEED, taken: Container[str] = ()
) -> tuple[float, float]:
    """Share of a seed's words read exactly, and share of their characters; `width` as in `read`, `taken` as above."""
    drawn = pictures(seed, taken=taken)
    return accuracy(read(model, [one.picture for one in drawn], width), [one.word for one in drawn])


def read(model: nn.Module, pictures: Sequence[Image.Image], width: int | None) -> list[str]:
    """What the model reads on each picture, prepared as a client prepares it; None is the natural width."""
    inputs = [word_image.prepare(picture, width) for picture in pictures]
    rows = 1 if width is None else 100
    answers = []
    with torch.inference_mode():
        for start in range(0, len(inputs), rows):
            batch = np.stack(inputs[start : start + rows])
            answers += alphabet.decode(model(torch.from_numpy(batch)).float().numpy())
    return answers


def accuracy(answers: Sequence[str], expected: Sequence[str]) -> tuple[float, float]:
    """Share of words read exactly, and share of characters: 1 - edit distance / characters."""
    exact = sum(a == e for a, e in zip(answers, expected, strict=True)) / len(expected)
    edits = sum(_edit_distance(a, e) for a, e in zip(answers, expected, strict=True))
    return exact, 1 - edits / sum(map(len, expected))


def _edit_distance(a: str, b: str) -> int:
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (x != y))
    return row[-1]
