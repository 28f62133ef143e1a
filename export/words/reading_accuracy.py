"""Measures how many words a text recogniser reads right on rendered pictures that it was not trained on."""

from collections.abc import Container, Sequence

import numpy as np
import torch
from PIL import Image
from torch import nn

from export.models import alphabet, word_image
from export.words import pictures as words

WORDS = 1000
# Seeds of the words on which training chooses its weights, and of those that only the final record uses.
VALIDATION_SEED = 1_000_003
HELD_OUT_SEED = 2_000_003


def pictures(seed: int, count: int = WORDS, taken: Container[str] = ()) -> list[words.WordPicture]:
    """`count` pictures of one seed; words of 3 or more characters are not in `taken`."""
    rng = np.random.default_rng(seed)
    return [words.draw_picture(rng, words.draw_word(rng, taken)) for _ in range(count)]


def measure(
    model: nn.Module, width: int | None, seed: int = VALIDATION_SEED, taken: Container[str] = ()
) -> tuple[float, float]:
    """The shares of a seed's words and of their characters that are read right; `width` as in `read`."""
    samples = pictures(seed, taken=taken)
    return accuracy(read(model, [sample.picture for sample in samples], width), [sample.word for sample in samples])


def read(model: nn.Module, pictures: Sequence[Image.Image], width: int | None) -> list[str]:
    """The model's answer for each picture, prepared as by a client; a `width` of None is the natural width."""
    inputs = [word_image.prepare(picture, width) for picture in pictures]
    rows = 1 if width is None else 100
    answers = []
    with torch.inference_mode():
        for start in range(0, len(inputs), rows):
            batch = np.stack(inputs[start : start + rows])
            answers += alphabet.decode(model(torch.from_numpy(batch)).float().numpy())
    return answers


def accuracy(answers: Sequence[str], expected: Sequence[str]) -> tuple[float, float]:
    """The share of words read exactly, and the share of characters: 1 - edit distance / characters."""
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
