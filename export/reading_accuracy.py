"""How many words a text recogniser reads right on rendered pictures that it has not seen."""

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image
from torch import nn

from export import alphabet, word_image, words

HELD_OUT = 1000
HELD_OUT_SEED = 1_000_003


def held_out(count: int = HELD_OUT, seed: int = HELD_OUT_SEED) -> list[words.WordPicture]:
    """The pictures that measure a model.

    No word of 3 or more characters among the first 1,000 is in the training pool; shorter ones are too few
    to leave out.
    """
    rng = np.random.default_rng(seed)
    return [words.draw_picture(rng, words.draw_word(rng)) for _ in range(count)]


def measure(model: nn.Module, width: int | None) -> tuple[float, float]:
    """Share of the held-out words read exactly, and share of their characters; `width` as in `read`."""
    drawn = held_out()
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
