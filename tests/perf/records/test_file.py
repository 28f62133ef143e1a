"""The one reader and writer of records: values come back equal, and a wrong one is named in one line."""

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, cast

import numpy as np
import pytest
from studies import study

from perf.compare import __main__ as compare
from perf.measure import service_profile
from perf.records import file, measurement, round_record, runs
from perf.records.file import RecordError
from perf.records.load_record import CpuTime, LoadRecord, Stages, Summary
from perf.records.offered_load import Load
from perf.records.round_record import TrialKey
from perf.records.study import Study
from perf.report import __main__ as report
from perf.stats import rounds
from perf.stats.interval import Interval
from perf.stats.latency_target import LatencyTarget
from perf.studies.archive import RESULTS, unpack
from tests.perf.records.test_measurement import MACHINE, RECORD


@dataclass(frozen=True, kw_only=True)
class Probe:
    KIND: ClassVar[str] = "probe"
    FORMAT: ClassVar[int] = 1

    rows: int
    latencies_us: tuple[float, ...]
    trace: Path | None = None
    sizes: tuple[dict[int, float], ...] = ()
    ratio: Interval | None = None


KEY = TrialKey(
    model="ranker",
    name="dynamic",
    config="max_batch_size: 4",
    model_sha256="f",
    load="closed:16",
    rows=1,
    sla=LatencyTarget(latency_ms=40),
    seconds=8.0,
    stage="against the default",
    round=1,
    machine=MACHINE,
    versions={"python": "3.11"},
    load_sha256="",
    compared="a1b2c3",
)
# It can be decoded, but not be walked through.
DEEP = b'{"kind": "probe", "format": 1, "rows": ' + b"[" * 700 + b"]" * 700 + b"}"
PROBE = Probe(
    rows=1,
    latencies_us=(1.0, math.inf),
    trace=Path("/a"),
    sizes=({8: 1.5},),
    ratio=rounds.paired([2.0, 3.0], [1.0, 1.5]),
)


def test_a_value_reads_back_equal(tmp_path: Path) -> None:
    path = file.write(PROBE, tmp_path / "new" / "probe.json", mean_us=np.float64(1.0))
    assert file.read(path, Probe) == PROBE
    assert '"latencies_us": [1.0, null]' in path.read_text()
    assert (file.kind_of(path), file.kind_of(tmp_path / "none.json")) == ("probe", "")


def test_nan_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        file.write(Probe(rows=1, latencies_us=(math.nan,)), tmp_path / "probe.json")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('"rows": 1', '"rows": "170,2"', 'rows: Expected `int`, got `str` "170,2". Remove it'),
        ("[1.0, null]", "[1.0, [2]]", "latencies_us[1]: Expected `float`, got `array` [2]. Remove it"),
        ("1.5", '"1"', "sizes[0][...]: Expected `float`, got `str`. Remove it"),
        ('"rows"', '"row"', "missing required field `rows`"),
        ('"format": 1', '"format": 2', "its format is 2, and this version reads format 1"),
        ('"probe"', '"study"', "not a record of kind 'probe' but one of kind 'study'"),
        ('"probe"', '"sonde"', "not a record of kind 'probe' but one of kind 'sonde'"),
        ("{", "{,", "no JSON"),
    ],
)
def test_a_wrong_value_is_named_in_one_line(before: str, after: str, message: str, tmp_path: Path) -> None:
    path = file.write(PROBE, tmp_path / "probe.json")
    path.write_text(path.read_text().replace(before, after, 1))
    with pytest.raises(RecordError) as caught:
        file.read(path, Probe)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b'{"kind": "\xff"}', b'{"kind": "probe", "a": ' + b"[" * 10**5, DEEP])
def test_a_file_that_cannot_be_decoded_is_one_line(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "probe.json"
    path.write_bytes(content)
    assert file.kind_of(path) in ("", "probe")
    for read in (lambda: file.read(path, Probe), lambda: runs.read(str(path))):
        with pytest.raises(RecordError, match=r"^.*probe\.json: ") as caught:
            read()
        assert "\n" not in str(caught.value)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RecordError, match="file: cannot be written to"):
        file.write(PROBE, tmp_path / "file" / "probe.json")


def load_record(path: Path) -> Path:
    """The record of one run of the load generator."""
    record = LoadRecord(
        model="ranker",
        config_name=None,
        config_sha256="",
        config='name: "ranker" max_batch_size: 4',
        transport="grpc",
        time_scale=1.0,
        started_at="2030-01-01T00:00:00+00:00",
        command=(),
        machine=RECORD.point.machine,
        versions={},
        load=Load(),
        outcome=Summary(
            window_s=10.0,
            right=3005,
            wrong=0,
            failed=0,
            not_sent=0,
            late_sends=2,
            mean_us=1.0,
            percentiles_us={50: 1.0, 99: 2.0},
            requests_per_s=300.5,
            rows_per_s=300.5,
            offered_per_s=None,
            longest_gap_s=1.0,
        ),
        stages=Stages(parts=(), latency_us=1.0),
        counted=RECORD.counters,
        busy=CpuTime(clients_s=1.0, server_s=None, machine_s=2.0, wall_s=10.0, cores=2),
        errors={},
        memory_bytes=0,
        checked=True,
        partial=False,
        lost=0,
        reloads_s=(),
    )
    return file.write(record, path)


