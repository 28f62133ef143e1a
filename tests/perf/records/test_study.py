import math
from dataclasses import replace
from pathlib import Path

import pytest
from studies import study

from perf.records.study import Study, StudyError, is_study


def test_a_study_reads_back_equal_with_what_was_never_answered(tmp_path: Path) -> None:
    written = study()
    first = written.trials[0]
    written = replace(written, trials=(replace(first, latencies_us=(1.5, math.inf), due_s=(0.0, 0.5)),))
    path = written.write(tmp_path / "new" / "study.json")
    assert Study.read(path) == written
    assert '"latencies_us": [1.5, null]' in path.read_text()
    assert [file.name for file in path.parent.iterdir()] == ["study.json"]


def test_sizes_and_percentiles_read_back_as_numbers_also_where_nothing_was_answered(tmp_path: Path) -> None:
    written = study()
    never = replace(written.predictions[0], percentiles_ms={50: 1.5, 99: math.inf})
    written = replace(written, predictions=(never, *written.predictions[1:]))
    found = Study.read(written.write(tmp_path / "study.json"))
    assert found.predictions[0].percentiles_ms == {50: 1.5, 99: math.inf}
    assert found.trials[0].counted == written.trials[0].counted


def test_infeasible_studies_read_back(tmp_path: Path) -> None:
    written = replace(study(), chosen=None, trials=(), predictions=(), steps=())
    assert Study.read(written.write(tmp_path / "s.json")) == written


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('"format": 1', '"format": 2', "('study', 2)"),
        ('"kind": "study"', '"kind": "record"', "('record', 1)"),
        ('"sla"', '"slo"', "'sla'"),
        ('"model"', '"modell"', "modell"),
        ("{", "[", "Expecting"),
    ],
)
def test_another_format_is_refused_with_a_message(tmp_path: Path, before: str, after: str, said: str) -> None:
    path = study().write(tmp_path / "study.json")
    path.write_text(path.read_text().replace(before, after, 1))
    with pytest.raises(StudyError, match="not a study of this version") as refused:
        Study.read(path)
    assert said in str(refused.value)
    assert "perf.tune" in str(refused.value)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StudyError, match="cannot be written to"):
        study().write(tmp_path / "file" / "study.json")


def test_only_a_study_says_that_it_is_one(tmp_path: Path) -> None:
    assert is_study(study().write(tmp_path / "study.json"))
    for text in ("[]", "{}", "no json", '{"kind": "record"}'):
        (tmp_path / "other.json").write_text(text)
        assert not is_study(tmp_path / "other.json")
    assert not is_study(tmp_path / "none.json")
