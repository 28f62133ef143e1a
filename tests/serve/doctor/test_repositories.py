"""The doctor reports no error in correct repositories of many kinds."""

from pathlib import Path

import pytest
from doctor_repositories import BACKENDS, build
from doctor_repositories_composed import REPOSITORIES as COMPOSED
from doctor_repositories_stateful import REPOSITORIES as STATEFUL

from serve.doctor.examination import examine
from serve.doctor.finding import Severity
from serve.doctor.repository import Repository
from serve.doctor.rules import all_rules

CORRECT = {**BACKENDS, **COMPOSED, **STATEFUL}
assert len(CORRECT) == len(BACKENDS) + len(COMPOSED) + len(STATEFUL)


@pytest.mark.parametrize("name", CORRECT)
def test_a_correct_repository_has_no_error(name: str, tmp_path: Path) -> None:
    results = examine(Repository(path=build(CORRECT[name], tmp_path / name)), all_rules())
    assert not [
        finding for finding in results if finding.severity is Severity.ERROR or "itself failed" in finding.message
    ]
