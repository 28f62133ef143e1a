"""What `perf.why` advises where the model's graph decides."""

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from perf.simulate.batcher.request import MS
from perf.simulate.batcher.request_source import Arrivals
from perf.simulate.batcher.rules import Rules
from perf.why.changes import diagnose
from tests.perf.why.test_why import LENGTHS, X, burst


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
