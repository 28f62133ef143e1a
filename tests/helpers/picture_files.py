"""Picture files for tests: good ones whose colour is known, and every way in which one can be bad."""

import io
import struct
import zlib

import numpy as np
from PIL import Image

COLOURS = {"red": (220, 30, 30), "green": (30, 200, 40), "blue": (40, 50, 210)}
"""The classes of the tiny classifier, in the order of its outputs."""


def picture(colour: str, *, size: tuple[int, int] = (320, 240), kind: str = "JPEG", noise: int = 0) -> bytes:
    """A file of one colour, with some noise so that two of them differ."""
    rng = np.random.default_rng(noise)
    pixels = np.asarray(COLOURS[colour]) + rng.integers(-20, 21, (size[1], size[0], 3))
    content = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(content, kind)
    return content.getvalue()


def truncated() -> bytes:
    """A JPEG whose second half did not arrive."""
    whole = picture("red", size=(640, 480))
    return whole[: len(whole) // 2]


def corrupt() -> bytes:
    """Bytes that are no picture."""
    return bytes(np.random.default_rng(0).integers(0, 256, 5000, dtype=np.uint8))


def bomb(width: int = 50_000, height: int = 50_000) -> bytes:
    """A small PNG that would decode to 2.5 billion pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = zlib.compress(b"\0" * 1_000_000, 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


BAD = {
    "corrupt": (corrupt(), "not_a_picture", "Send JPEG or PNG"),
    "truncated": (truncated(), "truncated", "Send the whole file"),
    "empty": (b"", "empty", "0 bytes"),
    "bomb": (bomb(), "too_many_pixels", "Send a smaller picture"),
}
"""Name -> content, the kind of failure, and words of its reason."""
