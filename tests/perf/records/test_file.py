"""The one reader and writer of records: values come back equal, and a wrong one is named in one line."""

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
from perf.records.round_record import TrialKey
from perf.records.study import Study
from perf.report import __main__ as report
from perf.stats import rounds
from perf.stats.interval import Interval
from perf.stats.latency_target import LatencyTarget
from perf.studies.archive import RESULTS, unpack
from tests.perf.compare.test_compare import fleet
from tests.perf.report.sweep.test_summary import record
from triton_batching.machine import Machine


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
    machine=Machine(cpu="cpu", cores=2, memory_bytes=2**34, system="Linux x86_64", gpu=None),
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


def load_record(path: Path) -> Path:
    """The record of one run of the load generator."""
    return fleet(path.parent, 1, 20.0)


def write_measurement(path: Path) -> Path:
    return measurement.write(record("dynamic"), path.parent)


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


def test_records_keep_the_names_that_they_are_looked_up_by(committed: list[Path]) -> None:
    """A repeated sweep or comparison resumes from the files that its keys name, whatever their classes are called."""
    records = [path for path in committed if file.kind_of(path) == "record"]
    assert records
    for path in records:
        assert cast("measurement.Measurement", measurement.load(path)).point.file_name == path.name
    assert KEY.path(Path()).name == "ranker.dynamic.b63a5b.r1.json"
