"""The picture models on a real server: right answers, one error for one bad picture, and their metrics."""

import asyncio
import io
import re
import shutil
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from bench import Bench
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from picture_files import BAD, COLOURS, picture
from PIL import Image
from tiny_models import save
from unchecked import connect

from clients.errors import InvalidInputError, RequestFailedError
from clients.examples import classify, read_page
from export.__main__ import main as export
from export.repository import REPOSITORY
from serve.launcher import Server
from serve.management.statistics import Counters

pytestmark = pytest.mark.server
PAGES = Path(read_page.__file__).parents[1] / "pages"
PIPELINES = ("image_classification", "image_classification_bls")
MEAN, DEVIATION = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])


def colour_classifier(repository: Path) -> None:
    """Replaces resnet50: logit c is the mean of channel c for c < 3, and -100 for the other classes."""
    weights = np.zeros((3, 1000), dtype=np.float32)
    weights[range(3), range(3)] = 1
    bias = np.full(1000, -100, dtype=np.float32)
    bias[:3] = 0
    graph = helper.make_graph(
        [
            helper.make_node("GlobalAveragePool", ["input"], ["pooled"]),
            helper.make_node("Flatten", ["pooled"], ["means"]),
            helper.make_node("Gemm", ["means", "weights", "bias"], ["output"]),
        ],
        "resnet50",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", 3, 224, 224])],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, ["batch", 1000])],
        [numpy_helper.from_array(weights, "weights"), numpy_helper.from_array(bias, "bias")],
    )
    save(
        repository,
        "resnet50",
        graph,
        'max_batch_size: 32\ninput [ { name: "input" data_type: TYPE_FP32 dims: [ 3, 224, 224 ] } ]\n'
        'output [ { name: "output" data_type: TYPE_FP32 dims: [ 1000 ] } ]\ndynamic_batching { }',
    )


