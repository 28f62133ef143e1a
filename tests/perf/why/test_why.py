"""What `perf.why` says of files and mixes."""

import json
from collections import Counter
from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from perf.simulate.batcher.payload import ClosingRule
from perf.simulate.batcher.request import MS, Request
from perf.simulate.batcher.request_source import Arrivals
from perf.simulate.batcher.rules import Rules
from perf.simulate.batcher.simulation import simulate
from perf.why.__main__ import main
from perf.why.changes import Diagnosis, diagnose
from perf.why.recording import Recording, clients, requests_of
from serve.management import traces

ONE = "instance_group [ { count: 1 } ] "
X = 'input [ { name: "X" data_type: TYPE_INT32 dims: [ -1 ] } ] '
LENGTHS = "max_batch_size: 16 dynamic_batching { max_queue_delay_microseconds: 500000 } " + ONE


def config(text: str) -> ModelConfig:
    return text_format.Parse('name: "m" backend: "python" ' + text, ModelConfig())


def folder(tmp_path: Path, text: str) -> list[str]:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.pbtxt").write_text('backend: "python"\n' + text)
    return ["m", "--repository", str(tmp_path)]


def studied(text: str, requests: list[Request], *, ms: int = 10) -> Diagnosis:
    parsed = config(text)
    return diagnose(parsed, Rules.of(parsed), lambda rows: ms * MS, lambda: Arrivals(requests))


def burst(count: int, *, shapes: list[dict[str, tuple[int, ...]]] | None = None, gap_ms: int = 0) -> list[Request]:
    shapes = shapes or [{"X": (4,)}]
    return [Request(number=n, at=n * gap_ms * MS, shapes=shapes[n % len(shapes)]) for n in range(count)]


def test_lengths_20_30_40_are_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The question of the ragged analysis: 200 requests of three lengths never share a batch of up to 16."""
    assert main([*folder(tmp_path, X + LENGTHS), "--mix", "20,30,40", "--format", "json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["now"]["sizes"] == {"1": 200}
    first = output["closed"][0]
    assert (first["rule"], first["inputs"], first["executions"]) == ("shape", ["X"], 199)
    assert first["met"] == {"[20] then [30]": 67, "[30] then [40]": 66, "[40] then [20]": 66}
    assert output["best"] == "allow_ragged_batch: true on X"
    ragged = next(change for change in output["changes"] if change["change"] == output["best"])
    assert ragged["executions"] == -(-200 // 16)
    assert ragged["rows_per_execution"] == pytest.approx(200 / 13, abs=1e-4)


@pytest.mark.parametrize("count", [100, 200])
def test_the_end_of_a_closed_loop_is_not_looked_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], count: int
) -> None:
    """When its last requests are out, 16 clients fill no batch any more, and what is left waits out 500 ms."""
    options = ["--mix", "20", "--count", str(count), "--concurrency", "16", "--service-ms", "10+0.2"]
    assert main([*folder(tmp_path, X + LENGTHS), *options, "--format", "json"]) == 0
    now = json.loads(capsys.readouterr().out)["now"]
    assert now["rows_per_execution"] == 16
    assert now["p99_latency_ms"] < 20


@pytest.mark.parametrize(
    ("text", "requests", "best"),
    [
        (X + "max_batch_size: 8 " + ONE, burst(64), "dynamic_batching { }"),
        (X + ONE, burst(64), "max_batch_size: 8 and dynamic_batching { }"),
        (
            X + "max_batch_size: 32 dynamic_batching { preferred_batch_size: [ 4 ] } " + ONE,
            burst(64),
            "no preferred_batch_size",
        ),
        (X + "max_batch_size: 4 dynamic_batching { } " + ONE, burst(64), "max_batch_size: 32"),
        (
            X + "max_batch_size: 4 dynamic_batching { preferred_batch_size: [ 4 ] } " + ONE,
            burst(64),
            "max_batch_size: 32 and preferred_batch_size: [32]",
        ),
        (
            X.replace("] }", "] optional: true }").replace("-1", "4") + "max_batch_size: 8 dynamic_batching { } " + ONE,
            burst(64, shapes=[{"X": (4,)}, {}]),
            "the same inputs in every request",
        ),
        (X + "max_batch_size: 4 dynamic_batching { } " + ONE, burst(20, gap_ms=50), None),
        (
            X + "max_batch_size: 4 dynamic_batching { max_queue_delay_microseconds: 40000 } " + ONE,
            burst(20, gap_ms=300),
            "max_queue_delay_microseconds: 0",
        ),
    ],
)
def test_the_change_that_helps_most(text: str, requests: list[Request], best: str | None) -> None:
    diagnosis = studied(text, requests)
    if best is None:  # only a delay as long as the gap makes batches, and that costs more than it gains
        assert diagnosis.best is None
        assert diagnosis.dearer is not None
        assert diagnosis.dearer.change.text.startswith("max_queue_delay_microseconds")
        assert diagnosis.costs(diagnosis.dearer) > 2
    else:
        assert diagnosis.best is not None
        assert diagnosis.best.change.text == best


def test_a_change_that_raises_the_latency_a_little_is_no_improvement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sixteen clients, 0.5 ms and 0.93 ms a row: with a delay all 16 run together, and each waits a little longer."""
    model = folder(tmp_path, X.replace("-1", "4") + "max_batch_size: 16 dynamic_batching { } " + ONE)
    call = [*model, "--concurrency", "16", "--count", "60", "--service-ms", "0.495+0.928"]
    assert main([*call, "--format", "json"]) == 0
    values = json.loads(capsys.readouterr().out)
    delays = [each for each in values["changes"] if each["change"].startswith("max_queue_delay")]
    more = [each for each in delays if each["rows_per_execution"] > 1.05 * values["now"]["rows_per_execution"]]
    assert more
    assert min(each["mean_latency_ms"] for each in more) > values["now"]["mean_latency_ms"]
    assert values["best"] is None


