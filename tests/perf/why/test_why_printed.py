"""What `perf.why` prints: its answers, what it does not cover, and mistakes."""

from collections.abc import Callable
from pathlib import Path

import pytest
from padded_models import encoder

from perf.why.__main__ import main
from tests.perf.why.test_why import LENGTHS, ONE, X, folder

FIXED = X.replace("-1", "4")
SMALL = "max_batch_size: 4 dynamic_batching { } " + ONE
ANSWERS = {
    "lengths": (X + LENGTHS, "--mix 20,30,40 --concurrency 16"),
    # Every delay but the one of now does the same to a burst.
    "same_outcome": (FIXED + LENGTHS, "--service-ms 10"),
    "full": (X + LENGTHS, "--mix 20 --concurrency 16"),
    "time_assumed": (SMALL, "--concurrency 64"),
    "time_given": (SMALL, "--concurrency 64 --service-ms 10+0.1"),
    "no_batches": (ONE, ""),
    "leave_it": (FIXED + "max_batch_size: 16 dynamic_batching { } " + ONE, "--concurrency 16 --service-ms 0.495+0.928"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Callable[..., None], name: str) -> None:
    text, words = ANSWERS[name]
    assert main([*folder(tmp_path, text), *words.split()]) == 0
    golden(f"why_{name}", capsys.readouterr().out)


def test_an_answer_for_a_graph_that_pads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Callable[..., None]
) -> None:
    inputs = 'input [ { name: "tokens" data_type: TYPE_INT64 dims: [ -1 ] } ]\n'
    encoder(tmp_path, "m", backend="onnxruntime", parameters="", inputs=inputs)
    page = tmp_path / "why.html"
    words = "--concurrency 16 --mix 10,30 --service-ms 2+1"
    assert main(["m", "--repository", str(tmp_path), *words.split(), "--html", str(page)]) == 0
    golden("why_padding", capsys.readouterr().out)
    assert "What one change would do" in page.read_text()


def test_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Callable[..., None]) -> None:
    said = []

    def refused(call: list[str], words: str) -> None:
        try:
            status: int | str | None = main([*call, *words.split()])
        except SystemExit as ended:
            status = ended.code
        output = capsys.readouterr()
        assert (status, output.out) == (2, ""), words
        said.append(f"$ why m {words}\n{output.err}")

    (tmp_path / "lengths").mkdir()
    lengths = folder(tmp_path / "lengths", X + LENGTHS)
    for words in (
        "",
        "--mix a",
        "--mix 20 --rows 17",
        "--mix 20 --service-ms fast",
        "--mix 20 --service-ms 1=5,1=6",
        "--config-name none",
        "--live localhost:1",
        "--live localhost:1 --gpus 1",
        "--live localhost:1 --mix 20",
        "--mix 20 --seconds 5",
        "--requests F --count 5",
        "--mix 20 --html page.html --format json",
        "--per-second 1e-300",
        "--seconds nan",
    ):
        refused(lengths, words)
    for name, text in (
        ("fixed", FIXED + LENGTHS),
        ("sequences", X + "max_batch_size: 4 sequence_batching { oldest { } }"),
        (
            "decoupled",
            X + "max_batch_size: 4 dynamic_batching { } model_transaction_policy { decoupled: true }",
        ),
        ("policy", X + SMALL + ' parameters { key: "batch_policy" value { string_value: "aimd" } }'),
        ("library", X + LENGTHS),
    ):
        (tmp_path / name).mkdir()
        call = folder(tmp_path / name, text)
        if name == "library":
            (tmp_path / name / "m" / "1").mkdir()
            (tmp_path / name / "m" / "1" / "batchstrategy.so").touch()
        refused(call, "--mix 20,30 --service-ms 10")
    golden("why_mistakes", "".join(said))


def test_lines_of_a_file_of_requests_that_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Callable[..., None]
) -> None:
    call, path, said = folder(tmp_path, X + LENGTHS), tmp_path / "requests.jsonl", []
    for line in (
        "{",
        "[1]",
        "[" * 100_000,
        '{"input": {}}',
        '{"inputs": []}',
        '{"inputs": {"Y": [1]}}',
        "{}",
        '{"inputs": {"X": [1, 2]}}',
        '{"inputs": {"X": "20"}}',
        '{"inputs": {"X": [true]}}',
        '{"inputs": {"X": {"shape": [2], "datatype": "FP32"}}}',
        '{"inputs": {"X": [2]}, "rows": 17}',
        '{"inputs": {"X": [2]}, "rows": 0}',
        '{"inputs": {"X": [2]}, "at_ms": -1}',
        '{"inputs": {"X": [2]}, "at_ms": 1790000000000}',
        '{"inputs": {"X": [2]}, "priority": "high"}',
        "\udcff",
    ):
        path.write_text('{"inputs": {"X": [1]}}\n' + line + "\n", errors="surrogateescape")
        assert main([*call, "--requests", str(path)]) == 2
        said.append(f"{line[:60]!r}\n{capsys.readouterr().err}")
    golden("why_requests", "".join(said))
