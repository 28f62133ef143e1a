"""Experiments write by default into folders that git ignores, so that a clone stays as it is."""

from pathlib import Path

import pytest

from perf.studies.grid import __main__ as grid
from perf.studies.memory_estimate import __main__ as memory_estimate
from perf.studies.memory_estimate import operators, random_check
from perf.studies.memory_lab import __main__ as memory_lab
from perf.studies.memory_lab import record
from perf.studies.packing import __main__ as packing
from perf.studies.packing import prove
from perf.studies.prediction import __main__ as prediction
from tests.perf.test_defaults import IGNORED


@pytest.mark.parametrize(
    "folder",
    [
        *(memory_lab.FOLDER, record.FOLDER, memory_estimate.FOLDER, operators.FOLDER),
        random_check.FOLDER,
        *(grid.RESULTS, packing.RESULTS, prove.RESULTS, prediction.RESULTS),
    ],
    ids=str,
)
def test_the_default_folder_of_records_is_ignored_by_git(folder: Path) -> None:
    assert any(folder.is_relative_to(ignored) for ignored in IGNORED)
