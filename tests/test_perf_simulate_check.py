"""Which measured points a check goes on with: those of the machine, versions, model and configuration of now."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from clients.fleet.variant import read
from perf.service_profile import Profile
from perf.service_profile import load as load_ramp
from perf.simulate import points
from perf.simulate.bench import Bench
from perf.simulate.check import compare, main

RESULTS = Path("perf/results/prediction")
MODEL = "simulated_accelerator"
POINT = f"{MODEL}.b8.d2000.k2.closed_24.json"
RAMP = f"{MODEL}.default.b8.k2.json"
LATER = "2100-01-01T00:00:00+00:00"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The committed records, to be changed."""
    return Path(shutil.copytree(RESULTS, tmp_path / "prediction"))


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def standing(folder: Path) -> set[str]:
    """The records that a check would not measure again, on the machine and versions of their ramps."""
    bench = Bench(config=read(MODEL, None), folder=folder, command=())
    found = set()
    for path in sorted(folder.glob(f"{MODEL}.*.json")):
        if ".default." not in path.name:
            committed = points.load(RESULTS / path.name)
            ramps = Profile(ramps=tuple(load_ramp(folder / name) for name in committed.ramps))
            if bench.measured(committed.candidate, committed.load, ramps):
                found.add(path.name)
    return found


def test_what_is_committed_stands(folder: Path) -> None:
    found = standing(folder)
    assert len(found) == 12  # 6 configurations x 2 loads
    assert POINT in found


@pytest.mark.parametrize(
    "values",
    [
        {"machine": {"cpu": "another", "cores": 2, "memory_bytes": 1, "system": "Linux x86_64", "gpu": None}},
        {"versions": {"python": "3.11.7"}},
        {"load": "closed:23"},
        {"candidate": {"max_batch_size": 8, "preferred": []}},
        {"config_name": "dynamic"},
        {"format": 0},
    ],
)
def test_a_point_of_something_else_is_measured_again(folder: Path, values: dict[str, object]) -> None:
    change(folder / POINT, **values)
    assert standing(folder) == standing(RESULTS) - {POINT}


def test_points_are_measured_again_after_their_ramp(folder: Path) -> None:
    """A ramp is measured again when the model's or the configuration's file has changed, and its points with it."""
    change(folder / RAMP, started_at=LATER)
    assert {name for name in standing(RESULTS) if ".k2." in name} == standing(RESULTS) - standing(folder)
    assert {one.point.candidate.instances for one in compare(folder, [MODEL])} == {1}


def test_what_was_left_out_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(folder / POINT, versions={})
    assert main([MODEL, "--only-compare", "--results", str(folder)]) == 0
    assert "left out: 1 measured point(s)" in capsys.readouterr().out


def test_nothing_to_compare_is_a_users_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([MODEL, "--only-compare", "--results", str(tmp_path / "none")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{tmp_path / 'none'}: holds no measured point of {MODEL}")
    assert f"Measure first: python -m perf.simulate.check {MODEL} --results" in line
