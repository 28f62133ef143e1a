"""Bytes that somebody says are a picture: decoded within limits, or refused with the reason.

Carried by model folders beside model.py (export/HOOKS.md), so it imports nothing of this project.
"""

import io
from dataclasses import dataclass

from PIL import Image, ImageOps, UnidentifiedImageError

FORMATS = ("JPEG", "PNG")
KINDS = ("empty", "too_many_bytes", "not_a_picture", "too_many_pixels", "truncated", "broken")


class UnreadableError(ValueError):
    """Not a picture that is served; `kind` is one of `KINDS`, the text says what was found and what to do."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a picture may cost: bytes as sent, and pixels once decoded (at 3 bytes each)."""

    bytes: int = 20_000_000
    pixels: int = 40_000_000


def decode(content: bytes, limits: Limits, *, draft: int = 0) -> Image.Image:
    """A decoded picture, upright, opaque (white shows through) and in 8 bits; raises `UnreadableError`.

    Its size is read from the header first, so a decompression bomb costs nothing. With `draft` a JPEG may be decoded
    at a half, a quarter or an eighth of its size, as long as both sides keep that many pixels.
    """
    if not content:
        raise UnreadableError("empty", "0 bytes. Send the content of a JPEG or PNG file.")
    if len(content) > limits.bytes:
        raise UnreadableError(
            "too_many_bytes", f"{len(content)} bytes, at most {limits.bytes} are read. Send a smaller picture."
        )
    try:
        picture = Image.open(io.BytesIO(content), formats=FORMATS)
    except Image.DecompressionBombError as error:
        raise UnreadableError("too_many_pixels", f"{error} Send a smaller picture.") from error
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError) as error:
        start = content[:8]
        raise UnreadableError("not_a_picture", f"starts with {start!r}. Send JPEG or PNG.") from error
    if picture.width * picture.height > limits.pixels:
        raise UnreadableError(
            "too_many_pixels",
            f"{picture.width} x {picture.height} pixels, at most {limits.pixels} are decoded. Send a smaller picture.",
        )
    return _load(picture, draft)


def _load(picture: Image.Image, draft: int) -> Image.Image:
    try:
        if draft:
            picture.draft("RGB", (draft, draft))
        picture.load()
        return _opaque(ImageOps.exif_transpose(picture))
    except Exception as error:  # Pillow's decoders raise OSError, SyntaxError, ValueError, struct.error and others
        kind = "truncated" if "truncated" in str(error) else "broken"
        raise UnreadableError(kind, f"cannot be decoded ({error}). Send the whole file.") from error


def _opaque(picture: Image.Image) -> Image.Image:
    if picture.mode.startswith("I"):  # 16-bit grey, which convert() would clip at 255
        return picture.convert("I").point(lambda value: value / 257).convert("L")
    if not picture.has_transparency_data:
        return picture
    white = Image.new("RGBA", picture.size, "white")
    return Image.alpha_composite(white, picture.convert("RGBA")).convert("RGB")
