"""A plain connection, the server's counters, and the example that reads words, on a real server."""

import asyncio
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from processes import wait_until
from unchecked import connect

from clients.errors import ServerUnreachableError
from clients.examples import recognize
from export.models import alphabet, word_image
from serve.launcher import Server
from serve.management.api import ServerError
from serve.management.statistics import Counters

Array = NDArray[Any]
PICTURES = Path(recognize.__file__).parents[1] / "pictures"


@pytest.fixture
def nobody() -> str:
    """An address where nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


async def ask(url: str, model: str, array: Array, name: str = "features") -> dict[str, Array]:
    async with connect(url) as connection:
        await connection.check(model)
        return await connection.infer(model, {name: array}, timeout_s=10)


@pytest.mark.server
def test_counters_count_this_request(server: Server) -> None:
    before = Counters.read(server.grpc_url, "ranker")
    answer = asyncio.run(ask(server.grpc_url, "ranker", np.zeros((3, 2, 256), dtype=np.float32)))
    assert answer["score"].shape == (3, 2)
    # The server counts a request after it has sent the answer.
    assert wait_until(lambda: Counters.read(server.grpc_url, "ranker") != before, seconds=5)
    counted = Counters.read(server.grpc_url, "ranker") - before
    assert (counted.requests, counted.rows, counted.executions, counted.batches) == (1, 3, 1, {3: 1})
    assert counted.compute_infer_ns > 0
    assert counted.batches_ns[3] > 0


@pytest.mark.server
def test_a_model_that_is_not_loaded_is_named(server: Server) -> None:
    with pytest.raises(
        ServerUnreachableError,
        match=r"'resnet50' is not ready there. Serve it: triton-batching serve --model resnet50 \(",
    ):
        asyncio.run(ask(server.grpc_url, "resnet50", np.zeros((1, 1), dtype=np.float32)))
    with pytest.raises(ServerError, match="no statistics for 'resnet50'"):
        Counters.read(server.grpc_url, "resnet50")


def test_an_address_without_a_server_is_an_error(nobody: str) -> None:
    with pytest.raises(
        ServerUnreachableError, match=r"no gRPC server answers there.*triton-batching serve --model ranker \("
    ):
        asyncio.run(ask(nobody, "ranker", np.zeros((1, 2, 256), dtype=np.float32)))


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


def test_the_program_says_how_to_start_a_server(nobody: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert recognize.main([str(next(PICTURES.glob("*.png"), "x.png")), "--url", nobody]) == 2
    assert "triton-batching serve --model text_recognition" in capsys.readouterr().err
