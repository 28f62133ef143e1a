from collections.abc import Callable
from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

from export.repository import config_file, model_folder, read_config, variants
from perf.records.candidate import THREADS, Candidate
from perf.tune import tuned_file
from perf.tune.tuned_file import Why, WriteError
from perf.tune.writing import keep
from serve.doctor.document import Document

COMMAND = "python -m perf.tune m --p99-ms 50"
WHY = Why(
    headline="Measured: p99 40 ms at 650 rows/s under closed:16.",
    reasons={"max_batch_size": "650 rows/s with it, 480 without", "instances": "650 rows/s with it, 330 without"},
)
# Every form in which a value may stand: on a line of its own, among others, written with its default, and not at all.
TEXT = """# A model of mine.
name: "m"
backend: "python"
max_batch_size: 8  # rows
input [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 1 ] } ]
dynamic_batching {
  # a millisecond
  max_queue_delay_microseconds: 1000
  preferred_batch_size: [ 4, 8 ]
  default_queue_policy { max_queue_size: 100 }
}
parameters [
  { key: "other" value { string_value: "1" } },
  { key: "intra_op_thread_count" value: { string_value: "4" } }
]
instance_group [ { kind: KIND_CPU count: 1 } ]  # one
"""


MEASURED = "p99 40.74 ms at 926.5 rows/s under closed:32"


def tuned_text(text: str, candidate: Candidate) -> str:
    return tuned_file.tuned(Document(path=Path("m/config.pbtxt"), text=text), candidate, WHY, COMMAND)


def config(text: str) -> ModelConfig:
    return text_format.Parse(text, ModelConfig())


def test_every_changed_value_has_a_reason_above_it(golden: Callable[..., None]) -> None:
    """The limit of the queue is the file's own, or one that is added."""
    changed = tuned_text(TEXT, Candidate(max_batch_size=32, delay_us=0, instances=2, threads=2))
    short = tuned_text('name: "m"\nmax_batch_size: 4\n', Candidate(max_batch_size=16, delay_us=500, instances=2))
    assert Candidate.of(config(short)) == Candidate(max_batch_size=16, delay_us=500, instances=2)
    golden("tune_file", f"{changed}\n{short}", masks={"(Digest of the lines below: ).*": r"\1DIGEST"})


@pytest.mark.parametrize(
    "candidate",
    [
        Candidate(max_batch_size=8, delay_us=1000, threads=4, preferred=(4, 8)),
        Candidate(max_batch_size=32, delay_us=0, instances=2, threads=2),
        Candidate(max_batch_size=16, delay_us=2500, instances=3, threads=4, preferred=(8, 16)),
    ],
)
def test_only_the_tuned_values_of_the_text_change(candidate: Candidate) -> None:
    text = tuned_text(TEXT, candidate)
    parsed = config(text)
    assert Candidate.of(parsed) == candidate
    assert [group.kind for group in parsed.instance_group] == [ModelInstanceGroup.KIND_CPU]
    rest = [config(TEXT), parsed]
    for parsed_config in rest:
        for name in ("max_batch_size", "instance_group"):
            parsed_config.ClearField(name)
        parsed_config.dynamic_batching.ClearField("max_queue_delay_microseconds")
        parsed_config.dynamic_batching.ClearField("preferred_batch_size")
        del parsed_config.parameters[THREADS]
    assert rest[0] == rest[1]
    for comment in ("# A model of mine.", "# rows", "# a millisecond", "# one"):
        assert text.count(comment) == 1


def test_only_a_file_of_its_own_is_overwritten(tmp_path: Path) -> None:
    candidate = Candidate(max_batch_size=8)
    path = tuned_file.write(tmp_path, tuned_text(TEXT, candidate), force=False)
    assert path == tmp_path / "configs" / "tuned.pbtxt"
    assert tuned_file.write(tmp_path, tuned_text(TEXT, Candidate(max_batch_size=16)), force=False) == path

    path.write_text(path.read_text().replace("max_batch_size: 16", "max_batch_size: 12"))
    with pytest.raises(WriteError, match=r"tuned\.pbtxt: was written or changed by hand"):
        tuned_file.write(tmp_path, tuned_text(TEXT, candidate), force=False)
    assert "max_batch_size: 12" in path.read_text()
    tuned_file.write(tmp_path, tuned_text(TEXT, candidate), force=True)
    assert tuned_file.is_ours(path.read_text())


def test_a_replaced_file_is_described_and_copied(tmp_path: Path) -> None:
    model, records = tmp_path / "repository" / "m", tmp_path / "records"
    path = model / "configs" / "tuned.pbtxt"
    why = Why(
        headline=f"Measured: {MEASURED}. Now it is limited by compute: {'the instances are full ' * 9}.", reasons={}
    )
    before = Document(path=Path("m/config.pbtxt"), text=TEXT)
    texts = [tuned_file.tuned(before, Candidate(max_batch_size=size), why, COMMAND) for size in (8, 16)]
    assert keep(path, texts[0], records) is None
    tuned_file.write(model, texts[0], force=False)
    # The same lines of another command are the same configuration.
    assert keep(path, tuned_file.headed(tuned_file.body(texts[0]), COMMAND + " --points 9"), records) is None
    assert not records.exists()

    previous = keep(path, texts[1], records)
    assert previous is not None
    assert previous.description == f"max 8, 0 ms, 1 instance, 4 threads, {MEASURED}, by {COMMAND}"
    assert previous.copy.read_text() == texts[0]
    assert previous.copy == records / f"m.tuned.{texts[0].splitlines()[1].split()[-1]}.pbtxt"
    assert variants(model) == ["tuned"]

    path.write_text(texts[0].replace("# rows", "# of mine"))
    by_hand = keep(path, texts[1], records)
    assert by_hand is not None
    assert by_hand.description == "a file that was written or changed by hand"
    assert by_hand.copy.read_text() == path.read_text()
    assert len(list(records.iterdir())) == 2


@pytest.mark.parametrize("model", ["simulated_accelerator", "ranker"])
@pytest.mark.parametrize("variant", [None, "baseline"])
def test_the_doctor_finds_nothing_in_a_tuned_configuration(model: str, variant: str | None) -> None:
    folder = model_folder(model)
    path = config_file(folder, variant)
    threads = 1 if model == "ranker" else None
    candidate = Candidate(max_batch_size=32, delay_us=2600, instances=2, threads=threads)
    text = tuned_file.tuned(Document.read(path), candidate, WHY, COMMAND)
    tuned_file.check(text, read_config(path), candidate)
    assert tuned_file.findings(folder, text, target_ms=50) == []


def test_findings_of_the_current_configuration_are_not_new(tmp_path: Path) -> None:
    """A file without a limit to its queue is finding B215, before and after."""
    folder = tmp_path / "m"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(
        "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"
    )
    (folder / "1" / "queue_limit.py").touch()
    before = TEXT.replace("  default_queue_policy { max_queue_size: 100 }\n", "")
    (folder / "config.pbtxt").write_text(before)
    text = tuned_text(before, Candidate(max_batch_size=16, delay_us=1000))
    assert "B215" in {finding.code for finding in tuned_file.findings(folder, text, target_ms=50)}
    assert tuned_file.news(folder, before, text, target_ms=50) == []
    late = tuned_text(before, Candidate(max_batch_size=16, delay_us=60_000))
    assert [finding.code for finding in tuned_file.news(folder, before, late, target_ms=50)] == ["B206"]