def write_measurement(path: Path) -> Path:
    return measurement.write(RECORD, path.parent)


@pytest.mark.parametrize(
    ("write", "is_reported"),
    [
        (write_measurement, True),
        (lambda path: study().write(path), True),
        (lambda path: round_record.write(KEY, study().trials[0], path.parent), False),
        (load_record, False),
    ],
)
def test_a_throughput_with_a_comma_ends_a_program_with_one_line(
    write: Callable[[Path], Path], is_reported: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A throughput of "170,2" once reached numpy, which ended the program with a traceback."""
    good = study().write(tmp_path / "good" / "study.json")
    path = write(tmp_path / "bad" / "bad.json")
    assert runs.read(str(path)).runs
    path.write_text(re.sub(r'("(?:throughput_rows_per_s|rows_per_s)": )[\d.]+', r'\1"170,2"', path.read_text()))
    calls: list[Callable[[], int]] = [lambda: compare.main([str(path), str(good), "--out", str(tmp_path / "out")])]
    if is_reported:
        calls.append(lambda: report.main([str(path.parent), "--out", str(tmp_path / "page")]))
    for call in calls:
        assert call() == 2
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert str(path) in line
        assert 'Expected `float`, got `str` "170,2"' in line


def test_a_trial_is_found_again_only_for_the_same_content_of_its_load(tmp_path: Path) -> None:
    """A changed trace file was not noticed, since only its path was in the key."""
    before = replace(KEY, load="trace:gaps.txt", load_sha256="1" * 64)
    round_record.write(before, study().trials[0], tmp_path)
    assert before.path(tmp_path).exists()
    assert not replace(before, load_sha256="2" * 64).path(tmp_path).exists()
    assert not replace(before, load_sha256="").path(tmp_path).exists()
    # Nor is it found for another comparison.
    assert not replace(before, compared="d4e5f6").path(tmp_path).exists()


def test_runs_under_traces_of_other_content_are_under_other_loads(tmp_path: Path) -> None:
    trial = replace(study().trials[0], load="trace:gaps.txt")
    loads = [
        runs.of_trial(replace(trial, load_sha256=content), "ranker", "dynamic", path=tmp_path).load
        for content in ("", "1" * 64, "2" * 64)
    ]
    assert loads == ["trace:gaps.txt", "trace:gaps.txt (11111111)", "trace:gaps.txt (22222222)"]


@pytest.mark.parametrize("started_at", ["", "yesterday"])
@pytest.mark.parametrize(
    "write",
    [
        write_measurement,
        lambda path: study().write(path),
        lambda path: round_record.write(KEY, study().trials[0], path.parent),
        load_record,
    ],
)
def test_a_start_that_is_no_date_ends_a_program_with_one_line(
    write: Callable[[Path], Path], started_at: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "bad.json")
    path.write_text(re.sub(r'("started_at": )"[^"]*"', rf'\1"{started_at}"', path.read_text()))
    assert compare.main([str(path), str(path), "--out", str(tmp_path / "out")]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith(f"{path}: started_at '{started_at}': not an ISO date and time. ")


@pytest.fixture(scope="module")
def committed(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """All records in git, those in archives too."""
    folder = tmp_path_factory.mktemp("archives")
    for archive in RESULTS.rglob("*.jsonl"):
        unpack(archive, folder / archive.stem)
    return [*RESULTS.rglob("*.json"), *folder.rglob("*.json")]


def test_every_committed_record_is_read(committed: list[Path]) -> None:
    """A change of a stored type must not make the records unreadable that the README's figures come from."""
    readers: dict[str, Callable[[Path], object]] = {
        **dict.fromkeys(measurement.KINDS, measurement.load),
        **dict.fromkeys(("round", "fleet"), lambda path: runs.read(str(path))),
        Study.KIND: Study.read,
        service_profile.ServiceTimes.KIND: service_profile.load,
    }
    kinds = {path: file.kind_of(path) for path in committed}
    assert {"record", "ceiling", "study", "service_times"} <= set(kinds.values())
    for path, kind in kinds.items():
        if kind in readers:
            readers[kind](path)


def test_late_sends_keep_their_name_in_the_file(tmp_path: Path) -> None:
    path = load_record(tmp_path / "run.json")
    assert json.loads(path.read_text())["outcome"]["late"] == 2
    assert file.read(path, LoadRecord).outcome.late_sends == 2


def test_a_file_of_another_kind_is_said_to_be_one(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(json.dumps({"format": 1, "kind": "placement"}))
    with pytest.raises(
        RecordError, match=r"not a record of kind 'study' but one of kind 'placement'. Name another file."
    ):
        Study.read(path)


def test_records_keep_the_names_that_they_are_looked_up_by(committed: list[Path]) -> None:
    """A repeated sweep or comparison resumes from the files that its keys name, whatever their classes are called."""
    records = [path for path in committed if file.kind_of(path) == "record"]
    assert records
    for path in records:
        assert cast("measurement.Measurement", measurement.load(path)).point.file_name == path.name
    assert KEY.path(Path()).name == "ranker.dynamic.b63a5b.r1.json"
