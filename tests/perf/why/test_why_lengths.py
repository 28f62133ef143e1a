"""What `perf.why` predicts for each way to let requests of different length share a batch."""

import json
from pathlib import Path

import pytest
from padded_models import encoder

from perf.simulate.batcher.request import Request
from perf.why.__main__ import main
from perf.why.lengths import Lengths

TOKENS = 'input [ { name: "tokens" data_type: TYPE_INT64 dims: [ -1 ] } ]\n'


def request(number: int, *shape: int, rows: int = 1) -> Request:
    return Request(number=number, at=0, rows=rows, shapes={"X": shape})


def lengths(*requests: Request) -> Lengths:
    return Lengths.of(["X"], requests)


def test_what_an_execution_computes() -> None:
    """Two rows of 3 and one of 10: 16 own elements, 30 padded to the longest, 48 to 16, 60 to the longest of all."""
    batch = [request(1, 3, rows=2), request(2, 10)]
    read = lengths(*batch, request(3, 20))
    assert (read.own(batch), read.longest(batch)) == (16, 30)
    assert (read.bucketed(batch), read.maximum(batch)) == (48, 60)
    assert read.buckets == [4, 16, 32]
    assert read.mean == pytest.approx(36 / 4)


def changes(tmp_path: Path, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, dict[str, float]]:
    if not (tmp_path / "m").exists():
        encoder(tmp_path, "m", backend="onnxruntime", parameters="", inputs=TOKENS)
        path = tmp_path / "m" / "config.pbtxt"
        path.write_text(path.read_text().replace("{ max_queue_delay_microseconds: 2000000 }", "{ }"))
    words = ["m", "--repository", str(tmp_path), "--format", "json", *options]
    assert main(words) == 0
    return {each["change"]: each for each in json.loads(capsys.readouterr().out)["changes"]}


PADDED, BUCKETS = (
    "export.add --variable-length: the server pads tokens",
    "export.add --variable-length and pad_lengths: ",
)


def test_each_way_has_its_predicted_gain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """160 at once, 16 to an execution of 2 ms and 1 ms for each mean row: ten in turn take 5.5 of one on average."""
    found = changes(tmp_path, capsys, "--mix", "10,20,30,100", "--count", "160", "--service-ms", "2+1")
    padded, buckets, clients = (
        found[PADDED],
        found[BUCKETS + "16 32 128"],
        found["the clients pad to tokens [100]"],
    )
    assert padded["rows_per_execution"] == buckets["rows_per_execution"] == clients["rows_per_execution"] == 16
    # 16 rows of 100 elements are 40 of the mean, 40; 128 elements are 51.2.
    assert padded["mean_latency_ms"] == clients["mean_latency_ms"] == pytest.approx(5.5 * 42, abs=0.1)
    assert buckets["mean_latency_ms"] == pytest.approx(5.5 * 53.2, abs=0.1)
