"""Finds the words of a page: ink, its connected components, the components of a line, the components of a word.

Copied beside model.py (serve/policies/README.md), so it imports nothing of this project.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

# Multiples of the letters' height: the median of the page's components, or of the line's letters for gaps.
WORD_GAP = 0.45  # between the gap of two letters and that of two words; for lines that do not show it themselves
WORD_GAPS = (0.25, 0.9)  # the range of that threshold in all typefaces
CLEAR_STEP = 0.05
FAR = 1 << 20  # pixels, wider than any page
TALLEST = 5.0  # a larger component is not a letter, not even of a heading
SPECK = 0.15  # a smaller component is dirt, unless it is the dot of a letter
MARGIN = 0.15  # around a word's ink in its crop
# More than this is a photograph, noise or an attack, and would delay other requests. An A4 page full of 8 point text at
# 600 dpi has 425,000 runs, 13,000 components, 100 lines, and words that are together 4,000 times as wide as high.
MOST_RUNS = 1_000_000
MOST_SPOTS = 30_000
MOST_LINES = 1_000
MOST_TEXT = 8_000


class NoPageError(ValueError):
    """The picture has more ink than a page of words; the text says what to do."""


@dataclass(frozen=True, kw_only=True)
class Box:
    """A rectangle of pixels; `right` and `bottom` are one beyond the last."""

    left: int
    top: int
    right: int
    bottom: int

    @property
    def width(self) -> int:
        """In pixels."""
        return self.right - self.left

    @property
    def height(self) -> int:
        """In pixels."""
        return self.bottom - self.top

    def join(self, other: "Box") -> "Box":
        """The smallest box around both."""
        return Box(
            left=min(self.left, other.left),
            top=min(self.top, other.top),
            right=max(self.right, other.right),
            bottom=max(self.bottom, other.bottom),
        )

    def grown(self, margin: int, shape: tuple[int, ...]) -> "Box":
        """With `margin` pixels more on each side, within a page of `shape` (height, width)."""
        return Box(
            left=max(0, self.left - margin),
            top=max(0, self.top - margin),
            right=min(shape[1], self.right + margin),
            bottom=min(shape[0], self.bottom + margin),
        )


def lines(grey: Any) -> list[list[Box]]:
    """The words of a page, uint8 (height, width), in reading order: lines from the top, words from the left.

    For one column of horizontal text, dark on light or light on dark. An empty page has no lines. Raises `NoPageError`.
    """
    mask = ink(grey)
    letters = components(mask)
    if not letters:
        return []
    height = float(np.median([letter.height for letter in letters]))
    # A flat component is a ruled line, a very high one a frame or a picture.
    rows = _lines([letter for letter in letters if 0.5 * height <= letter.height <= TALLEST * height])
    dots = [letter for letter in letters if max(letter.width, letter.height) < 0.5 * height]
    _put_dots(rows, [dot for dot in dots if max(dot.width, dot.height) >= SPECK * height], height)
    margin = max(1, round(MARGIN * height))
    words = [[word.grown(margin, grey.shape) for word in _words(line, mask)] for line in rows]
    # The time to read a word grows with its width, scaled to the recogniser's height.
    text = sum(word.width / word.height for line in words for word in line)
    if text > MOST_TEXT:
        raise NoPageError(
            f"{sum(map(len, words))} words, together {text:.0f} times as wide as high; the limit is {MOST_TEXT} times. "
            "Send a page of text, or parts of this one."
        )
    return words


def ink(grey: Any) -> Any:
    """Which pixels are ink, boolean (height, width): the side of Otsu's threshold with fewer pixels.

    Otsu, "A Threshold Selection Method from Gray-Level Histograms", IEEE Trans. SMC 9(1), 1979. A page of one grey
    value has no ink.
    """
    counts = np.bincount(grey.ravel(), minlength=256).astype(np.float64)
    below = np.cumsum(counts)
    sums = np.cumsum(counts * np.arange(256))
    above = below[-1] - below
    between = np.zeros(256)
    split = (below > 0) & (above > 0)
    means = sums[split] / below[split] - (sums[-1] - sums[split]) / above[split]
    between[split] = below[split] * above[split] * means**2
    if not split.any():
        return np.zeros(grey.shape, dtype=bool)
    dark = grey <= int(between.argmax())
    return dark if dark.mean() <= 0.5 else ~dark


def components(mask: Any) -> list[Box]:
    """Boxes of the 8-connected components of a boolean mask (height, width), in the order of their first pixels.

    Raises `NoPageError`.
    """
    rows, starts, ends = _runs(mask)
    if not len(rows):
        return []
    if len(rows) > MOST_RUNS:
        raise NoPageError(f"{len(rows)} runs of ink; the limit is {MOST_RUNS}. Send a page of text, or a smaller one.")
    labels = _labels(len(rows), *_touching(rows, starts, ends, mask.shape[1]))
    order = np.argsort(labels, kind="stable")
    first = np.flatnonzero(np.diff(labels[order], prepend=-1))
    if len(first) > MOST_SPOTS:
        raise NoPageError(
            f"{len(first)} spots of ink; the limit is {MOST_SPOTS}. Send a page of text without noise, or parts of "
            "this one."
        )
    edges = (
        np.minimum.reduceat(starts[order], first),
        np.minimum.reduceat(rows[order], first),
        np.maximum.reduceat(ends[order], first),
        np.maximum.reduceat(rows[order], first) + 1,
    )
    return [
        Box(left=left, top=top, right=right, bottom=bottom)
        for left, top, right, bottom in zip(*(edge.tolist() for edge in edges), strict=True)
    ]


def _runs(mask: Any) -> tuple[Any, Any, Any]:
    """Row, first column and one beyond the last column of each run of ink, row by row."""
    edges = np.diff(np.pad(mask, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    rows, starts = np.nonzero(edges == 1)
    return rows, starts, np.nonzero(edges == -1)[1]


def _touching(rows: Any, starts: Any, ends: Any, width: int) -> tuple[Any, Any]:
    """Pairs of runs, as two arrays of indices: each run with every run in the row above that it touches."""
    # One number for a row and a column, so that all rows are searched at once.
    above = (rows - 1) * (width + 1)
    first = np.searchsorted(rows * (width + 1) + ends, above + starts)
    counts = np.searchsorted(rows * (width + 1) + starts, above + ends, side="right") - first
    here = np.repeat(np.arange(len(rows)), counts)
    return here, np.repeat(first - np.cumsum(counts) + counts, counts) + np.arange(len(here))


def _labels(count: int, here: Any, there: Any) -> Any:
    """For each of `count` runs the smallest index of the runs that the pairs connect it to."""
    labels = np.arange(count)
    while len(here):
        first, second = labels[here], labels[there]
        apart = first != second
        here, there, first, second = here[apart], there[apart], first[apart], second[apart]
        np.minimum.at(labels, np.maximum(first, second), np.minimum(first, second))
        while (labels[labels] != labels).any():
            labels = labels[labels]
    return labels


def _lines(letters: list[Box]) -> list[list[Box]]:
    """The letters of each line, from the top: letters that share most of their height; raises `NoPageError`."""
    rows: list[list[Box]] = []
    tops, bottoms = np.zeros((2, MOST_LINES))
    # Tall letters first, because their height covers that of the other letters of the line.
    for letter in sorted(letters, key=lambda letter: -letter.height):
        count = len(rows)
        shared = np.minimum(bottoms[:count], letter.bottom) - np.maximum(tops[:count], letter.top)
        best = int(shared.argmax()) if count else 0
        if count and shared[best] >= 0.5 * letter.height:
            rows[best].append(letter)
            continue
        if count == MOST_LINES:
            raise NoPageError(f"more than {MOST_LINES} lines. Send a page of text, or parts of this one.")
        tops[count], bottoms[count] = letter.top, letter.bottom
        rows.append([letter])
    return sorted(rows, key=lambda line: line[0].top)


def _put_dots(rows: list[list[Box]], dots: list[Box], height: float) -> None:
    """Join each dot with the letter below it; a dot without a near letter is dirt."""
    # Sorted by their tops, so that the letters near a dot are one slice.
    letters = sorted(
        (letter.top, letter.left, letter.right, row, at)
        for row, line in enumerate(rows)
        for at, letter in enumerate(line)
    )
    places = np.array(letters).reshape(-1, 5)
    for dot in dots:
        start, end = np.searchsorted(places[:, 0], (dot.bottom - 0.5 * height, dot.bottom + height))
        middle, near = (dot.left + dot.right) / 2, places[start:end]
        under = near[(near[:, 1] - 1 <= middle) & (middle <= near[:, 2] + 1)]
        for row in set(under[:, 3].tolist()):
            at = under[under[:, 3] == row, 4].min()
            rows[row][at] = rows[row][at].join(dot)


def _words(line: list[Box], mask: Any) -> list[Box]:
    letters = sorted(line, key=lambda letter: letter.left)
    height = float(np.median([letter.height for letter in letters]))
    gaps = _gaps(letters, mask) / height
    end = _word_gap(np.sort(gaps))
    words = letters[:1]
    for letter, gap in zip(letters[1:], gaps, strict=True):
        if gap < end:
            words[-1] = words[-1].join(letter)
        else:
            words.append(letter)
    return words


def _gaps(letters: list[Box], mask: Any) -> Any:
    """The distance of each letter's ink from the letter before, in the pixel rows of both: a j may reach under an a."""
    gaps = []
    edges = [_edges(letter, mask) for letter in letters]
    for index, (left, right) in enumerate(pairwise(letters)):
        top, bottom = max(left.top, right.top), min(left.bottom, right.bottom)
        ends = edges[index][1][max(0, top - left.top) : max(0, bottom - left.top)]
        starts = edges[index + 1][0][max(0, top - right.top) : max(0, bottom - right.top)]
        nearest = int((starts - ends).min(initial=FAR))
        gaps.append(nearest if nearest < FAR else right.left - left.right)
    return np.array(gaps, dtype=np.float64)


def _edges(letter: Box, mask: Any) -> tuple[Any, Any]:
    """The first column of ink, and one beyond the last, of each pixel row of a letter; far outside for an empty row."""
    inside = mask[letter.top : letter.bottom, letter.left : letter.right]
    inked = inside.any(axis=1)
    first = np.where(inked, letter.left + inside.argmax(axis=1), FAR)
    return first, np.where(inked, letter.right - inside[:, ::-1].argmax(axis=1), -FAR)


def _word_gap(gaps: Any) -> float:
    """The smallest gap between two words among a line's sorted gaps: Otsu's threshold of small and wide gaps."""
    if len(gaps) < 2:
        return WORD_GAP
    small = np.arange(1, len(gaps))
    sums = np.cumsum(gaps)
    means = sums[:-1] / small - (sums[-1] - sums[:-1]) / (len(gaps) - small)
    between = (gaps[:-1] + gaps[1:]) / 2
    clear = (np.diff(gaps) >= CLEAR_STEP) & (between >= WORD_GAPS[0]) & (between <= WORD_GAPS[1])
    apart = np.where(clear, small * (len(gaps) - small) * means**2, 0)
    return float(between[apart.argmax()]) if apart.any() else WORD_GAP
