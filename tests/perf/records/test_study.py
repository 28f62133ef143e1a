import math
import re
from dataclasses import replace
from pathlib import Path

from studies import study

from perf.records.resource_use import Limits, ResourceUse
from perf.records.study import Study


def test_a_study_with_unanswered_requests_reads_back_equal(tmp_path: Path) -> None:
    original = study()
    first = original.trials[0]
    original = replace(original, trials=(replace(first, latencies_us=(1.5, math.inf), due_s=(0.0, 0.5)),))
    path = original.write(tmp_path / "new" / "study.json")
    assert Study.read(path) == original
    assert '"latencies_us": [1.5, null]' in path.read_text()
    assert [file.name for file in path.parent.iterdir()] == ["study.json"]


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
