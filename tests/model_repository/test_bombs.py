"""Pictures and pages that would block a server, among good ones, on a real server."""

import asyncio
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from bench import Bench
from numpy.typing import NDArray
from picture_bombs import BOMBS, HARMLESS
from PIL import Image
from unchecked import connect

from clients.errors import InvalidInputError
from clients.examples import read_page
from export.__main__ import main as export
from serve.launcher import Server

pytestmark = pytest.mark.server
PAGE = Path(read_page.__file__).parents[1] / "pages" / "page.png"


@pytest.fixture(scope="module")
def server(bench: Bench) -> Iterator[Server]:
    assert export(["text_recognition_ragged"]) == 0
    with bench.serving(("text_reading", "image_preprocess"), config_name="dynamic") as running:
        yield running


async def ask(
    url: str, model: str, name: str, contents: Sequence[bytes]
) -> list[dict[str, NDArray[np.generic]] | Exception]:
    """The answer to each content; all are sent at once."""
    async with connect(url) as connection:
        await connection.check(model)

        async def answer(content: bytes) -> dict[str, NDArray[np.generic]] | Exception:
            try:
                return await connection.infer(model, {name: np.array([[content]], dtype=np.object_)}, timeout_s=60)
            except Exception as error:
                return error

        return await asyncio.gather(*map(answer, contents))


def page(folder: Path) -> bytes:
    """The first line of the sample page."""
    with Image.open(PAGE) as whole:
        whole.crop((0, 0, whole.width, 125)).save(folder / "line.png")
    return (folder / "line.png").read_bytes()


def noise(folder: Path) -> bytes:
    """90,000 spots in 1,500 x 1,500 pixels."""
    spots = np.full((1500, 1500), 255, dtype=np.uint8)
    spots[::5, ::5] = 0
    Image.fromarray(spots).save(folder / "noise.png")
    return (folder / "noise.png").read_bytes()


@pytest.mark.parametrize(("model", "tensor"), [("text_reading", "PAGE"), ("image_preprocess", "PICTURE")])
def test_a_bomb_is_one_error_and_31_others_are_answered(
    server: Server, model: str, tensor: str, tmp_path: Path
) -> None:
    good = page(tmp_path)
    (alone,) = asyncio.run(ask(server.grpc_url, model, tensor, [good]))
    assert isinstance(alone, dict)
    if model == "text_reading":
        assert alone["TEXT"][0, 0] == b"reading a page in one batch"
    for name, (make, _, message) in BOMBS.items():
        answers = asyncio.run(ask(server.grpc_url, model, tensor, [*[good] * 16, make(), *[good] * 15]))
        refused = answers.pop(16)
        assert isinstance(refused, InvalidInputError), name
        assert re.search(message, str(refused)), name
        for answer in answers:
            assert isinstance(answer, dict), name
            assert all((answer[output] == array).all() for output, array in alone.items()), name


def test_metadata_of_any_size_costs_nothing(server: Server) -> None:
    contents = [make() for make in HARMLESS.values()]
    for answer in asyncio.run(ask(server.grpc_url, "image_preprocess", "PICTURE", contents)):
        assert isinstance(answer, dict)


def test_a_page_of_noise_is_refused_and_a_wide_stroke_is_not(server: Server, tmp_path: Path) -> None:
    stroke = np.full((40, 20_000), 255, dtype=np.uint8)
    stroke[15:25, 100:19_000] = 0
    Image.fromarray(stroke).save(tmp_path / "stroke.png")
    contents = [noise(tmp_path), (tmp_path / "stroke.png").read_bytes(), page(tmp_path)]
    refused, wide, good = asyncio.run(ask(server.grpc_url, "text_reading", "PAGE", contents))
    assert isinstance(refused, InvalidInputError)
    assert "90000 spots of ink; the limit is 30000" in str(refused)
    assert isinstance(wide, dict)
    assert isinstance(good, dict)
    assert good["TEXT"][0, 0] == b"reading a page in one batch"
    assert server.running()
