"""The page of a diagnosis: each execution is a box in the colour of its rule, each request a line while it waits."""

from collections import Counter
from pathlib import Path

import pytest
from charts import rows
from tritonclient.grpc.model_config_pb2 import ModelConfig

from perf.report.figure import Figure, Palette
from perf.simulate.batcher.mix import Mix
from perf.simulate.batcher.request import MS
from perf.simulate.batcher.rules import Rules
from perf.why import page
from perf.why.__main__ import main
from perf.why.changes import diagnose

SHAPE = "the next request has another shape of INPUT"
LAST = "nothing else waited when the instance took it"


def figure(count: int, sizes: tuple[int, ...]) -> Figure:
    """The timeline of so many requests at once, of these lengths in turn; an execution takes 10 ms."""
    config = ModelConfig(name="m", max_batch_size=4, dynamic_batching={})
    config.input.add(name="INPUT", data_type="TYPE_FP32", dims=[-1])
    rules = Rules.of(config)
    mix = Mix(sizes=sizes, count=count, rows=1, concurrency=0, per_second=0)
    diagnosis = diagnose(config, rules, lambda _: 10 * MS, lambda: mix.load(config))
    (drawn,) = page.sections(diagnosis, Palette.of([SHAPE, LAST]), "10 ms")[0].figures
    return drawn


def test_each_box_is_an_execution_with_its_rule() -> None:
    """Lengths 1, 1, 2, 2, 1, 1 at once: three executions of two requests, which other lengths close, but the last."""
    now = [box for box in rows(figure(6, (1, 1, 2, 2, 1, 1)), "rect") if box["rows"] == "2 of 4"][:3]
    assert [(box["configuration"], box["x"], box["x2"]) for box in now] == [
        (SHAPE, 0, 10),
        (SHAPE, 10, 20),
        (LAST, 20, 30),
    ]
    assert [box["last request, then the next"] for box in now] == [
        "[1] then [2]",
        "[2] then [1]",
        "no other request waited",
    ]
    # Boxes are below each other, over their own requests.
    assert [box["y2"] - box["y"] for box in now] == [2, 2, 2]
    assert now[0]["y2"] == now[1]["y"]


def test_each_line_is_a_request_from_its_arrival_to_its_execution() -> None:
    waits = rows(figure(6, (1, 1, 2, 2, 1, 1)), "bar")[:6]
    assert [wait["waited"] for wait in waits] == ["0.0 ms", "0.0 ms", "10.0 ms", "10.0 ms", "20.0 ms", "20.0 ms"]
    assert Counter(wait["shapes"] for wait in waits) == {"INPUT [1]": 4, "INPUT [2]": 2}


def test_a_long_replay_shows_its_first_requests_and_says_so() -> None:
    drawn = figure(200, (1, 2))
    band = [wait for wait in rows(drawn, "bar") if wait["request"].endswith(f"of {page.SHOWN}")]
    assert len(band) in (page.SHOWN, 2 * page.SHOWN)
    assert f"the first {page.SHOWN} of 200 requests" in drawn.caption


def test_the_program_writes_a_page_and_refuses_one_beside_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "why.html"
    arguments = ["python_batched_service", "--config-name", "separate", "--mix", "20,30", "--count", "20"]
    assert main([*arguments, "--html", str(path)]) == 0
    assert f"written: {path}" in capsys.readouterr().out
    text = path.read_text()
    assert "What one change would do" in text
    assert "allow_ragged_batch: true on INPUT" in text
    assert main([*arguments, "--html", str(path), "--format", "json"]) == 2
    assert capsys.readouterr().err.startswith("--html does nothing with --format json")