def test_a_queue_policy_that_makes_requests_wait_for_a_poll_goes() -> None:
    """Four requests come while the first runs: 350 ms after it ended the batcher looks again."""
    text = X + "max_batch_size: 8 dynamic_batching { default_queue_policy { max_queue_size: 100 } } " + ONE
    sent = [Request(number=n, at=(0, 120 * MS)[n > 0], shapes={"X": (4,)}) for n in range(5)]
    diagnosis = studied(text, sent, ms=150)
    assert [execution.start for execution in diagnosis.now.executions] == [0, 650 * MS]
    assert diagnosis.best is not None
    assert diagnosis.best.change.text == "no queue policy, no priority levels"
    assert [execution.start for execution in diagnosis.best.outcome.executions] == [0, 150 * MS]


def test_traces_become_requests(tmp_path: Path) -> None:
    def entries(number: int, queued: int, shape: str, model: str = "m") -> list[dict[str, object]]:
        stamps = {"REQUEST_START": queued - 1, "QUEUE_START": queued, "REQUEST_END": queued + 100}
        stamps["COMPUTE_START"] = queued + 30
        return [
            {"id": number, "model_name": model},
            *({"id": number, "timestamps": [{"name": name, "ns": ns}]} for name, ns in stamps.items()),
            {"id": number, "activity": "TENSOR_QUEUE_INPUT", "tensor": {"name": "X", "shape": shape}},
            {"id": number, "activity": "TENSOR_BACKEND_OUTPUT", "tensor": {"name": "Y", "shape": "1"}},
        ]

    entries_of_all = [*entries(7, 900, "2,30"), *entries(3, 500, "1,20"), *entries(4, 100, "1,5", model="other")]
    # The server still writes to the file: its last entry is not complete.
    (tmp_path / "trace.0").write_text(json.dumps(entries_of_all).removesuffix("]") + ',{"id":9,"model_name":"m')
    recorded = traces.read(tmp_path / "trace")
    requests, waited, spans = requests_of(recorded, "m", batched=True)
    assert [(each.at, each.rows, each.shapes) for each in requests] == [(0, 1, {"X": (20,)}), (400, 2, {"X": (30,)})]
    assert waited == 30
    assert spans == [(499, 600), (899, 1000)]
    assert requests_of(recorded, "m", batched=False)[0][1].shapes == {"X": (2, 30)}


def test_clients_that_wait_for_answers_are_recognised() -> None:
    waiting = [(start, start + 39) for start in range(0, 1000, 10)]  # four at a time, always
    assert clients(waiting) == 4
    # Twelve, of which tracing sees the first ones come and the last ones go.
    assert clients([(start, start + 479) for start in range(0, 2000, 40)]) == 12
    assert clients([(start, start + 5) for start in range(0, 1000, 100)]) == 0  # mostly nobody
    assert clients([(start, start + 5000) for start in range(0, 1000, 100)]) == 0  # none ended before the last came
    assert clients([]) == 0


def test_a_replay_begins_with_the_queue_that_was_there() -> None:
    """One request each 10 ms, as fast as they run, behind 12 that came untraced: the 13th is in the first batch."""
    rules = Rules.of(config(X + "max_batch_size: 16 dynamic_batching { } " + ONE))
    requests = burst(40, shapes=[{"X": (4,)}, {"X": (5,)}], gap_ms=10)
    closed = [
        Counter(
            execution.closing.rule for execution in simulate(rules, lambda rows: 10 * MS, traced.load(0)).executions
        )
        for traced in (Recording(requests=requests), Recording(requests=requests, waited=120 * MS))
    ]
    assert closed[0].most_common(1)[0][0] is ClosingRule.NOTHING_WAITED
    assert closed[1].most_common(1)[0][0] is ClosingRule.SHAPE
    delayed = Recording(requests=requests, waited=120 * MS).load(120 * MS)
    # The delay alone explains it.
    assert [request.at for request in delayed.arrivals()] == [request.at for request in requests]
