"""Draws seeded pictures of words; `python -m export.words.pictures --out FOLDER` draws the sample pictures."""

import functools
import importlib.metadata
import importlib.util
import io
import math
import sys
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from export.models.alphabet import ALPHABET
from triton_batching.terminal import guarded, program_parser

PACKAGES = {
    "font-roboto": "font_roboto/files",
    "font-source-sans-pro": "font_source_sans_pro/files",
    "font-source-serif-pro": "font_source_serif_pro/files",
    "font-caladea": "font_caladea/files",
    "font-manrope": "font_manrope/files",
    "font-hanken-grotesk": "font_hanken_grotesk/files",
    "matplotlib": "matplotlib/mpl-data/fonts/ttf",
}
# Faces that are too thin or too heavy for a blurred picture 32 pixels high, and DejaVu files without most letters.
SKIPPED_FACES = ("Thin", "ExtraLight", "Black", "Variable", "DejaVuSansDisplay", "DejaVuSerifDisplay")
# The shares of words with 1, 2, ... 10 characters.
LENGTH_WEIGHTS = np.array([3, 5, 10, 14, 15, 15, 13, 11, 8, 6]) / 100
# Beginnings, middles and ends of syllables; the leading blanks of the last line are empty ends.
SYLLABLE = (
    "b c d f g h j k l m n p qu r s t v w x y z ch sh th st tr br cr gr pl cl str sp wh ph",
    "a e i o u a e i o u y ai ea ee ie oo ou",
    "   b d g k l m n p r s t x z ck ng nd nt st rt ss ll sh th tch",
)
SAMPLES = ("batch", "triton", "queue42", "ragged", "server", "latency", "tensor7", "k8s")
# Gives eight pictures of seven type families that differ visibly in colour, size, blur and noise.
SAMPLE_SEED = 139


@dataclass(frozen=True, kw_only=True)
class WordPicture:
    """A grey picture, its word and its typeface (a file name without its ending)."""

    word: str
    face: str
    picture: Image.Image


@functools.cache
def font_files() -> tuple[Path, ...]:
    """The usable font files of the installed packages, sorted by name.

    Raises ModuleNotFoundError with the packages to install if one is missing.
    """
    missing = [name for name in PACKAGES if importlib.util.find_spec(name.replace("-", "_")) is None]
    if missing:
        raise ModuleNotFoundError(
            f"the fonts to draw words with are not installed: {', '.join(missing)}. "
            f"Install them with: pip install {' '.join(missing)}"
        )
    files = [path for name, folder in PACKAGES.items() for path in _faces(name, folder)]
    return tuple(sorted(files, key=lambda path: path.name))


def _faces(package: str, folder: str) -> list[Path]:
    root = Path(str(importlib.metadata.distribution(package).locate_file(folder)))
    pattern = "DejaVu*.ttf" if package == "matplotlib" else "*.ttf"
    files = list(root.glob(pattern)) or list(root.glob("*.otf"))
    return [path for path in files if not any(part in path.stem for part in SKIPPED_FACES)]


