"""Renders the pool of word pictures that training draws its batches from, and keeps it in an .npz file."""

from collections.abc import Callable, Collection
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from export.models import word_image
from export.models.alphabet import ALPHABET, encode
from export.words.pictures import draw_picture, draw_word

CHUNK = 2000
LONGEST = 10
# Natural widths are rounded to one of these, so that a batch has one width; wider words are squeezed.
WIDTHS = range(32, 201, 8)

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class Shelf:
    """Pictures of one width, sorted by word length: pixels (N, 32, W) and class numbers (N, 10), 0 after the end."""

    pixels: Bytes
    labels: Bytes

    def count(self, longest: int) -> int:
        """The number of pictures with words of at most `longest` characters, which come first."""
        return int(np.searchsorted((self.labels > 0).sum(axis=1), longest, side="right"))

    def words(self) -> frozenset[str]:
        """Every word on the pictures."""
        return frozenset("".join(ALPHABET[number - 1] for number in row if number) for row in self.labels)


@dataclass(frozen=True, kw_only=True)
class Pool:
    """The same pictures twice: at 100 pixels, padded or squeezed, and by natural width."""

    padded: Shelf
    natural: dict[int, Shelf]


def draw_batch(
    rng: np.random.Generator, pool: Pool, rows: int, longest: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Varied pictures (rows, 1, 32, W) and class numbers (rows, 10) of words of at most `longest` characters.

    Half of the batches are 100 pixels wide, the others have a natural width.
    """
    shelf = pool.padded
    if rng.random() < 0.5:
        shelves = list(pool.natural.values())
        counts = np.array([shelf.count(longest) for shelf in shelves], dtype=np.float64)
        shelf = shelves[rng.choice(len(shelves), p=counts / counts.sum())]
    chosen = rng.integers(0, shelf.count(longest), rows)
    pictures = word_image.scale(shelf.pixels[chosen])[:, np.newaxis]
    return _vary(rng, pictures), shelf.labels[chosen].astype(np.int64)


def _vary(rng: np.random.Generator, pictures: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Pictures (B, 1, 32, W) moved by up to 2 pixels, with other contrast, brightness, sign and noise."""
    down, right = rng.integers(-2, 3, 2)
    padded = np.pad(pictures, ((0, 0), (0, 0), (2, 2), (2, 2)), mode="edge")
    moved = padded[:, :, 2 + down : 34 + down, 2 + right : 2 + right + pictures.shape[3]]
    shape = (len(pictures), 1, 1, 1)
    gain = rng.uniform(0.5, 1.1, shape) * rng.choice([-1, 1], shape)
    noise = rng.standard_normal(moved.shape, dtype=np.float32) * rng.uniform(0, 0.06, shape)
    varied = moved * gain + rng.uniform(-0.2, 0.2, shape) + noise
    return np.asarray(varied.clip(-1, 1), dtype=np.float32)


def load(file: Path, *, pictures: int, seed: int, taken: Collection[str], progress: Callable[[int], None]) -> Pool:
    """Read the pool from `file`; if it does not exist, render it with 2 processes (about 40 s per 100,000 pictures).

    `taken` are words to leave out. `progress` is called after every chunk with the number of pictures done.
    """
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        chunks = _render(pictures, seed, frozenset(taken), progress)
        unfinished = file.with_suffix(".part.npz")
        arrays: dict[str, Any] = _sorted(chunks)  # Any: numpy releases differ in savez's annotation
        np.savez(unfinished, **arrays)
        unfinished.rename(file)
    with np.load(file) as stored:
        shelves = {
            name.removeprefix("pixels"): Shelf(pixels=stored[name], labels=stored[name.replace("pixels", "labels")])
            for name in stored.files
            if name.startswith("pixels")
        }
    padded = shelves.pop("")
    return Pool(padded=padded, natural={int(width): shelf for width, shelf in shelves.items()})


def _render(pictures: int, seed: int, taken: frozenset[str], progress: Callable[[int], None]) -> list[dict[str, Bytes]]:
    chunks = []
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as workers:
        count = pictures // CHUNK
        for chunk in workers.map(_render_chunk, [seed] * count, range(count), [taken] * count):
            chunks.append(chunk)
            progress(len(chunks) * CHUNK)
    return chunks


def _render_chunk(seed: int, chunk: int, taken: frozenset[str]) -> dict[str, Bytes]:
    """Arrays by name: pixels and labels at 100 pixels, pixels<W> and labels<W> for each natural width W."""
    rng = np.random.default_rng([seed, chunk])
    pixels: dict[str, list[Bytes]] = {}
    labels: dict[str, list[Bytes]] = {}
    for _ in range(CHUNK):
        sample = draw_picture(rng, draw_word(rng, taken))
        label = np.zeros(LONGEST, dtype=np.uint8)
        label[: len(sample.word)] = encode(sample.word)
        natural = word_image.natural_width(sample.picture)
        width = WIDTHS[int(np.abs(np.array(WIDTHS) - natural).argmin())]
        for name, picture in (
            ("", word_image.fit(sample.picture, word_image.WIDTH)),
            (str(width), word_image.stretch(sample.picture, width)),
        ):
            pixels.setdefault(name, []).append(picture)
            labels.setdefault(name, []).append(label)
    arrays = {f"pixels{name}": np.stack(pictures) for name, pictures in pixels.items()}
    return arrays | {f"labels{name}": np.stack(rows) for name, rows in labels.items()}


def _sorted(chunks: list[dict[str, Bytes]]) -> dict[str, Bytes]:
    """The chunks joined, each width sorted by word length, because training starts with short words."""
    joined: dict[str, Bytes] = {}
    for name in sorted({name for chunk in chunks for name in chunk if name.startswith("labels")}):
        labels = np.concatenate([chunk[name] for chunk in chunks if name in chunk])
        picture_name = name.replace("labels", "pixels")
        pixels = np.concatenate([chunk[picture_name] for chunk in chunks if name in chunk])
        order = np.argsort((labels > 0).sum(axis=1), kind="stable")
        joined[name], joined[picture_name] = labels[order], pixels[order]
    return joined
