"""Words on a page: components against a flood fill, and pages drawn with known words."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from export.models.page_words import NoPageError, components, lines

PAGES = Path(__file__).parents[2] / "clients" / "pages"


def flooded(mask: list[list[bool]]) -> set[tuple[int, int, int, int]]:
    """Boxes of 8-connected components, one pixel at a time."""
    left = {(y, x) for y, row in enumerate(mask) for x, on in enumerate(row) if on}
    boxes = set()
    while left:
        seen, waiting = set(), [left.pop()]
        while waiting:
            y, x = waiting.pop()
            seen.add((y, x))
            near = {(y + dy, x + dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1)} & left
            left -= near
            waiting += near
        ys, xs = [y for y, _ in seen], [x for _, x in seen]
        boxes.add((min(xs), min(ys), max(xs) + 1, max(ys) + 1))
    return boxes


MASKS = st.integers(1, 12).flatmap(
    lambda width: st.lists(st.lists(st.booleans(), min_size=width, max_size=width), min_size=1, max_size=12)
)


@given(MASKS)
def test_components_are_those_of_a_flood_fill(mask: list[list[bool]]) -> None:
    boxes = components(np.array(mask))
    assert {(box.left, box.top, box.right, box.bottom) for box in boxes} == flooded(mask)


def page(size: int, text: list[str], *, ink_: int = 20, paper: int = 240) -> Image.Image:
    font = ImageFont.load_default(size)
    made = Image.new("L", (900, round(len(text) * size * 1.6) + 60), paper)
    for number, line in enumerate(text):
        ImageDraw.Draw(made).text((30, 30 + number * size * 1.6), line, fill=ink_, font=font)
    return made


TEXT = ["which of these 27 words", "lies beside a joint jig", "i am at 42 in bliss"]


@pytest.mark.parametrize(("pen", "paper"), [(20, 240), (230, 30)])
def test_lines_and_words_are_counted_right(pen: int, paper: int) -> None:
    drawn = page(28, TEXT, ink_=pen, paper=paper)
    assert [len(line) for line in lines(np.asarray(drawn))] == [5, 5, 6]


def test_rules_frames_and_dirt_are_no_words() -> None:
    drawn = page(28, TEXT)
    pen = ImageDraw.Draw(drawn)
    pen.line((30, 66, 860, 66), fill=20, width=2)
    pen.rectangle((5, 5, 894, drawn.height - 6), outline=20, width=2)
    for x in range(650, 800, 40):
        pen.point((x, 100), fill=20)
    assert [len(line) for line in lines(np.asarray(drawn))] == [5, 5, 6]


def spots(size: int, step: int, side: int) -> NDArray[np.uint8]:
    """A page full of squares."""
    page = np.full((size, size), 255, dtype=np.uint8)
    for row, column in itertools.product(range(side), range(side)):
        page[row::step, column::step] = 0
    return page


def stairs() -> NDArray[np.uint8]:
    """1,100 letters, each on a line of its own."""
    page = np.full((3300, 3300), 255, dtype=np.uint8)
    for number in range(1100):
        page[number * 3 : number * 3 + 2, number * 3 : number * 3 + 2] = 0
    return page


@pytest.mark.parametrize(
    ("page", "message"),
    [
        (
            np.random.default_rng(0).integers(0, 2, (2100, 2100), dtype=np.uint8) * 255,
            "[0-9]+ runs of ink; the limit is 10",
        ),
        (spots(2000, 5, 3), "160000 spots of ink; the limit is 30000"),
        (stairs(), "more than 1000 lines"),
        (spots(520, 5, 3), "10816 words, together 10821 times as wide as high; the limit is 8000 times"),
    ],
    ids=["runs", "spots", "lines", "words"],
)
def test_a_picture_that_is_not_a_page_of_words_is_refused(page: NDArray[np.uint8], message: str) -> None:
    with pytest.raises(NoPageError, match=rf"{message}.*\. Send"):
        lines(page)


def test_the_sample_page_is_cut_into_its_words_but_for_a_spaced_1() -> None:
    counts = [len(line) for line in lines(np.asarray(Image.open(PAGES / "page.png").convert("L")))]
    words = [len(line.split()) for line in (PAGES / "page.txt").read_text().splitlines()]
    assert len(counts) == len(words)
    assert sum(abs(count - drawn) for count, drawn in zip(counts, words, strict=True)) <= 2
