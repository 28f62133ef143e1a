"""The one reader and writer of records: values come back equal, and a wrong one is named in one line."""

import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, cast

import numpy as np
import pytest

from perf.compare import __main__ as compare
from perf.measure import service_profile
from perf.records import file, record, round_record, runs
from perf.records.file import RecordError
from perf.records.study import Study
from perf.report import __main__ as report

PERF = Path(__file__).parents[3] / "perf"
COMMITTED = [*(PERF / "results").rglob("*.json"), *(PERF / "studies" / "results").rglob("*.json")]


@dataclass(frozen=True, kw_only=True)
class Probe:
    KIND: ClassVar[str] = "probe"
    FORMAT: ClassVar[int] = 1

    rows: int
    latencies_us: tuple[float, ...]
    trace: Path | None = None
    sizes: tuple[dict[int, float], ...] = ()


PROBE = Probe(rows=1, latencies_us=(1.0, math.inf), trace=Path("/a"), sizes=({8: 1.5},))


def test_a_value_reads_back_equal(tmp_path: Path) -> None:
    path = file.write(PROBE, tmp_path / "new" / "probe.json", mean_us=np.float64(1.0))
    assert file.read(path, Probe) == PROBE
    assert '"latencies_us": [1.0, null]' in path.read_text()
    assert (file.kind_of(path), file.kind_of(tmp_path / "none.json")) == ("probe", "")


def test_a_number_that_is_none_is_not_written(tmp_path: Path) -> None:
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
        ('"probe"', '"study"', "a study ('study'), not a 'probe'. It is read by: python -m perf.report"),
        ('"probe"', '"sonde"', "not a record of kind 'probe' but 'sonde'"),
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


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RecordError, match="file: cannot be written to"):
        file.write(PROBE, tmp_path / "file" / "probe.json")


@pytest.mark.parametrize("kind", ["record", "study", "round", "fleet"])
def test_a_throughput_with_a_comma_ends_a_program_with_one_line(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A trial whose throughput is "170,2" once reached numpy, which ended the program with a traceback."""
    good = next(path for path in COMMITTED if file.kind_of(path) == kind)
    name = r'("(?:throughput_rows_per_s|rows_per_s)": )[\d.]+'
    path = tmp_path / "bad.json"
    path.write_text(re.sub(name, r'\1"170,2"', good.read_text()))
    calls: list[Callable[[], int]] = [lambda: compare.main([str(path), str(good), "--out", str(tmp_path / "out")])]
    if kind in ("record", "study"):
        calls.append(lambda: report.main([str(tmp_path), "--out", str(tmp_path / "page")]))
    for call in calls:
        assert call() == 2
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert str(path) in line
        assert 'Expected `float`, got `str` "170,2"' in line


def test_every_committed_record_is_read() -> None:
    """A change of a stored type must not make the records unreadable that the README's figures come from."""
    readers: dict[str, Callable[[Path], object]] = {
        **dict.fromkeys(record.KINDS, record.load),
        **dict.fromkeys(("round", "fleet"), lambda path: runs.read(str(path))),
        Study.KIND: Study.read,
        service_profile.ServiceTimes.KIND: service_profile.load,
    }
    counts = Counter(file.kind_of(path) for path in COMMITTED)
    assert all(counts[kind] for kind in readers)
    for path in COMMITTED:
        readers.get(file.kind_of(path), file.kind_of)(path)


def test_committed_records_have_the_names_that_they_are_looked_up_by() -> None:
    """A repeated sweep or comparison resumes from the files that its keys name."""
    for path in COMMITTED:
        kind = file.kind_of(path)
        if kind == "record":
            assert cast("record.Measurement", record.load(path)).point.file_name == path.name
        elif kind == "round":
            assert round_record.read(path)[0].path(path.parent) == path
