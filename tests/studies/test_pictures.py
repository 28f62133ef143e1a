"""The picture measurement: its repository, its record, and what the table makes of records."""

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from export.repository import REPOSITORY, RepositoryError, faults, model_file, read_config
from perf.studies.experiment import origin
from perf.studies.pictures import __main__ as pictures
from perf.studies.pictures.models import build
from perf.studies.pictures.models import pictures as draw
from perf.studies.pictures.table import PicturesRecord, PicturesTrial, changes, little, table
from triton_batching.processes import Usage, tree


def point(variant: str, concurrency: int, mean_ms: float, **others: Any) -> PicturesTrial:
    fields: dict[str, Any] = {
        "wall_s": 1.0,
        "requests": 10,
        "p50_ms": mean_ms,
        "p99_ms": mean_ms,
        "pictures_per_s": concurrency / mean_ms * 1e3,
        "cpu_cores": 0.5,
        "memory_mib": 300.0,
        "gpu_busy_percent": None,
        "gpu_memory_mib": None,
        "classifier_rows": 1.0,
        "changed": 0,
    }
    return PicturesTrial(variant=variant, concurrency=concurrency, mean_ms=mean_ms, **(fields | others))


def record(*points: PicturesTrial) -> PicturesRecord:
    return PicturesRecord(model="m", classifier="c", points=points, **origin(["python"]))


def test_changes_are_paired_within_a_repeat() -> None:
    records = [
        record(point("baseline", 8, 100), point("dynamic", 8, 60)),
        record(point("dynamic", 8, 50), point("baseline", 8, 200)),
    ]
    assert changes(records, 8) == pytest.approx([-0.4, -0.75])
    assert changes(records, 4) == []
    printed = io.StringIO()
    Console(width=250, file=printed).print(table(records))
    text = printed.getvalue()
    assert "-57.5%" in text  # the median of the pairs
    assert "-75.0%..-40.0%" in text


def test_littles_law() -> None:
    assert little(point("dynamic", 8, 100)) == pytest.approx(0)
    assert little(point("dynamic", 8, 100, pictures_per_s=100)) == pytest.approx(-0.2)


def test_a_tree_of_processes_is_counted_whole() -> None:
    busy = "import time\nwhile time.process_time() < 0.3: pass\nprint('done', flush=True)\ntime.sleep(60)"
    inner = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {busy!r}])"
    with subprocess.Popen([sys.executable, "-c", inner], stdout=subprocess.PIPE) as outer:
        assert outer.stdout is not None
        assert outer.stdout.readline() == b"done\n"
        processes = tree(outer.pid)
        usage = Usage.of(outer.pid)
        assert processes[0] == outer.pid
        assert len(processes) == 2
        assert 0.3 <= usage.cpu_s < 5
        assert 5 << 20 < usage.memory_bytes < 200 << 20
        subprocess.run(["kill", *map(str, processes)], check=True)
    assert Usage.of(outer.pid) == Usage(cpu_s=0, memory_bytes=0)


def test_the_simulated_accelerator_takes_the_place_of_resnet50(tmp_path: Path) -> None:
    repository = build(tmp_path, "simulated_accelerator")
    assert list(faults(repository)) == []
    for variant in ("baseline", "dynamic"):
        config = read_config(repository / "resnet50" / "configs" / f"{variant}.pbtxt")
        wanted = read_config(REPOSITORY / "resnet50" / "configs" / f"{variant}.pbtxt")
        assert (config.input, config.output, config.max_batch_size) == (wanted.input, wanted.output, 32)
        assert config.HasField("dynamic_batching") == (variant == "dynamic")
        assert config.parameters["fixed_ms"].string_value == "20"
        assert model_file(repository / "resnet50", config).name == "model.py"


def test_the_wide_classifier_fits_the_configurations_of_resnet50(tmp_path: Path) -> None:
    repository = build(tmp_path, "wide")
    assert list(faults(repository)) == []
    assert 100e6 < (repository / "resnet50" / "1" / "model.onnx").stat().st_size < 105e6


def test_resnet50_must_be_exported(tmp_path: Path) -> None:
    source = build(tmp_path / "source", "simulated_accelerator")
    (source / "resnet50" / "1" / "model.py").unlink()
    config = REPOSITORY / "resnet50" / "config.pbtxt"
    (source / "resnet50" / "config.pbtxt").write_text(config.read_text())
    with pytest.raises(RepositoryError, match="make export ARGS=resnet50"):
        build(tmp_path / "copy", "resnet50", source=source)


def test_pictures_are_seeded_and_of_the_size_of_photographs() -> None:
    first, second = draw(2)
    assert draw(1) == [first]
    assert first != second
    assert 20_000 < len(first) < 120_000


@pytest.mark.server
def test_a_repeat_is_one_record_and_is_not_measured_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--classifier", "simulated_accelerator", "--concurrency", "1,8", "--seconds", "1", "--repeats", "1"]
    assert pictures.main([*arguments, "--results", str(tmp_path)]) == 0
    (path,) = tmp_path.iterdir()
    assert path.name == "image_classification.simulated_accelerator.r1.json"
    points = json.loads(path.read_text())["points"]
    assert [(point["variant"], point["concurrency"]) for point in points] == [
        ("baseline", 1),
        ("dynamic", 1),
        ("dynamic", 8),
        ("baseline", 8),
    ]
    # 20 ms for one row: none cannot answer more than 50 a second, whatever the machine.
    assert all(point["pictures_per_s"] <= 55 for point in points if point["variant"] == "baseline")
    assert {point["classifier_rows"] for point in points if point["variant"] == "baseline"} == {1.0}
    assert all(
        point["classifier_rows"] > 1.5 for point in points if point["variant"] == "dynamic" and point["concurrency"] > 1
    )
    assert all(point["requests"] > 0 and point["changed"] == 0 for point in points)
    modified_ns = path.stat().st_mtime_ns
    capsys.readouterr()
    assert pictures.main([*arguments, "--results", str(tmp_path)]) == 0
    assert path.stat().st_mtime_ns == modified_ns
    assert "simulated_accelerator, 1 repeats" in capsys.readouterr().out


def test_mistakes_in_the_call(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in ("x", "0"):
        with pytest.raises(SystemExit):
            pictures.main(["--concurrency", wrong])
    assert "has a number below 1" in capsys.readouterr().err
