import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

from export.models import word_image


def stored(picture: Image.Image, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    picture.save(file, kind)
    return file.getvalue()


@pytest.mark.parametrize(("grey", "value"), [(0, -1.0), (255, 1.0), (51, -0.6), (204, 0.6)])
def test_grey_values_become_minus_one_to_one(grey: int, value: float) -> None:
    prepared = word_image.prepare(Image.new("L", (100, 32), grey))
    assert prepared.shape == (1, 32, 100)
    assert prepared.dtype == np.float32
    np.testing.assert_allclose(prepared, value, atol=1e-6)


@pytest.mark.parametrize(
    ("size", "natural"), [((64, 64), 32), ((400, 32), 400), ((100, 32), 100), ((1, 32), 8), ((150, 48), 100)]
)
def test_the_width_is_scaled_with_the_height(size: tuple[int, int], natural: int) -> None:
    picture = Image.new("L", size, 128)
    assert word_image.prepare(picture).shape == (1, 32, 100)
    assert word_image.prepare(picture, width=None).shape == (1, 32, natural)
    assert word_image.natural_width(picture) == natural


def test_narrow_picture_is_filled_up_on_the_right_with_its_border_colour() -> None:
    picture = Image.new("L", (60, 32), 204)
    ImageDraw.Draw(picture).rectangle((20, 8, 59, 20), fill=0)  # ink that touches the right edge
    prepared = word_image.prepare(picture)
    np.testing.assert_allclose(prepared[0, :, 60:], 0.6, atol=1e-6)
    np.testing.assert_array_equal(prepared[:, :, :60], word_image.prepare(picture, width=None))
    assert prepared[0, 10, 40] == -1


@pytest.mark.parametrize(("ink", "behind"), [(0, 1.0), (255, -1.0)])
def test_transparent_parts_contrast_with_the_ink(ink: int, behind: float) -> None:
    picture = Image.new("RGBA", (100, 32), (0, 0, 0, 0))
    ImageDraw.Draw(picture).rectangle((10, 4, 40, 28), fill=(ink, ink, ink, 255))
    prepared = word_image.prepare(picture)
    assert prepared[0, 0, 0] == behind
    assert prepared[0, 16, 20] == -behind


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"absent\.png: no such file"):
        word_image.prepare(tmp_path / "absent.png")


def test_a_file_that_is_no_picture_is_refused(tmp_path: Path) -> None:
    (tmp_path / "word.png").write_text("just text")
    with pytest.raises(ValueError, match=r"word\.png: not a picture \(it starts with b'just tex'\)"):
        word_image.prepare(tmp_path / "word.png")
    with pytest.raises(ValueError, match="9 bytes: not a picture"):
        word_image.prepare(b"just text")
