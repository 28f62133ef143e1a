"""Draws the sample page: lower-case words and digits in four typefaces (`python -m export.words.sample_page`)."""

import sys
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from export.models.alphabet import encode
from export.words.pictures import font_files
from triton_batching.terminal import guarded, program_parser, terminal

WIDTH, MARGIN, SPACING = 900, 60, 1.55
# Font size in pixels and face of each part.
PARTS = (
    (44, "Roboto-Regular", "reading a page in one batch"),
    (
        26,
        "SourceSerifPro-Regular",
        """
        a page holds many words and each of them is as wide as it happens to be so the crops differ in width
        and a plain batcher would run them one by one the server here takes them as a ragged batch and runs 8
        crops of any width together without padding in the client in 2026 a reader of pages sends all words
        at once and gets all lines back in order
        """,
    ),
    (
        22,
        "HankenGrotesk-Regular",
        """
        the first model finds where ink is and which parts touch the second reads 37 classes for every 4
        columns of pixels and drops what repeats neither knows a language so k8s h200 and 1x1 are words like
        any other when a page cannot be read only its own sender hears of it
        """,
    ),
    (30, "Caladea-Regular", "batch 32 queue 42 layer 7 port 8001 gate 365"),
)


def text() -> list[tuple[int, str, str]]:
    """Every line of the page: font size, face, words."""
    lines = []
    for size, face, words in PARTS:
        font = _font(face, size)
        line = ""
        for word in words.split():
            encode(word)  # raises ValueError for characters that the recogniser cannot read
            longer = f"{line} {word}".strip()
            if font.getlength(longer) > WIDTH - 2 * MARGIN:
                lines.append((size, face, line))
                longer = word
            line = longer
        lines.append((size, face, line))
    return lines


def draw() -> Image.Image:
    """The page: dark grey on warm white."""
    lines = text()
    height = 2 * MARGIN + round(sum(size * SPACING for size, _, _ in lines))
    page = Image.new("RGB", (WIDTH, height), (250, 247, 240))
    pen, y = ImageDraw.Draw(page), float(MARGIN)
    for size, face, line in lines:
        pen.text((MARGIN, y), line, fill=(40, 40, 48), font=_font(face, size))
        y += size * SPACING
    return page


def _font(face: str, size: int) -> ImageFont.FreeTypeFont:
    (path,) = [path for path in font_files() if path.stem == face]
    return ImageFont.truetype(path, size, layout_engine=ImageFont.Layout.BASIC)


def write(folder: Path) -> None:
    """Save page.png and its words, page.txt."""
    folder.mkdir(parents=True, exist_ok=True)
    draw().convert("P", palette=Image.Palette.ADAPTIVE, colors=32).save(folder / "page.png", optimize=True)
    (folder / "page.txt").write_text("".join(f"{line}\n" for _, _, line in text()))
    terminal().print(f"{folder / 'page.png'} and page.txt written", markup=False)


def main(argv: list[str] | None = None) -> int:
    """Draw the page."""
    parser = program_parser("python -m export.words.sample_page", __doc__, example="--out clients/pages")
    parser.add_argument("--out", type=Path, default=Path("clients/pages"), help="folder (default clients/pages)")
    folder = parser.parse_args(argv).out
    return guarded(lambda: write(folder))


if __name__ == "__main__":
    sys.exit(main())
