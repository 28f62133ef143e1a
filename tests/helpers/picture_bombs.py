"""Small picture files that take long to decode or parse, unless their headers are read first."""

import io
import struct
import zlib
from collections.abc import Callable

from picture_files import picture
from PIL import Image

SIGNATURE = b"\x89PNG\r\n\x1a\n"


def chunk(kind: bytes, content: bytes = b"") -> bytes:
    """One part of a PNG file."""
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width: int, height: int, *, metadata: bytes = b"") -> bytes:
    """A white grey PNG of any size, with parts before its pixels."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = zlib.compress((b"\0" + b"\xff" * width) * height, 9)
    return SIGNATURE + chunk(b"IHDR", header) + metadata + chunk(b"IDAT", rows) + chunk(b"IEND")


def unpacked(kind: bytes, count: int) -> bytes:
    """Parts that are 1 MB each once unpacked."""
    return chunk(kind, b"x\0\0" + zlib.compress(bytes(1_000_000), 9)) * count


def exif_fields() -> bytes:
    """EXIF of 65,535 fields, each of which claims the same 15 MB."""
    field = struct.pack("<HHII", 0x8000, 1, 15_000_000, 8)
    return chunk(b"eXIf", (b"II*\0" + struct.pack("<IH", 8, 65_535) + field * 65_535).ljust(15_100_000, b"\0"))


def jpeg(*, comments: int = 0, scans: int = 0, side: int = 64) -> bytes:
    """A progressive JPEG with empty comments, and with its last scan repeated."""
    made = io.BytesIO()
    Image.new("L", (side, side), 128).save(made, "JPEG", progressive=True)
    content = made.getvalue()
    last = content[content.rfind(b"\xff\xda") : -2]
    return content[:2] + b"\xff\xfe\0\x02" * comments + content[2:-2] + last * scans + content[-2:]


BOMBS: dict[str, tuple[Callable[[], bytes], str, str]] = {
    "one column": (lambda: png(1, 39_000_000), "too_many_pixels", "1 x 39000000 pixels; the limit of a side is 20000"),
    "one row": (lambda: png(39_000_000, 1), "too_many_pixels", "39000000 x 1 pixels; the limit of a side is 20000"),
    "parts": (lambda: png(9, 9, metadata=chunk(b"tEXt", b"a\0b") * 900_000), "too_many_parts", "more than 20000 parts"),
    "comments": (lambda: jpeg(comments=4_000_000), "too_many_parts", "a JPEG file of more than 20000 parts"),
    "scans": (lambda: jpeg(scans=4000, side=2000), "too_many_parts", "a JPEG in 4006 scans; the limit is 40"),
    "no pixels": (lambda: png(0, 0), "empty", "0 x 0 pixels. Send a picture of at least one pixel"),
    "cut PNG": (lambda: png(90, 90)[:60], "truncated", "a truncated PNG file.* after 60 bytes. Send the whole"),
    "cut header": (lambda: jpeg()[:30], "truncated", "a truncated JPEG file.* after 30 bytes. Send the whole"),
    "cut JPEG": (lambda: picture("red")[:-900], "truncated", "a truncated file .*Send the whole file"),
    "noise of markers": (lambda: b"\xff\xd8" + b"\xff" * 100_000, "too_many_parts", "more than 20000 parts"),
}
"""Name -> how it is made, the kind of failure, and a pattern of its reason."""

HARMLESS: dict[str, Callable[[], bytes]] = {
    "texts": lambda: png(9, 9, metadata=unpacked(b"zTXt", 2000)),
    "profiles": lambda: png(9, 9, metadata=unpacked(b"iCCP", 15_000)),
    "fields": lambda: png(9, 9, metadata=exif_fields()),
    "frames": lambda: png(9, 9, metadata=chunk(b"acTL", struct.pack(">II", 1_000_000_000, 0))),
    "film behind": lambda: picture("red") + b"\xff\xda" * 100_000,
}
"""Pictures that are good but for the metadata, which is not read."""
