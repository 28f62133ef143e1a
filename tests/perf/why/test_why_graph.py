"""What `perf.why` advises where the model's graph decides, and what `--prove` measures."""

import json
from pathlib import Path

import pytest
from google.protobuf import text_format
from padded_models import encoder
from tritonclient.grpc.model_config_pb2 import ModelConfig

from perf.simulate.batcher.request import MS
from perf.simulate.batcher.request_source import Arrivals
from perf.simulate.batcher.rules import Rules
from perf.why.__main__ import main
from perf.why.changes import diagnose
from tests.perf.why.test_why import LENGTHS, X, burst


def test_ragged_is_proposed_only_where_the_graph_takes_flat_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An encoder that takes [batch, length] would not load with allow_ragged_batch (R305)."""
    encoder(
        tmp_path,
        "m",
        backend="onnxruntime",
        parameters="",
        inputs='input [ { name: "tokens" data_type: TYPE_INT64 dims: [ -1 ] } ]\n',
    )
    words = ["m", "--repository", str(tmp_path), "--mix", "20,30,40", "--format", "json"]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["best"] == "export.add --variable-length: the server pads tokens"


def test_without_the_graph_batch_inputs_tell_a_flat_one() -> None:
    # Full batches: what is left of a burst would wait for the delay.
    requests = burst(48, shapes=[{"X": (length,)} for length in (20, 30, 40)])
    offsets = 'batch_input { kind: BATCH_ELEMENT_COUNT target_name: "N" data_type: TYPE_INT32 source_input: "X" }'
    texts = {}
    for more in ("", offsets):
        parsed = text_format.Parse(f'name: "m" backend: "onnxruntime" {X}{LENGTHS} {more}', ModelConfig())
        best = diagnose(parsed, Rules.of(parsed), lambda rows: 10 * MS, lambda: Arrivals(requests)).best
        assert best is not None
        texts[more] = best.change.text
    assert texts[""].startswith("export.add --variable-length")
    assert texts[offsets] == "allow_ragged_batch: true on X"


@pytest.mark.server
def test_advice_is_tried_on_a_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The padded copy of an encoder loads, and executions have more rows than those of equal length."""
    encoder(
        tmp_path,
        "m",
        backend="onnxruntime",
        parameters="",
        inputs='input [ { name: "tokens" data_type: TYPE_INT64 dims: [ -1 ] }, '
        '{ name: "mask" data_type: TYPE_INT64 dims: [ -1 ] } ]\n',
    )
    path = tmp_path / "m" / "config.pbtxt"
    path.write_text(path.read_text().replace("{ max_queue_delay_microseconds: 2000000 }", "{ }"))
    words = ["m", "--repository", str(tmp_path), "--mix", "20,25,30", "--concurrency", "12", "--service-ms", "1"]
    assert main([*words, "--prove"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "on a server, 12 clients, 4 rounds in turns" in printed
    assert "does not load" not in printed
    assert main([*words[:-4], "--prove"]) == 2
    assert "Give --concurrency 16 too" in capsys.readouterr().err
