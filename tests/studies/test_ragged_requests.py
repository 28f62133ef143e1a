"""Requests of different length on real servers: what runs together, and that every answer is its own."""

import asyncio
import socket
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from clients.async_connection import connect
from clients.errors import RequestFailedError
from export.__main__ import main as export
from export.models import alphabet, word_image
from export.models.catalogue import TRAINED
from export.models.text_recognition import build
from export.variant.trial_rows import word_pictures
from perf.studies.ragged_requests import __main__ as ragged
from perf.studies.ragged_requests import messages
from perf.studies.ragged_requests.__main__ import EQUAL, MIXED, MODEL, MixedRequest, as_they_are, measure, send
from serve.launcher import Server, Settings, launch
from serve.management.statistics import Counters

Answer = dict[str, NDArray[np.generic]]
WAIT_FOR_5 = {"TRITONSERVER_DELAY_SCHEDULER": "5"}


@pytest.fixture(scope="module", params=["separate", None, "bytes", "message"])
def variant(request: pytest.FixtureRequest) -> Iterator[tuple[str | None, Server]]:
    """One server for each variant of the service."""
    with launch(Settings(models=(MODEL,), config_name=request.param)) as running:
        yield request.param, running


@pytest.mark.server
def test_the_published_load(variant: tuple[str | None, Server]) -> None:
    """200 equal and 200 mixed requests over every route that the variant takes."""
    config_name, server = variant
    routes = ragged.fitting(server.configs[MODEL])
    assert {route.config_name for route in routes} == {config_name}
    for route in routes:
        equal, mixed = (measure(server.grpc_url, route, lengths) for lengths in (EQUAL, MIXED))
        assert (equal.right, mixed.right) == (200, 200)
        assert equal.counted.executions <= 14
        if route.name in ("separate executions", "protobuf int32"):
            assert mixed.counted.executions >= 190
        else:
            assert mixed.counted.executions <= 14
        # lengths 20, 40, 60 padded to 60, and 200 requests do not end with the turn: 66 x 120 + 60 of 12,000
        assert mixed.wasted == pytest.approx(1 - 7980 / 12000 if route.name == "client padding" else 0)


@pytest.mark.server
def test_each_of_1000_mixed_replies_is_its_own() -> None:
    rng = np.random.default_rng(5)
    requests = [as_they_are(1, [int(rng.integers(0, 300))], seed)[0] for seed in range(1000)]
    with launch(Settings(models=(MODEL,))) as server:
        assert asyncio.run(send(server.grpc_url, requests)) == 1000
        counted = Counters.read(server.grpc_url, MODEL)
    assert (counted.rows, counted.requests) == (1000, 1000)
    assert counted.executions <= 64  # 62.5 of 16 rows


@pytest.mark.server
@pytest.mark.parametrize(("config_name", "batches"), [("separate", {1: 1, 2: 2}), (None, {5: 1})])
def test_the_batch_ends_where_the_length_changes(config_name: str | None, batches: dict[int, int]) -> None:
    """Lengths 20, 20, 40, 40, 20, and the batcher waits for all five: executions of 2, 2, 1; ragged one of 5."""
    requests = [as_they_are(1, [length], seed)[0] for seed, length in enumerate((20, 20, 40, 40, 20))]
    with launch(Settings(models=(MODEL,), config_name=config_name, environment=WAIT_FOR_5)) as server:
        assert asyncio.run(send(server.grpc_url, requests, gap_s=0.02)) == 5
        assert Counters.read(server.grpc_url, MODEL).batches == batches


@pytest.mark.server
def test_a_request_that_cannot_be_read_fails_alone() -> None:
    good = [MixedRequest(array=np.array([[np.float32(7).tobytes()]], dtype=np.object_), sum=7, length=1)] * 3

    async def ask(url: str) -> tuple[int, BaseException]:
        async with connect(url) as connection:
            bad = connection.infer(MODEL, {"INPUT": np.array([[b"123"]], dtype=np.object_)})
            right, error = await asyncio.gather(send(url, good), bad, return_exceptions=True)
        assert isinstance(right, int)
        assert isinstance(error, BaseException)
        return right, error

    environment = {"TRITONSERVER_DELAY_SCHEDULER": "4"}
    with launch(Settings(models=(MODEL,), config_name="bytes", environment=environment)) as server:
        right, error = asyncio.run(ask(server.grpc_url))
        assert Counters.read(server.grpc_url, MODEL).batches == {4: 1}
    assert right == 3
    assert isinstance(error, RequestFailedError)
    assert "INPUT: 3 bytes are no whole number of float32 values. Send 4 bytes per value." in str(error)