@functools.lru_cache(maxsize=4096)
def _font(path: Path, size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(path, size, layout_engine=ImageFont.Layout.BASIC)


def draw_word(rng: np.random.Generator, taken: Container[str] = ()) -> str:
    """A word of 1 to 10 characters that is not in `taken`, or of 1 or 2, because there are few of those."""
    while True:
        length = int(rng.choice(len(LENGTH_WEIGHTS), p=LENGTH_WEIGHTS)) + 1
        kind = rng.random()
        if kind < 0.4:
            word = "".join(ALPHABET[i] for i in rng.integers(0, len(ALPHABET), length))
        elif kind < 0.5:
            word = "".join(ALPHABET[i] for i in rng.integers(0, 10, length))
        else:
            digits = int(rng.integers(1, 4)) if kind > 0.85 and length > 3 else 0
            word = _pronounceable(rng, length - digits) + "".join(str(i) for i in rng.integers(0, 10, digits))
        if length < 3 or word not in taken:
            return word


def _pronounceable(rng: np.random.Generator, length: int) -> str:
    parts = [part.split(" ") for part in SYLLABLE]
    word = ""
    while len(word) < length:
        word += "".join(part[rng.integers(len(part))] for part in parts)
    return word[:length]


def draw_picture(rng: np.random.Generator, word: str) -> WordPicture:
    """The word in a random typeface, size, shape, colour and quality; equal generators give equal pixels."""
    path = font_files()[rng.integers(len(font_files()))]
    size = int(rng.integers(8, 25)) * 2
    ink = _bend(rng, _ink(_font(path, size), word), size)
    if rng.random() < 0.5:
        ink = ink.filter(ImageFilter.GaussianBlur(float(rng.uniform(0, 0.035)) * size))
    picture = Image.fromarray(_colour(rng, np.asarray(ink, dtype=np.float32) / 255))
    return WordPicture(word=word, face=path.stem, picture=_compress(rng, picture))


def _ink(font: ImageFont.FreeTypeFont, word: str) -> Image.Image:
    left, top, right, bottom = font.getbbox(word)
    canvas = Image.new("L", (math.ceil(right - left) + 2, math.ceil(bottom - top) + 2))
    ImageDraw.Draw(canvas).text((1 - left, 1 - top), word, fill=255, font=font)
    return canvas


def _bend(rng: np.random.Generator, ink: Image.Image, size: int) -> Image.Image:
    """Stretch, shear and rotate the ink and add margins, with one resampling."""
    stretch, shear = rng.uniform(0.7, 1.4), rng.uniform(-0.2, 0.2) * (rng.random() < 0.5)
    # A long word is rotated less, because its picture would be mostly background.
    steepest = min(math.radians(5), 0.3 * ink.height / (ink.width * stretch))
    angle = rng.uniform(-steepest, steepest) * (rng.random() < 0.5)
    turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    forward = turn @ np.array([[stretch, shear], [0.0, 1.0]])
    corners = forward @ np.array([[0, ink.width, 0, ink.width], [0, 0, ink.height, ink.height]], dtype=np.float64)
    loose = rng.random() < 0.5
    # Left, right, top and bottom, as multiples of the font size.
    margins = rng.uniform(0, np.array([0.5, 0.5, 0.3, 0.3]) if loose else 0.06, 4) * size
    low = corners.min(axis=1) - margins[[0, 2]]
    width, height = np.ceil(corners.max(axis=1) + margins[[1, 3]] - low).astype(int)
    back = np.linalg.inv(forward)
    offset = back @ low
    numbers = (*back[0], offset[0], *back[1], offset[1])
    return ink.transform(
        (int(width), int(height)),
        Image.Transform.AFFINE,
        [float(n) for n in numbers],
        Image.Resampling.BILINEAR,
    )


def _colour(rng: np.random.Generator, ink: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.uint8]:
    """Ink coverage (H, W) from 0 to 1 to grey values: dark on light or light on dark, with shade and noise."""
    contrast = rng.uniform(70, 255)
    dark = rng.uniform(0, 255 - contrast)
    paper, pen = (dark, dark + contrast) if rng.random() < 0.5 else (dark + contrast, dark)
    shade = rng.uniform(-0.15, 0.15) * contrast * np.linspace(-1, 1, ink.shape[1], dtype=np.float32)
    values = paper + shade + (pen - paper) * ink
    if rng.random() < 0.5:
        noise = rng.standard_normal(ink.shape, dtype=np.float32)
        values = values + noise * rng.uniform(0, 0.12) * contrast
    return values.clip(0, 255).astype(np.uint8)


def _compress(rng: np.random.Generator, picture: Image.Image) -> Image.Image:
    if rng.random() < 0.7:
        return picture
    stored = io.BytesIO()
    picture.save(stored, "JPEG", quality=int(rng.integers(40, 90)))
    return Image.open(stored).convert("L")


def main(argv: list[str] | None = None) -> int:
    """Draw the sample pictures."""
    parser = program_parser("python -m export.words.pictures", __doc__, example="--out clients/pictures")
    parser.add_argument("--out", type=Path, required=True, help="folder for <word>.png")
    parser.add_argument("--seed", type=int, default=SAMPLE_SEED, help=f"seed of the pictures (default {SAMPLE_SEED})")
    arguments = parser.parse_args(argv)
    return guarded(lambda: _draw_samples(arguments.out, arguments.seed))


def _draw_samples(folder: Path, seed: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    for word in SAMPLES:
        sample = draw_picture(rng, word)
        sample.picture.save(folder / f"{word}.png", optimize=True)
        print(f"{folder / word}.png  {sample.face}  {sample.picture.width}x{sample.picture.height}")


if __name__ == "__main__":
    sys.exit(main())
