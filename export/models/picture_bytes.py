"""Decodes the bytes of an untrusted picture within limits, or refuses them with a reason.

Copied beside model.py (serve/policies/README.md), so it imports nothing of this project.
"""

import io
import struct
from dataclasses import dataclass

from PIL import Image

KINDS = ("empty", "too_many_bytes", "not_a_picture", "too_many_pixels", "too_many_parts", "truncated", "broken")

PNG, JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"
# The parts of a file that its pixels need. Texts, colour profiles, thumbnails and further frames are removed, because
# Pillow would unpack and parse them. A JPEG keeps its tables and the Adobe marker as well.
PNG_PARTS = (b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND")
JFIF, EXIF, ADOBE = 0xE0, 0xE1, 0xEE
SCAN, END, COMMENT = 0xDA, 0xD9, 0xFE
NO_LENGTH = (0x00, 0x01, *range(0xD0, 0xD8))
FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
# A 20 MB PNG in parts of 8 kB, as most programs write it, has 2,500.
MOST_PARTS = 20_000
# Each scan covers the whole picture: 40 take 1 s for 40 million pixels. A progressive file has about 10.
MOST_SCANS = 40
# How to turn a picture upright, by its EXIF orientation.
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
ORIENTATION, SHORT = 0x0112, 3


class UnreadableError(ValueError):
    """The bytes are refused; `kind` is one of `KINDS`, the text says what is wrong and what to do."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of one picture: bytes of the file, decoded pixels (3 bytes each), and pixels of a side.

    A decoder works row by row: 1 x 39,000,000 pixels take a hundred times as long as 6,245 x 6,245.
    """

    bytes: int = 20_000_000
    pixels: int = 40_000_000
    side: int = 20_000


@dataclass(frozen=True, kw_only=True)
class _Outline:
    """Size and EXIF orientation of a picture, and `content`: the file with only the parts that its pixels need."""

    size: tuple[int, int]
    orientation: int
    content: bytes


def decode(content: bytes, limits: Limits, *, draft: int = 0) -> Image.Image:
    """A decoded picture, upright, opaque (white shows through) and in 8 bits; raises `UnreadableError`.

    The size is checked before decoding, so a decompression bomb costs nothing. With `draft` a JPEG may be decoded at a
    half, a quarter or an eighth of its size, as long as both sides keep at least `draft` pixels.
    """
    if not content:
        raise UnreadableError("empty", "0 bytes. Send the content of a JPEG or PNG file.")
    if len(content) > limits.bytes:
        raise UnreadableError(
            "too_many_bytes", f"{len(content)} bytes; the limit is {limits.bytes}. Send a smaller picture."
        )
    if content.startswith(PNG):
        outline = _png(content)
    elif content.startswith(JPEG):
        outline = _jpeg(content)
    else:
        raise UnreadableError("not_a_picture", f"starts with {content[:8]!r}. Send JPEG or PNG.")
    _check_size(*outline.size, limits)
    return _load(outline, draft)


def _check_size(width: int, height: int, limits: Limits) -> None:
    size = f"{width} x {height} pixels"
    if not width or not height:
        raise UnreadableError("empty", f"{size}. Send a picture of at least one pixel.")
    if max(width, height) > limits.side:
        raise UnreadableError(
            "too_many_pixels", f"{size}; the limit of a side is {limits.side}. Send a smaller picture, or parts of it."
        )
    if width * height > limits.pixels:
        raise UnreadableError("too_many_pixels", f"{size}; the limit is {limits.pixels}. Send a smaller picture.")


def _png(content: bytes) -> _Outline:
    parts, exif, at = [PNG], b"", len(PNG)
    if content[at + 4 : at + 8] != b"IHDR"[: len(content) - at - 4]:
        raise UnreadableError("broken", "a PNG file without a header. Send the file as it was written.")
    for _ in range(MOST_PARTS):
        head = content[at : at + 8]
        if not head:
            break
        end = at + 12 + int.from_bytes(head[:4], "big")
        if len(head) < 8 or end > len(content):
            raise _truncated("PNG", content)
        if head[4:] in PNG_PARTS:
            parts.append(content[at:end])
        elif head[4:] == b"eXIf":
            exif = content[at + 8 : end - 4]
        at = end
        if head[4:] == b"IEND":
            break
    else:
        raise _too_many_parts("PNG")
    if len(content) < 24 or int.from_bytes(content[8:12], "big") < 8:  # the header, which has the size
        raise _truncated("PNG", content)
    width, height = struct.unpack(">II", content[16:24])
    return _Outline(size=(width, height), orientation=_orientation(exif), content=b"".join(parts))


def _jpeg(content: bytes) -> _Outline:
    parts, exif, size, at = [JPEG[:2]], b"", (0, 0), 2
    for _ in range(MOST_PARTS):
        at = content.find(b"\xff", at)
        kind = content[at + 1] if 0 <= at < len(content) - 1 else END
        if kind == 0xFF or kind in NO_LENGTH:
            at += 1 if kind == 0xFF else 2
            continue
        end = at + 2 + int.from_bytes(content[at + 2 : at + 4], "big")
        if kind == END or end > len(content):
            raise _truncated("JPEG", content)
        if kind == SCAN:
            break
        if kind in FRAMES and end >= at + 9:
            size = (int.from_bytes(content[at + 7 : at + 9], "big"), int.from_bytes(content[at + 5 : at + 7], "big"))
        if kind == EXIF and content[at + 4 : at + 10] == b"Exif\0\0":
            exif = exif or content[at + 10 : end]
        if kind in (JFIF, ADOBE) or not (JFIF <= kind <= 0xEF or kind == COMMENT):
            parts.append(content[at:end])
        at = end
    else:
        raise _too_many_parts("JPEG")
    # Between pixels 0xff comes only before a marker. The bytes after the end are another picture or a film.
    end = content.find(bytes((0xFF, END)), at)
    end = len(content) if end < 0 else end + 2
    if (scans := content.count(bytes((0xFF, SCAN)), at, end)) > MOST_SCANS:
        raise UnreadableError(
            "too_many_parts",
            f"a JPEG in {scans} scans; the limit is {MOST_SCANS}. Save it again as a JPEG or PNG.",
        )
    return _Outline(size=size, orientation=_orientation(exif), content=b"".join((*parts, content[at:end])))


def _truncated(format: str, content: bytes) -> UnreadableError:
    return UnreadableError(
        "truncated",
        f"a truncated {format} file: it ends within a part, after {len(content)} bytes. Send the whole file.",
    )


def _too_many_parts(format: str) -> UnreadableError:
    return UnreadableError(
        "too_many_parts", f"a {format} file of more than {MOST_PARTS} parts. Save it again, without metadata."
    )


def _orientation(exif: bytes) -> int:
    """EXIF's orientation, 1 to 8, or 1 without EXIF. Pillow would read all other fields too, of any size."""
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(exif[:4])
    if order is None or len(exif) < 10:
        return 1
    (start,) = struct.unpack(f"{order}I", exif[4:8])
    count = int.from_bytes(exif[start : start + 2], "little" if order == "<" else "big")
    fields = exif[start + 2 : start + 2 + 12 * count]
    for tag, kind, _, value in struct.iter_unpack(f"{order}HHIH2x", fields[: len(fields) // 12 * 12]):
        if (tag, kind) == (ORIENTATION, SHORT):
            return int(value)
    return 1


def _load(outline: _Outline, draft: int) -> Image.Image:
    try:
        picture = Image.open(io.BytesIO(outline.content), formats=("JPEG", "PNG"))
        if picture.size != outline.size:
            raise ValueError(f"{outline.size} in one header, {picture.size} in another")
        if draft:
            picture.draft("RGB", (draft, draft))
        picture.load()
        turn = TURNS.get(outline.orientation)
        return _opaque(picture if turn is None else picture.transpose(turn))
    except Exception as error:  # Pillow's decoders raise OSError, SyntaxError, ValueError, struct.error and others
        if "truncated" in str(error):
            raise UnreadableError("truncated", f"is a truncated file ({error}). Send the whole file.") from error
        raise UnreadableError("broken", f"cannot be decoded ({error}). Send the file as it was written.") from error


def _opaque(picture: Image.Image) -> Image.Image:
    if picture.mode.startswith("I"):  # 16-bit grey, which convert() would clip at 255
        return picture.convert("I").point(lambda value: value / 257).convert("L")
    if not picture.has_transparency_data:
        return picture
    white = Image.new("RGBA", picture.size, "white")
    return Image.alpha_composite(white, picture.convert("RGBA")).convert("RGB")
