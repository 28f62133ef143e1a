"""A plain connection, the server's counters, and the example that reads words, on a real server."""

import asyncio
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from clients.examples import recognize
from export.models import alphabet, word_image
from serve.launcher import Server

Array = NDArray[Any]
PICTURES = Path(recognize.__file__).parents[1] / "pictures"


@pytest.fixture
def nobody() -> str:
    """An address where nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


@pytest.mark.server
def test_the_sample_pictures_are_read(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    pictures = sorted(PICTURES.glob("*.png"))
    assert len(pictures) >= 5
    assert asyncio.run(recognize.recognize(pictures, url=server.grpc_url)) == [path.stem for path in pictures]
    assert recognize.main([*map(str, pictures), "--url", server.grpc_url]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines] == [[path.name, path.stem] for path in pictures]


def stored_pictures(folder: Path) -> list[Path]:
    """Pictures of every mode that the recogniser's preparation treats on its own."""
    pixels = np.random.default_rng(1).integers(0, 256, (40, 70, 4), dtype=np.uint8)
    pictures = {
        "rgb.png": Image.fromarray(pixels[..., :3]),
        "rgba.png": Image.fromarray(pixels),
        "light_ink.png": Image.merge("LA", [Image.new("L", (70, 40), 250), Image.fromarray(pixels[..., 0])]),
        "wide.png": Image.fromarray(pixels[:4, :, 0]),
        "16_bit.png": Image.fromarray(pixels[..., 0].astype(np.uint16) * 200),
        "turned.jpg": Image.fromarray(pixels[..., 0]),
    }
    turned = Image.Exif()
    turned[274] = 6
    for name, picture in pictures.items():
        picture.save(folder / name, exif=turned if name == "turned.jpg" else b"")
    return [folder / name for name in pictures]


def test_the_example_prepares_and_decodes_as_the_model_was_trained(tmp_path: Path) -> None:
    for path in (*PICTURES.glob("*.png"), *stored_pictures(tmp_path)):
        np.testing.assert_allclose(recognize.prepare(path), word_image.prepare(path), atol=1e-6, err_msg=path.name)
    logits = np.random.default_rng(2).normal(size=(20, 26, 37))
    assert [recognize.decode(word) for word in logits] == alphabet.decode(logits)


@pytest.mark.server
def test_a_bad_picture_is_one_error_among_answers(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = sorted(PICTURES.glob("*.png"))[0]
    jpeg = tmp_path / "word.jpg"
    Image.open(good).convert("L").save(jpeg, quality=95)
    broken = tmp_path / "broken.png"
    broken.write_bytes(good.read_bytes()[:40])
    absent = tmp_path / "absent.png"
    answers = asyncio.run(recognize.recognize([broken, good, absent, jpeg], url=server.grpc_url))
    assert answers[1] == answers[3] == good.stem
    assert isinstance(answers[0], ValueError)
    assert "absent.png" in str(answers[2])
    odd = tmp_path / "broken[1].png"
    broken.rename(odd)
    assert recognize.main([str(good), str(odd), "--url", server.grpc_url]) == 1
    printed = capsys.readouterr().out
    assert good.stem in printed
    assert "broken[1].png" in printed


@pytest.mark.slow
def test_the_program_says_how_to_start_a_server(nobody: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert recognize.main([str(next(PICTURES.glob("*.png"), "x.png")), "--url", nobody]) == 2
    assert "triton-batching serve --model text_recognition" in capsys.readouterr().err