@pytest.mark.server
def test_100_crops_of_20_widths_are_read_as_alone() -> None:
    """The served ragged recogniser against the torch model on one crop at a time."""
    assert export(["text_recognition_ragged"]) == 0
    rng = np.random.default_rng(3)
    drawn, model = word_pictures()[0][:100], build(64, TRAINED)
    widths = rng.permutation(np.repeat(np.arange(16, 316, 15), 5))
    assert len(set(widths)) == 20
    crops = [
        Image.fromarray(word_image.stretch(Image.fromarray(word), w)) for word, w in zip(drawn, widths, strict=True)
    ]
    with torch.inference_mode():
        rows = [torch.from_numpy(word_image.prepare(crop, None)[None]) for crop in crops]
        alone = [alphabet.decode(model(row).numpy())[0] for row in rows]

    async def read(url: str) -> list[str]:
        async with connect(url) as connection:
            answers = await asyncio.gather(
                *(
                    connection.infer("text_recognition_ragged", {"CROP": word_image.prepare(crop, None)[None]})
                    for crop in crops
                )
            )
        return [alphabet.decode(answer["LOGITS"])[0] for answer in answers]

    with launch(Settings(models=("text_recognition_ragged",))) as server:
        assert asyncio.run(read(server.grpc_url)) == alone
        counted = Counters.read(server.grpc_url, "text_recognition_ragged")
    assert counted.rows == 100
    assert counted.rows_per_execution > 4
    assert sum(map(bool, alone)) > 80  # words, not blanks


def test_a_varint_is_as_long_as_its_value_and_a_fixed32_is_not() -> None:
    values = (0, 1, 300, 70_000, messages.LARGEST)
    # A tag of one byte and 7 bits of the value in each further byte; a field of 0 is not written.
    assert [len(messages.varint((value, 0, 0))) for value in values] == [0, 2, 3, 4, 6]
    assert [len(messages.fixed((value, 0, 0))) for value in values] == [15] * 5
    assert messages.varint((300, 0, 0)).tolist() == [1 << 3, 0xAC, 0x02]
    assert messages.fixed((300, 0, 1)).tolist() == [13, 45, 1, 0, 0, 21, 1, 0, 0, 0, 29, 2, 0, 0, 0]


@pytest.mark.parametrize("value", [-1, 2**31 - 1])
def test_a_fixed32_cannot_hold_every_value(value: int) -> None:
    with pytest.raises(ValueError, match="fixed32 with \\+ 1 holds 0 to"):
        messages.fixed((value, 0, 0))


@pytest.mark.server
def test_messages_of_any_value_are_read_back() -> None:
    rng = np.random.default_rng(1)
    requests = []
    for _ in range(60):
        values = [int(value) for value in rng.integers(-5000, 5000, 3)]
        requests.append(
            MixedRequest(array=messages.varint(values)[None], sum=float(sum(values)), length=3 - values.count(0))
        )
        positive = [abs(value) for value in values]
        requests.append(MixedRequest(array=messages.fixed(positive)[None], sum=float(sum(positive)), length=3))
    with launch(Settings(models=(MODEL,), config_name="message")) as server:
        assert asyncio.run(send(server.grpc_url, requests)) == len(requests)


@pytest.mark.server
def test_the_program_on_a_given_server(capsys: pytest.CaptureFixture[str]) -> None:
    with launch(Settings(models=(MODEL,), config_name="separate")) as server:
        assert ragged.main(["--url", server.grpc_url, "--requests", "20"]) == 0
    printed = capsys.readouterr().out
    assert "separate executions" in printed
    assert "client padding" in printed
    assert "protobuf" not in printed


def test_mistakes_end_with_one_line_and_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{free.getsockname()[1]}"
    assert ragged.main(["--url", nobody]) == 2
    printed = capsys.readouterr().err
    assert len(printed.strip().splitlines()) == 1
    assert f"make serve MODEL={MODEL}" in printed
    with pytest.raises(SystemExit) as stopped:
        ragged.main(["--requests", "none"])
    assert stopped.value.code == 2


@pytest.mark.server
def test_requests_of_several_rows() -> None:
    """Item shapes hold one entry for each row, so several crops of a width are fine; offsets one for each request."""
    assert export(["text_recognition_ragged", "ragged_encoder"]) == 0
    crops = np.random.default_rng(0).uniform(-1, 1, (3, 1, 32, 50)).astype(np.float32)
    other = np.random.default_rng(1).uniform(-1, 1, (1, 1, 32, 90)).astype(np.float32)

    async def ask(url: str) -> tuple[list[Answer], list[Answer]]:
        async with connect(url) as connection:
            together = await asyncio.gather(
                *(connection.infer("text_recognition_ragged", {"CROP": crop}) for crop in (crops, other))
            )
            rows = [await connection.infer("text_recognition_ragged", {"CROP": crop[None]}) for crop in crops]
            with pytest.raises(RequestFailedError, match=r"rows|batch size"):
                await connection.infer("ragged_encoder", {"TOKENS": np.ones((2, 5), dtype=np.int32)})
        return together, rows

    models = ("text_recognition_ragged", "ragged_encoder")
    with launch(Settings(models=models)) as server:
        together, rows = asyncio.run(ask(server.grpc_url))
    assert together[1]["LOGITS"].shape[0] == 1
    alone = np.concatenate([row["LOGITS"].astype(np.float32) for row in rows])
    assert alone.shape == (3, 13, 37)
    assert np.allclose(together[0]["LOGITS"].astype(np.float32)[:, :13], alone, atol=1e-4)
