import csv
import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from studies import study

from perf.records.measurement import write
from perf.report.__main__ import main
from perf.report.command import print_tables, summarise, write_csv, write_html
from tests.perf.report.sweep.test_summary import MACHINE, ceiling, record


def fill(folder: Path) -> Path:
    """Two configurations, two concurrencies, two repeats and a ceiling; one point failed a request."""
    for repeat in (1, 2):
        for number in (2, 16):
            write(record(rate=91.5, concurrency=number, repeat=repeat), folder)
            write(
                record("dynamic", rate=317.75 + 1e-6 * repeat, concurrency=number, repeat=repeat, batches={8: 90}),
                folder,
            )
    write(record("dynamic", rate=400.25, concurrency=20, failed=1), folder)
    write(ceiling(rates=(500.0,)), folder)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Ten records."""
    return fill(tmp_path)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of these records and one of another model."""
    folder = fill(tmp_path_factory.mktemp("page"))
    write(record(model="n"), folder)
    return write_html(summarise(folder), folder).read_text()


def test_tables_fit_a_terminal(folder: Path, golden: Callable[..., None]) -> None:
    def shown(width: int) -> str:
        text = io.StringIO()
        print_tables(Console(file=text, width=width), summarise(folder))
        return text.getvalue()

    for width in (120, 80, 50):
        lines = shown(width).splitlines()
        assert max(map(len, lines)) <= width
        (marked,) = [line for line in lines if line.startswith("dynamic ") and "400.2" in line]
        assert marked.rstrip().endswith("!")
        assert "…" not in "".join(lines)
    golden("report_sweep", shown(100))


def test_csv_holds_every_row_and_reads_back(folder: Path, tmp_path: Path) -> None:
    summary = summarise(folder)
    lines = list(csv.DictReader(write_csv(summary, tmp_path / "out").read_text().splitlines()))
    rows = summary.comparisons[0].rows
    assert len(lines) == len(rows) == 5
    for line, row in zip(lines, rows, strict=True):
        assert (line["model"], line["config_name"]) == (row.model, row.config_name)
        assert int(line["concurrency"]) == row.load.concurrency
        assert float(line["throughput_rows_per_s"]) == row.throughput_rows_per_s
        assert float(line["queue_us"]) == row.stages.queue_us
        assert dict(pair.split(":") for pair in line["batches"].split()) == {
            str(size): str(count) for size, count in row.batches.items()
        }
        assert line["marks"] == "; ".join(row.marks)
    assert float(lines[2]["to_baseline_value"]) == pytest.approx(317.75 / 91.5, rel=1e-6)
    assert (lines[4]["to_baseline_value"], lines[0]["ceiling_batch_rows"]) == ("", "8")
    assert [(line["verdict"], line["more_repeats"]) for line in lines[2:]] == [("faster", "0")] * 2 + [("", "2")]


@pytest.mark.slow
def test_page_has_every_point_figure_and_record_and_needs_nothing_else(page: str, folder: Path) -> None:
    for text in ("91.5", "317.8", "400.2", "failed requests: 1", "3.47 x (3.47 to 3.47) the rows/s", str(MACHINE)):
        assert text in page
    # Two configurations at two loads, one failed, and another model; six figures with a ceiling, three without.
    assert (page.count("<tr data-configuration="), page.count("<figure")) == (6, 12)
    for path in folder.glob("*.json"):
        assert path.name in page
    assert len(page.encode()) < 2_000_000
    assert not re.findall(r"https?://", re.sub(r"(?s)<script>.*?</script>", "", page))


@pytest.mark.slow
def test_equal_records_give_equal_bytes(tmp_path: Path) -> None:
    write(record(), tmp_path)
    for writer in (write_csv, write_html):
        once = writer(summarise(tmp_path), tmp_path / "once").read_bytes()
        assert writer(summarise(tmp_path), tmp_path / "again").read_bytes() == once


@pytest.mark.slow
def test_the_program_writes_beside_the_records_or_into_a_given_folder(folder: Path, tmp_path: Path) -> None:
    assert main([str(folder)]) == 0
    assert {"summary.csv", "report.html"} <= {path.name for path in folder.iterdir()}
    assert main([str(folder), "--out", str(tmp_path / "png"), "--format", "png"]) == 0
    assert len(list((tmp_path / "png").iterdir())) == 7


@pytest.mark.slow
def test_points_beside_a_study_are_reported_as_left_out(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study().write(tmp_path / "alone" / "study.json")
    assert main([str(tmp_path / "alone"), "--format", "json"]) == 0
    assert "only studies were reported" not in capsys.readouterr().out
    study().write(folder / "study.json")
    (folder / "other.json").write_text('{"kind": ["record"]}')
    assert main([str(folder), "--format", "json"]) == 0
    # 2 configurations x 2 concurrencies x 2 repeats, the point that failed, and the ceiling
    line = capsys.readouterr().out.splitlines()[-1]
    start = "only the studies are reported. Move the 10 measured point(s) into another folder"
    assert line.startswith(f"{folder}: {start}")


@pytest.mark.slow
def test_mistakes_end_with_2_and_one_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Callable[..., None]
) -> None:
    def refused(title: str, *arguments: str | Path) -> str:
        assert main(list(map(str, arguments))) == 2
        (line,) = capsys.readouterr().err.splitlines()
        return f"== {title}\n{line}\n"

    empty, above, studies, bad = (tmp_path / name for name in ("empty", "above", "studies", "bad"))
    empty.mkdir()
    (tmp_path / "file").touch()
    write(record(), above / "below")
    path = study().write(studies / "study.json")
    said = [
        refused("no such folder", tmp_path / "none"),
        refused("an empty folder", empty),
        refused("records are in a folder below", above),
        refused("a form that a study has not", studies, "--format", "csv"),
        refused("a form that a sweep has not", folder, "--format", "json"),
        refused("a folder that cannot be made", studies, "--out", tmp_path / "file" / "new"),
        refused("an option that the index has not", "--index", studies, "--format", "csv"),
        refused("no folder for the index", "--index", tmp_path / "none"),
    ]
    path.write_text(path.read_text().replace('"format": 1', '"format": 9', 1))
    said.append(refused("a study of another version", studies))
    bad.mkdir()
    (bad / "bad.json").write_text("{}")
    said.append(refused("no record", bad))
    name = next(folder.glob("*.baseline.*r2.json"))
    name.write_text(name.read_text().replace("sha of baseline", "another"))
    said.append(refused("records of two configuration files", folder))
    golden("report_refused", "\n".join(said))
