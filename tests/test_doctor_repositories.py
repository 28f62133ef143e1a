"""Correct repositories of every kind of backend hold no error."""

from pathlib import Path

import pytest
from doctor_repositories import BACKENDS, build

from serve.doctor.examination import examine
from serve.doctor.finding import Severity
from serve.doctor.repository import Repository
from serve.doctor.rules import all_rules


@pytest.mark.parametrize("name", BACKENDS)
def test_a_correct_repository_has_no_error(name: str, tmp_path: Path) -> None:
    found = examine(Repository(path=build(BACKENDS[name], tmp_path / name)), all_rules())
    assert [one for one in found if one.severity is Severity.ERROR] == []
