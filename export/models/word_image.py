"""Turns a picture of a word into the recogniser's input: grey, 32 pixels high, values from -1 to 1.

Copied beside model.py (serve/policies/README.md), so it imports nothing of this project.
"""

import io
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

HEIGHT = 32
WIDTH = 100
MIN_WIDTH = 8


def prepare(picture: str | Path | bytes | Image.Image, width: int | None = WIDTH) -> npt.NDArray[np.float32]:
    """One picture as float32 (1, 32, width); `width=None` gives its natural width (1, 32, 8 or more).

    The height becomes 32 and the aspect ratio stays. A wider result is squeezed to `width`; a narrower one is padded on
    the right with the colour of the picture's border. Raises ValueError for a picture that cannot be read.
    """
    return scale(fit(_grey(_open(picture)), width))


def scale(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Grey values (..., 32, W) from 0..255 to -1..1, as (1, 32, W) for one picture."""
    values = (pixels.astype(np.float32) / np.float32(255) - np.float32(0.5)) * np.float32(2)
    return values[np.newaxis] if values.ndim == 2 else values


def fit(grey: Image.Image, width: int | None) -> npt.NDArray[np.uint8]:
    """A grey picture as uint8 (32, width), or (32, natural width) for None."""
    natural = natural_width(grey)
    # One resampling to the final size keeps more detail than scaling first and squeezing afterwards.
    pixels = stretch(grey, natural if width is None else min(natural, width))
    if width is None or natural >= width:
        return pixels
    return np.pad(pixels, ((0, 0), (0, width - natural)), constant_values=_border(pixels))


def natural_width(picture: Image.Image) -> int:
    """The width in pixels of the picture scaled to height 32, at least 8."""
    return max(MIN_WIDTH, round(picture.width * HEIGHT / picture.height))


def stretch(grey: Image.Image, width: int) -> npt.NDArray[np.uint8]:
    """A grey picture as uint8 (32, width), without keeping its aspect ratio."""
    return np.asarray(grey.resize((width, HEIGHT), Image.Resampling.BILINEAR), dtype=np.uint8)


def _border(pixels: npt.NDArray[np.uint8]) -> int:
    """The median of the outermost pixels: letters that touch an edge do not move it."""
    edges = (pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1])
    return int(np.median(np.concatenate(edges)))


def _open(picture: str | Path | bytes | Image.Image) -> Image.Image:
    if isinstance(picture, Image.Image):
        return picture
    name = f"{len(picture)} bytes" if isinstance(picture, bytes) else str(picture)
    try:
        opened = Image.open(io.BytesIO(picture) if isinstance(picture, bytes) else picture)
        opened.load()
    except FileNotFoundError:
        raise ValueError(f"{name}: no such file. Give the path of a picture, for example a PNG.") from None
    except UnidentifiedImageError:
        start = picture[:8] if isinstance(picture, bytes) else Path(picture).read_bytes()[:8]
        raise ValueError(f"{name}: not a picture (it starts with {start!r}). Give a PNG or JPEG.") from None
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"{name}: a picture that cannot be read ({error}). Save it again as PNG or JPEG.") from error
    return opened


def _grey(picture: Image.Image) -> Image.Image:
    """Grey, upright (EXIF orientation applied) and opaque."""
    upright = ImageOps.exif_transpose(picture)
    if upright.mode.startswith("I"):  # 16-bit grey, which convert("L") would clip at 255
        return Image.fromarray((np.asarray(upright).clip(0, 65535) // 257).astype(np.uint8))
    if not upright.has_transparency_data:
        return upright.convert("L")
    ink = upright.convert("LA")
    values, alpha = (np.asarray(band, dtype=np.float32) for band in ink.split())
    # The background is white under dark ink and black under light ink, so that the word stays visible.
    light_ink = alpha.any() and np.average(values, weights=alpha) > 127
    behind = 0.0 if light_ink else 255.0
    mixed = values * alpha / 255 + behind * (1 - alpha / 255)
    return Image.fromarray(mixed.round().astype(np.uint8))
