"""The doctor calls nothing wrong in correct repositories of many kinds."""

from pathlib import Path

import pytest
from doctor_repositories_stateful import REPOSITORIES, write

from serve.doctor.examination import examine
from serve.doctor.finding import Severity
from serve.doctor.repository import Repository
from serve.doctor.rules import all_rules


@pytest.mark.parametrize("name", REPOSITORIES)
def test_correct_repositories_have_no_errors(name: str, tmp_path: Path) -> None:
    repository = Repository(path=write(REPOSITORIES[name], tmp_path / name))
    found = examine(repository, all_rules())
    assert not [one for one in found if one.severity is Severity.ERROR or "itself failed" in one.message]
