import hashlib
import importlib.util
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from export.models.alphabet import ALPHABET
from export.words import pictures as words

FAMILIES = (
    "Caladea",
    "DejaVuSans",
    "DejaVuSerif",
    "Hanken",
    "Manrope",
    "Roboto",
    "SourceSans",
    "SourceSerif",
)


def digest(seed: int, count: int = 20) -> str:
    rng = np.random.default_rng(seed)
    state = hashlib.sha256()
    for _ in range(count):
        drawn = words.draw_picture(rng, words.draw_word(rng))
        state.update(f"{drawn.word} {drawn.face} {drawn.picture.size}".encode() + drawn.picture.tobytes())
    return state.hexdigest()


def test_same_seed_same_pixels() -> None:
    first = digest(1)
    np.random.default_rng(0).random(5)  # another generator has no influence
    assert digest(1) == first
    assert digest(2) != first


def test_words_have_1_to_10_characters_of_the_alphabet() -> None:
    rng = np.random.default_rng(0)
    drawn = [words.draw_word(rng) for _ in range(3000)]
    assert {len(word) for word in drawn} == set(range(1, 11))
    assert set("".join(drawn)) == set("0123456789abcdefghijklmnopqrstuvwxyz")
    assert sum(word.isdigit() for word in drawn) > 150
    assert sum(word.isalpha() for word in drawn) > 1000


def test_taken_words_are_not_drawn_again() -> None:
    first = np.random.default_rng(5)
    taken = {words.draw_word(first) for _ in range(500)}
    second = np.random.default_rng(5)
    again = {words.draw_word(second, taken) for _ in range(500)}
    assert all(len(word) < 3 for word in taken & again)


def test_every_family_is_found_without_thin_and_heavy_faces() -> None:
    faces = [path.stem for path in words.font_files()]
    for family in FAMILIES:
        assert any(face.startswith(family) for face in faces), family
    assert not [face for face in faces if "Thin" in face or "ExtraLight" in face or "Black" in face]


def test_no_face_draws_two_characters_alike() -> None:
    for path in words.font_files():
        shapes = {words._ink(words._font(path, 48), character).tobytes() for character in ALPHABET}
        assert len(shapes) == 36, path.stem


def test_pictures_differ_in_colour_size_and_shape() -> None:
    rng = np.random.default_rng(3)
    pictures = [np.asarray(words.draw_picture(rng, "server").picture, dtype=np.float64) for _ in range(60)]
    heights = [picture.shape[0] for picture in pictures]
    assert min(heights) < 20
    assert max(heights) > 45
    # Ink covers less than half of a picture: a median above the mean is dark ink on light paper.
    dark_ink = sum(np.median(picture) > picture.mean() for picture in pictures)
    assert 15 < dark_ink < 45
    ranges = [float(np.ptp(picture)) for picture in pictures]
    assert min(ranges) > 40
    assert max(ranges) > 200


def test_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "font_roboto" else find_spec(name))
    with pytest.raises(ModuleNotFoundError, match=r"pip install font-roboto$"):
        words.font_files.__wrapped__()


def test_program_draws_the_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert words.main(["--out", str(tmp_path / "new" / "folder")]) == 0
    files = sorted((tmp_path / "new" / "folder").iterdir())
    assert [file.stem for file in files] == sorted(words.SAMPLES)
    assert len(capsys.readouterr().out.splitlines()) == len(words.SAMPLES)
    for file in files:
        assert file.stat().st_size < 10_000
        assert Image.open(file).mode == "L"


def test_committed_samples_are_all_there() -> None:
    folder = Path(__file__).parents[2] / "clients" / "pictures"
    assert {file.stem for file in folder.glob("*.png")} == set(words.SAMPLES)
