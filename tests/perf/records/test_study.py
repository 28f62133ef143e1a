import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from studies import study

from perf.records.file import RecordError
from perf.records.resource_use import Limits, ResourceUse
from perf.records.study import Study, is_study


def test_a_study_with_unanswered_requests_reads_back_equal(tmp_path: Path) -> None:
    original = study()
    first = original.trials[0]
    original = replace(original, trials=(replace(first, latencies_us=(1.5, math.inf), due_s=(0.0, 0.5)),))
    path = original.write(tmp_path / "new" / "study.json")
    assert Study.read(path) == original
    assert '"latencies_us": [1.5, null]' in path.read_text()
    assert [file.name for file in path.parent.iterdir()] == ["study.json"]


def test_sizes_and_infinite_percentiles_read_back_as_numbers(tmp_path: Path) -> None:
    original = study()
    never = replace(original.predictions[0], percentiles_ms={50: 1.5, 99: math.inf})
    original = replace(original, predictions=(never, *original.predictions[1:]))
    stored = Study.read(original.write(tmp_path / "study.json"))
    assert stored.predictions[0].percentiles_ms == {50: 1.5, 99: math.inf}
    assert stored.trials[0].counted == original.trials[0].counted


def test_a_trial_holds_what_makes_it_the_same_trial(tmp_path: Path) -> None:
    original = study()
    first = replace(original.trials[0], planned_s=5.0, warm_up_s=1.0, load_sha256="ab" * 32)
    path = replace(original, trials=(first,)).write(tmp_path / "study.json")
    assert Study.read(path).trials == (first,)
    # Older records have none of it, and read nevertheless.
    text = path.read_text()
    for name in ("planned_s", "warm_up_s", "load_sha256"):
        text, count = re.subn(rf',?\s*"{name}": [^,}}\n]+', "", text)
        assert count == 1
    path.write_text(text)
    assert Study.read(path).trials == (replace(first, planned_s=None, warm_up_s=None, load_sha256=""),)


def test_a_trial_holds_what_the_server_used(tmp_path: Path) -> None:
    original = study()
    used = ResourceUse(server_cores=1.5, server_memory_mib=412.0, gpu_busy=0.25, gpu_memory_mib=5120.0)
    assert str(used) == "1.50 cores, 412.0 MiB of memory, GPUs 25% busy, 5,120.0 MiB of GPU memory"
    assert str(ResourceUse()) == ""
    first = replace(original.trials[0], used=used)
    path = replace(original, trials=(first,)).write(tmp_path / "study.json")
    assert Study.read(path).trials == (first,)
    # Older records have none of it, and read nevertheless.
    text, count = re.subn(r',?\s*"used": \{[^}]+\}', "", path.read_text())
    assert count == 1
    path.write_text(text)
    assert Study.read(path).trials == (replace(first, used=ResourceUse()),)


def test_a_study_holds_its_limits_and_older_ones_have_none(tmp_path: Path) -> None:
    original = replace(study(), limits=Limits(server_cores=1.5))
    path = original.write(tmp_path / "study.json")
    assert Study.read(path) == original
    text, count = re.subn(r',?\s*"limits": \{[^}]+\}', "", path.read_text())
    assert count == 1
    path.write_text(text)
    assert Study.read(path) == study()


def test_several_uses_are_one_by_what_is_known() -> None:
    uses = [ResourceUse(server_cores=cores, gpu_busy=busy) for cores, busy in ((1.0, None), (3.0, 0.5), (2.0, None))]
    assert ResourceUse.of(uses, max) == ResourceUse(server_cores=3.0, gpu_busy=0.5)
    assert ResourceUse.of(uses, min) == ResourceUse(server_cores=1.0, gpu_busy=0.5)
    assert ResourceUse.of([], max) == ResourceUse()


def test_infeasible_studies_read_back(tmp_path: Path) -> None:
    original = replace(study(), chosen=None, trials=(), predictions=(), steps=())
    assert Study.read(original.write(tmp_path / "s.json")) == original


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('"format": 1', '"format": 2', "its format is 2, and this version reads format 1. Remove it and tune again"),
        ('"kind": "study"', '"kind": "record"', "not a record of kind 'study' but one of kind 'record'."),
    ],
)
def test_a_record_of_another_kind_or_format_is_refused(tmp_path: Path, before: str, after: str, message: str) -> None:
    path = study().write(tmp_path / "study.json")
    path.write_text(path.read_text().replace(before, after, 1))
    with pytest.raises(RecordError, match=re.escape(message)):
        Study.read(path)


def test_only_a_study_is_taken_for_a_study(tmp_path: Path) -> None:
    assert is_study(study().write(tmp_path / "study.json"))
    for text in ("[]", "{}", "no json", '{"kind": "record"}'):
        (tmp_path / "other.json").write_text(text)
        assert not is_study(tmp_path / "other.json")
    assert not is_study(tmp_path / "none.json")
