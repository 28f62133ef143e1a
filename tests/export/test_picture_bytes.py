"""Untrusted pictures are decoded within limits or refused with a reason."""

import io
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from picture_bombs import BOMBS, HARMLESS, chunk, png
from picture_files import BAD, picture
from PIL import Image, ImageOps

from export.models.picture_bytes import KINDS, Limits, UnreadableError, decode


def saved(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    content = io.BytesIO()
    image.save(content, kind, **options)
    return content.getvalue()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The size of every file that Pillow opens."""
    sizes: list[int] = []

    def counted(file: io.BytesIO, **options: Any) -> Image.Image:
        sizes.append(len(file.getvalue()))
        return pillow(file, **options)

    pillow = Image.open
    monkeypatch.setattr(Image, "open", counted)
    return sizes


@pytest.mark.parametrize("name", BAD)
def test_each_bad_picture_has_its_reason(name: str) -> None:
    content, kind, message = BAD[name]
    with pytest.raises(UnreadableError, match=message) as refused:
        decode(content, Limits())
    assert refused.value.kind == kind
    assert kind in KINDS


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_before_it_is_decoded(name: str, opened: list[int]) -> None:
    make, kind, message = BOMBS[name]
    with pytest.raises(UnreadableError, match=message) as refused:
        decode(make(), Limits())
    # Only the pixels show that this one is truncated.
    assert len(opened) == (name == "cut JPEG")
    assert refused.value.kind == kind
    assert kind in KINDS


@pytest.mark.parametrize("name", HARMLESS)
def test_metadata_of_any_size_is_skipped(name: str, opened: list[int]) -> None:
    assert decode(HARMLESS[name](), Limits()).size in ((9, 9), (320, 240))
    assert [size < 20_000 for size in opened] == [True]


def test_the_limits_are_limits() -> None:
    content = picture("red", size=(40, 30))
    assert decode(content, Limits(bytes=len(content), pixels=1200)).size == (40, 30)
    with pytest.raises(UnreadableError, match="40 x 30 pixels; the limit is 1199") as refused:
        decode(content, Limits(pixels=1199))
    assert refused.value.kind == "too_many_pixels"
    with pytest.raises(UnreadableError, match="the limit is 100") as refused:
        decode(content, Limits(bytes=100))
    assert refused.value.kind == "too_many_bytes"


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("orientation", range(10))
def test_every_orientation_is_turned_as_pillow_does(orientation: int, order: str) -> None:
    fields = struct.pack(f"{order}HHHIHHHHIHHI", 2, 0x010F, 3, 1, 7, 0, 0x0112, 3, 1, orientation, 0, 0)
    start = b"II*\0\x08\0\0\0" if order == "<" else b"MM\0*\0\0\0\x08"
    content = png(20, 10, metadata=chunk(b"eXIf", start + fields))
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(content)))
    decoded = decode(content, Limits())
    assert decoded.size == expected.size
    turned = Image.fromarray(np.arange(200, dtype=np.uint8).reshape(10, 20))
    for kind, options in (("PNG", {}), ("JPEG", {"quality": 100})):
        marked = saved(turned, kind, exif=start + fields, **options)
        upright = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(marked))))
        assert (np.asarray(decode(marked, Limits())) == upright).all()


def test_exif_that_is_cut_says_nothing() -> None:
    for exif in (b"", b"II*\0", b"II*\0\xff\xff\xff\xff\xff\xff", b"II*\0\x08\0\0\0\x09\0\x12\x01"):
        assert decode(png(20, 10, metadata=chunk(b"eXIf", exif)), Limits()).size == (20, 10)


def test_white_shows_through_and_16_bits_are_scaled() -> None:
    glass = Image.new("RGBA", (2, 2), (0, 0, 0, 0))
    assert decode(saved(glass), Limits()).getpixel((0, 0)) == (255, 255, 255)
    deep = Image.fromarray(np.full((2, 2), 257 * 100, dtype=np.uint16))
    assert decode(saved(deep), Limits()).getpixel((0, 0)) == 100


def test_a_draft_keeps_the_size_that_is_needed() -> None:
    large = picture("green", size=(1600, 1200))
    assert decode(large, Limits()).size == (1600, 1200)
    assert decode(large, Limits(), draft=512).size == (800, 600)


@given(st.binary(max_size=300), st.integers(0, 2000))
def test_any_bytes_are_a_picture_or_an_unreadable_one(noise: bytes, at: int) -> None:
    whole = picture("blue", size=(32, 24), kind="PNG")
    for content in (noise, whole[: at % len(whole)] + noise):
        try:
            kind = decode(content, Limits()).format or "decoded"
        except UnreadableError as error:
            kind = error.kind
        assert kind in (*KINDS, "PNG", "decoded")
