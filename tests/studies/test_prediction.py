"""Which measured points a check goes on with: those of the machine, versions, model and configuration of now."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perf.measure.service_profile import Profile
from perf.measure.service_profile import load as load_ramp
from perf.studies import archive
from perf.studies.prediction import points
from perf.studies.prediction.__main__ import main
from perf.studies.prediction.bench import is_current
from perf.studies.prediction.comparison import FILE, fitting
from perf.studies.prediction.points import ROUNDS, round_folders

ARCHIVE = Path("perf/studies/results/prediction.jsonl")
MODEL = "simulated_accelerator"
POINT = f"round_2/{MODEL}.b8.d2000.k2.closed_24.json"
RAMP = f"round_2/{MODEL}.default.b8.k2.json"
LATER = "2100-01-01T00:00:00+00:00"


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The committed records of one model, three times, as of three rounds."""
    folder = tmp_path_factory.mktemp("prediction")
    with archive.unpacked(ARCHIVE) as unpacked:
        for path in (unpacked / "round_1").glob(f"{MODEL}.b*.json"):
            change(path, rounds=1)
        for number in range(1, ROUNDS + 1):
            (folder / f"round_{number}").mkdir()
            for path in (unpacked / "round_1").glob(f"{MODEL}.*.json"):
                shutil.copy(path, folder / f"round_{number}")
    return folder


@pytest.fixture
def folder(records: Path, tmp_path: Path) -> Path:
    """The records, to be changed."""
    return Path(shutil.copytree(records, tmp_path / "prediction"))


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def standing(folder: Path, original: Path) -> set[str]:
    """The records that a check would not measure again, on the machine and versions of their ramps."""
    file_names = set()
    for each in round_folders(folder):
        for path in sorted(each.glob(f"{MODEL}.b*.json")):
            committed = points.load(original / each.name / path.name)
            ramps = Profile(ramps=tuple(load_ramp(each / name) for name in committed.ramps))
            if is_current(each, MODEL, committed.candidate, committed.load, ramps):
                file_names.add(f"{each.name}/{path.name}")
    return file_names


def test_what_is_committed_stands(records: Path) -> None:
    entries = standing(records, records)
    assert len(entries) == ROUNDS * 12  # 6 configurations x 2 loads
    assert POINT in entries


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
def test_a_point_of_something_else_is_measured_again(folder: Path, records: Path, values: dict[str, object]) -> None:
    change(folder / POINT, **values)
    assert standing(folder, records) == standing(records, records) - {POINT}


def test_points_are_measured_again_after_their_ramp(folder: Path, records: Path) -> None:
    """A ramp is measured again when the model's or the configuration's file has changed, and its points with it."""
    change(folder / RAMP, started_at=LATER)
    all_points = standing(records, records)
    gone = {name for name in all_points if name.startswith("round_2/") and ".k2." in name}
    assert gone == all_points - standing(folder, records)
    used = {(rounds[0][0].candidate.instances, len(rounds)) for rounds in fitting(folder, MODEL)}
    assert used == {(1, ROUNDS), (2, 1)}  # of the two rounds that are left, the later one


def test_a_slow_round_is_in_no_figure_of_a_point(records: Path) -> None:
    point = points.load(records / POINT)
    slow = replace(
        point,
        throughput_rows_per_s=point.throughput_rows_per_s / 1.5,
        mean_ms=1.5 * point.mean_ms,
        percentiles_ms={percent: 1.5 * value for percent, value in point.percentiles_ms.items()},
    )
    merged = points.together([point, slow, point])
    names = ("throughput_rows_per_s", "mean_ms", "percentiles_ms")
    assert [getattr(merged, name) for name in names] == [getattr(point, name) for name in names]
    assert (merged.requests, merged.seconds) == (point.requests, point.seconds)  # of one round
    assert (merged.counted, merged.rounds) == (point.counted, 3)


def test_rounds_of_another_model_file_are_not_taken_together_with_the_last(folder: Path) -> None:
    for path in sorted((folder / "round_1").glob(f"{MODEL}.default.*.json")):
        change(path, model_sha256="another")
    assert {len(rounds) for rounds in fitting(folder, MODEL)} == {1}


def test_nothing_to_compare_is_a_users_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([MODEL, "--only-compare", "--results", str(tmp_path / "none")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{tmp_path / 'none'}: holds no measured point of {MODEL}")
    assert f"Measure first: python -m perf.studies.prediction {MODEL} --results" in line


def test_an_even_number_of_rounds_is_a_users_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([MODEL, "--rounds", "2"]) == 2
    assert "--rounds 2: an even number of rounds has no median" in capsys.readouterr().err


def test_the_committed_comparison_is_what_the_simulation_predicts(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of one model; a point of other versions is left out, and its other rounds still count."""
    change(folder / POINT, versions={})
    with archive.unpacked(ARCHIVE) as unpacked:
        committed = json.loads((unpacked / FILE).read_text())["points"]
    assert main([MODEL, "--only-compare", "--results", str(folder)]) == 0
    assert "left out: 2 measured point(s)" in capsys.readouterr().out
    anew = json.loads((folder / FILE).read_text())["points"]
    for before, now in zip([point for point in committed if point["model"] == MODEL], anew, strict=True):
        assert now["predicted"] == pytest.approx(before["predicted"], rel=1e-6), now["configuration"]
        assert (now["holds"], now["own_holds"]) == (before["holds"], before["own_holds"])
