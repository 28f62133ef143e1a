"""Where the words of a page are: ink, its connected components, and what belongs together in a line and a word.

Carried by model folders beside model.py (export/HOOKS.md), so it imports nothing of this project.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

# In parts of the letters' height: the median of the page's components, for gaps of the line's letters.
WORD_GAP = 0.45  # wider than between two letters, narrower than a blank; where a line itself does not show it
WORD_GAPS = (0.25, 0.9)  # where the step from one to the other lies in any face
CLEAR_STEP = 0.05
FAR = 1 << 20  # pixels; no page is as wide
TALLEST = 5.0  # a larger component is no letter, not even of a heading
SPECK = 0.15  # a smaller component is dirt, unless it is the dot of a letter
MARGIN = 0.15  # around a word's ink when it is cropped
# Beyond these it is a photograph, noise or an attack, which would keep others waiting. A4 full of 8 point at 600 dpi
# has 425,000 runs, 13,000 spots, 100 lines, and words that are together 4,000 times as wide as high.
MOST_RUNS = 1_000_000
MOST_SPOTS = 30_000
MOST_LINES = 1_000
MOST_TEXT = 8_000


class NoPageError(ValueError):
    """More ink than a page of words has; the text says what to do."""


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

    For one column of level text in one direction; light text on dark is found as well. An empty page has no lines.
    Raises `NoPageError`.
    """
    mask = ink(grey)
    letters = components(mask)
    if not letters:
        return []
    height = float(np.median([letter.height for letter in letters]))
    # What is flat is a ruled line, what is very high a frame or a picture; neither is a letter.
    found = _lines([letter for letter in letters if 0.5 * height <= letter.height <= TALLEST * height])
    dots = [letter for letter in letters if max(letter.width, letter.height) < 0.5 * height]
    _put_dots(found, [dot for dot in dots if max(dot.width, dot.height) >= SPECK * height], height)
    margin = max(1, round(MARGIN * height))
    words = [[word.grown(margin, grey.shape) for word in _words(line, mask)] for line in found]
    # Reading takes time by the width of the words, once they are scaled to one height.
    text = sum(word.width / word.height for line in words for word in line)
    if text > MOST_TEXT:
        raise NoPageError(
            f"{sum(map(len, words))} words, together {text:.0f} times as wide as high; at most {MOST_TEXT} times are "
            "read. Send a page of text, or parts of this one."
        )
    return words


def ink(grey: Any) -> Any:
    """Which pixels are ink: those on the far side of Otsu's threshold from the paper, which has most pixels.

    Otsu, "A Threshold Selection Method from Gray-Level Histograms", IEEE Trans. SMC 9(1), 1979. A page of one grey has
    none.
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
    """Boxes of the 8-connected components of a boolean (height, width), in the order of their first pixels.

    Raises `NoPageError`.
    """
    rows, starts, ends = _runs(mask)
    if not len(rows):
        return []
    if len(rows) > MOST_RUNS:
        raise NoPageError(
            f"{len(rows)} runs of ink, at most {MOST_RUNS} are followed. Send a page of text, or a smaller one."
        )
    labels = _labels(len(rows), *_touching(rows, starts, ends, mask.shape[1]))
    order = np.argsort(labels, kind="stable")
    first = np.flatnonzero(np.diff(labels[order], prepend=-1))
    if len(first) > MOST_SPOTS:
        raise NoPageError(
            f"{len(first)} spots of ink, at most {MOST_SPOTS} are followed. Send a page of text without noise, or "
            "parts of this one."
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
    """For each of `count` runs the smallest index of a run that it is connected to by the pairs."""
    labels = np.arange(count)
    while len(here):
        one, other = labels[here], labels[there]
        apart = one != other
        here, there, one, other = here[apart], there[apart], one[apart], other[apart]
        np.minimum.at(labels, np.maximum(one, other), np.minimum(one, other))
        while (labels[labels] != labels).any():
            labels = labels[labels]
    return labels


def _lines(letters: list[Box]) -> list[list[Box]]:
    """Letters that share most of their height are on one line; raises `NoPageError`."""
    found: list[list[Box]] = []
    tops, bottoms = np.zeros((2, MOST_LINES))
    # Tall letters first: they span the line that the others then fall into.
    for letter in sorted(letters, key=lambda letter: -letter.height):
        count = len(found)
        shared = np.minimum(bottoms[:count], letter.bottom) - np.maximum(tops[:count], letter.top)
        best = int(shared.argmax()) if count else 0
        if count and shared[best] >= 0.5 * letter.height:
            found[best].append(letter)
            continue
        if count == MOST_LINES:
            raise NoPageError(f"more than {MOST_LINES} lines. Send a page of text, or parts of this one.")
        tops[count], bottoms[count] = letter.top, letter.bottom
        found.append([letter])
    return sorted(found, key=lambda line: line[0].top)


def _put_dots(found: list[list[Box]], dots: list[Box], height: float) -> None:
    """Give each dot to the letter under it, which must be near; others are dirt."""
    # By their tops, so that those near a dot are one slice.
    known = sorted(
        (letter.top, letter.left, letter.right, row, at)
        for row, line in enumerate(found)
        for at, letter in enumerate(line)
    )
    places = np.array(known).reshape(-1, 5)
    for dot in dots:
        start, end = np.searchsorted(places[:, 0], (dot.bottom - 0.5 * height, dot.bottom + height))
        middle, near = (dot.left + dot.right) / 2, places[start:end]
        under = near[(near[:, 1] - 1 <= middle) & (middle <= near[:, 2] + 1)]
        for row in set(under[:, 3].tolist()):
            at = under[under[:, 3] == row, 4].min()
            found[row][at] = found[row][at].join(dot)


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
    """How far each letter's ink is from the one before, in the rows that both have: a j does not reach under an a."""
    found = []
    edges = [_edges(letter, mask) for letter in letters]
    for index, (one, other) in enumerate(pairwise(letters)):
        top, bottom = max(one.top, other.top), min(one.bottom, other.bottom)
        rights = edges[index][1][max(0, top - one.top) : max(0, bottom - one.top)]
        lefts = edges[index + 1][0][max(0, top - other.top) : max(0, bottom - other.top)]
        nearest = int((lefts - rights).min(initial=FAR))
        found.append(nearest if nearest < FAR else other.left - one.right)
    return np.array(found, dtype=np.float64)


def _edges(letter: Box, mask: Any) -> tuple[Any, Any]:
    """First column of ink, and one beyond the last, of each row of a letter; far outside where a row has none."""
    inside = mask[letter.top : letter.bottom, letter.left : letter.right]
    inked = inside.any(axis=1)
    first = np.where(inked, letter.left + inside.argmax(axis=1), FAR)
    return first, np.where(inked, letter.right - inside[:, ::-1].argmax(axis=1), -FAR)


def _word_gap(gaps: Any) -> float:
    """From which of the sorted gaps on a line a word ends: small and wide ones as far apart as Otsu's method gets."""
    if len(gaps) < 2:
        return WORD_GAP
    small = np.arange(1, len(gaps))
    sums = np.cumsum(gaps)
    means = sums[:-1] / small - (sums[-1] - sums[:-1]) / (len(gaps) - small)
    between = (gaps[:-1] + gaps[1:]) / 2
    clear = (np.diff(gaps) >= CLEAR_STEP) & (between >= WORD_GAPS[0]) & (between <= WORD_GAPS[1])
    apart = np.where(clear, small * (len(gaps) - small) * means**2, 0)
    return float(between[apart.argmax()]) if apart.any() else WORD_GAP