@pytest.fixture(scope="module")
def pipelines(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The model folders copied alone, with a classifier whose answers are known."""
    repository = tmp_path_factory.mktemp("models")
    for model in ("image_preprocess", "image_postprocess", *PIPELINES):
        shutil.copytree(REPOSITORY / model, repository / model, ignore=shutil.ignore_patterns("__pycache__"))
    colour_classifier(repository)
    with bench.serving(PIPELINES, repository) as server:
        yield server


async def ask(url: str, model: str, contents: Sequence[bytes]) -> list[dict[str, NDArray[np.generic]] | Exception]:
    """One request of one row for each content, all at once."""
    async with connect(url) as connection:
        await connection.check(model)
        tensors = [np.array([[content]], dtype=np.object_) for content in contents]
        sent = (connection.infer(model, {"PICTURE": tensor}, timeout_s=20) for tensor in tensors)
        return await asyncio.gather(*sent, return_exceptions=True)  # type: ignore[return-value]


def metric(server: Server, name: str, **labels: str) -> float:
    """One sample of /metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    for line in lines:
        sample = re.fullmatch(rf"{name}\{{(.*)\}} (\S+)", line)
        if sample and labels.items() <= dict(re.findall(r'(\w+)="([^"]*)"', sample[1])).items():
            return float(sample[2])
    raise AssertionError(f"{name} {labels} is not among the metrics")


@pytest.mark.parametrize("model", PIPELINES)
def test_bad_pictures_among_good_ones(pipelines: Server, model: str) -> None:
    names = [*COLOURS] * 11
    contents = [picture(name, noise=number) for number, name in enumerate(names[:32])]
    bad = [content for content, _, _ in BAD.values()]
    mixed = [*contents[:9], bad[0], *contents[9:17], bad[1], bad[2], *contents[17:30], bad[3], *contents[30:]]
    asyncio.run(ask(pipelines.grpc_url, model, contents[:1]))
    answers = asyncio.run(ask(pipelines.grpc_url, model, mixed))
    good = [answer for answer, content in zip(answers, mixed, strict=True) if content not in bad]
    right = [list(COLOURS).index(name) for name in names[:32]]
    assert [int(answer["CLASS"][0, 0]) for answer in good if isinstance(answer, dict)] == right
    refused = [answer for answer, content in zip(answers, mixed, strict=True) if content in bad]
    for answer, (_, _, message) in zip(refused, BAD.values(), strict=True):
        assert isinstance(answer, InvalidInputError)
        assert message in str(answer)


def test_the_pixels_are_those_of_torchvision(pipelines: Server) -> None:
    content = picture("green", size=(300, 512), kind="PNG", noise=7)
    (answer,) = asyncio.run(ask(pipelines.grpc_url, "image_preprocess", [content]))
    assert isinstance(answer, dict)
    image = Image.open(io.BytesIO(content))
    scaled = image.resize((256, round(512 * 256 / 300)), Image.Resampling.BILINEAR)
    top = round((scaled.height - 224) / 2)
    cropped = np.asarray(scaled.crop((16, top, 240, top + 224)), dtype=np.float64) / 255
    expected = ((cropped - MEAN) / DEVIATION).transpose(2, 0, 1)
    pixels = answer["PIXELS"][0]
    assert pixels.shape == (3, 224, 224)
    # Scaling the crop alone differs at most in how the grid of pixels lies: noise of 20 in 255 is averaged.
    assert np.abs(pixels - expected).mean() < 0.12
    assert np.abs(pixels.mean(axis=(1, 2)) - expected.mean(axis=(1, 2))).max() < 0.01


def test_several_pictures_in_one_request_and_one_of_them_bad(pipelines: Server) -> None:
    async def send(contents: Sequence[bytes]) -> dict[str, NDArray[np.generic]]:
        async with connect(pipelines.grpc_url) as connection:
            rows = np.array([[content] for content in contents], dtype=np.object_)
            return await connection.infer("image_classification", {"PICTURE": rows})

    good = [picture(name) for name in COLOURS]
    answer = asyncio.run(send(good))
    assert answer["CLASS"][:, 0].tolist() == [0, 1, 2]
    assert answer["LABEL"][:, 0].tolist() == [b"class_000", b"class_001", b"class_002"]
    assert answer["PROBABILITY"].shape == (3, 5)
    assert (np.diff(answer["PROBABILITY"], axis=1) <= 0).all()
    with pytest.raises(RequestFailedError, match="PICTURE 1: 0 bytes"):
        asyncio.run(send([good[0], b""]))


def test_decode_failures_and_batch_sizes_are_metrics(pipelines: Server) -> None:
    before = {kind: metric(pipelines, "picture_decode_failures", reason=kind) for _, kind, _ in BAD.values()}
    mine = {"model": "image_preprocess"}
    counted = [metric(pipelines, f"batch_hooks_rows_{part}", **mine) for part in ("sum", "count")]
    failed = metric(pipelines, "batch_hooks_failed_requests", blame="request", **mine)
    executed = Counters.read(pipelines.grpc_url, "image_preprocess")
    asyncio.run(ask(pipelines.grpc_url, "image_preprocess", [content for content, _, _ in BAD.values()] * 2))
    for kind, value in before.items():
        assert metric(pipelines, "picture_decode_failures", reason=kind) == value + 2
    rows, executions = (metric(pipelines, f"batch_hooks_rows_{part}", **mine) for part in ("sum", "count"))
    assert rows - counted[0] == 8
    assert metric(pipelines, "batch_hooks_failed_requests", blame="request", **mine) == failed + 8
    own = Counters.read(pipelines.grpc_url, "image_preprocess") - executed
    # Triton counts what a Python model refuses as answered, so these metrics are the only place that tells.
    assert (own.requests, own.failed_requests, own.rows) == (8, 0, 8)
    assert own.executions == executions - counted[1]
    assert metric(pipelines, "batch_hooks_rows_bucket", le="+Inf", **mine) == executions
    assert metric(pipelines, "picture_decode_workers", **mine) >= 1


def test_the_client_prints_a_line_for_each_class_and_one_for_a_corrupt_picture(
    pipelines: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = tmp_path / "good.jpg", tmp_path / "bad.jpg"
    good.write_bytes(picture("blue"))
    bad.write_bytes(BAD["truncated"][0])
    assert classify.main([str(good), "--url", pipelines.grpc_url]) == 0
    printed = capsys.readouterr().out
    assert "class_002" in printed.splitlines()[0]
    assert len(printed.splitlines()) == 5
    assert classify.main([str(good), str(bad), str(tmp_path / "none.jpg"), "--url", pipelines.grpc_url]) == 1
    printed = capsys.readouterr().out
    assert "class_002" in printed
    assert "Send the whole file" in printed
    assert "none.jpg: cannot be read (No such file" in printed


def test_a_model_for_something_else_is_refused(pipelines: Server, capsys: pytest.CaptureFixture[str]) -> None:
    page = str(PAGES / "page.png")
    assert read_page.main([page, "--url", pipelines.grpc_url, "--model", "image_classification"]) == 2
    assert "Name a model like text_reading" in capsys.readouterr().err


@pytest.fixture(scope="module")
def reader(bench: Bench) -> Iterator[Server]:
    assert export(["text_recognition_ragged"]) == 0
    with bench.serving(("text_reading",), config_name="dynamic") as server:
        yield server


def test_the_sample_page_is_read(reader: Server, capsys: pytest.CaptureFixture[str]) -> None:
    before = Counters.read(reader.grpc_url, "text_recognition_ragged")
    assert read_page.main([str(PAGES / "page.png"), "--url", reader.grpc_url]) == 0
    printed = capsys.readouterr().out.split("\n")
    expected = (PAGES / "page.txt").read_text().split("\n")
    assert len(printed) == len(expected)
    right = total = 0
    for line, expected_line in zip(printed, expected, strict=True):
        words, left = expected_line.split(), line.split()
        total += len(words)
        for word in words:
            if word in left:
                left.remove(word)
                right += 1
    print(f"{right} of {total} words")
    assert right >= 0.95 * total
    counted = Counters.read(reader.grpc_url, "text_recognition_ragged") - before
    assert abs(counted.rows - total) <= 2
    assert counted.rows_per_execution >= 6  # of at most 8, whatever their widths


def test_pages_fail_alone_and_an_empty_page_has_no_words(reader: Server, tmp_path: Path) -> None:
    Image.new("L", (200, 100), 255).save(tmp_path / "empty.png")
    (tmp_path / "broken.png").write_bytes(BAD["bomb"][0])
    files = [PAGES / "page.png", tmp_path / "empty.png", tmp_path / "broken.png"]
    page, empty, broken = asyncio.run(read_page.read_pages(files, url=reader.grpc_url))
    assert isinstance(page, list)
    assert page[0] == "reading a page in one batch"
    assert empty == []
    assert "Send a smaller picture" in str(broken)


def test_mistakes_end_with_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    for program in (classify, read_page):
        assert program.main(["nothing.png", "--url", "127.0.0.1:9"]) == 2
        assert "no gRPC server answers there" in capsys.readouterr().err
