"""Values of options that no program can use are refused in one line, before any work."""

import importlib
from pathlib import Path

import pytest

PLAN = "perf/pack/plans/three_models.toml"
SIMULATE = ["ranker", "--load", "closed:16"]
VERSUS = ["ranker", "baseline", "dynamic", "--load", "closed:16", "--p99-ms", "50"]


def refused(module: str, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The only line that the program prints before it ends with exit code 2."""
    try:
        code = importlib.import_module(module).main(arguments)
    except SystemExit as end:
        code = end.code
    output = capsys.readouterr()
    assert code == 2, output
    assert output.out == ""
    (line,) = output.err.strip().splitlines()
    return line


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("perf.simulate.__main__", SIMULATE),
        ("perf.measure.ceiling", ["ranker"]),
        ("perf.measure.service_time", ["ranker"]),
        ("perf.measure.sweep", ["ranker"]),
        ("perf.tune.__main__", ["ranker", "--p99-ms", "50"]),
        ("perf.demo", []),
        ("perf.compare.versus", VERSUS),
    ],
)
def test_a_folder_of_records_that_is_a_file_is_refused_before_any_work(
    module: str,
    arguments: list[str],
    ranker: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def started(*_: object, **__: object) -> None:
        raise AssertionError("work began")

    for place in (
        "perf.measure.service_time_run.measure",
        "perf.measure.ceiling_run.measure",
        "perf.measure.sweep_run.launch",
        "perf.compare.versus_run.lanes",
        "export.command.export_all",
    ):
        monkeypatch.setattr(place, started)
    file = tmp_path / "file"
    file.write_text("mine")
    line = refused(module, [*arguments, "--results", str(file)], capsys)
    assert f"--results {file}: cannot be written to" in line
    assert file.read_text() == "mine"


@pytest.mark.parametrize(
    ("module", "arguments", "message"),
    [
        ("perf.simulate.__main__", ["ranker", "--load", "closed:99999999999999"], "clients, at most 4096"),
        ("perf.simulate.__main__", [*SIMULATE, "--max-batch-size", "9999999999"], "from 1 to 65,536"),
        ("perf.simulate.__main__", [*SIMULATE, "--requests", "99999999999999"], "100 to 10,000,000"),
        ("perf.simulate.__main__", [*SIMULATE, "--instances", "99999"], "from 1 to 512"),
        ("perf.simulate.__main__", [*SIMULATE, "--threads", "99999"], "from 1 to 1,024"),
        ("perf.simulate.__main__", [*SIMULATE, "--results", ""], "Name one"),
        ("perf.tune.__main__", ["ranker", "--p99-ms", "50", "--load", "closed:99999999999"], "clients, at most 4096"),
        ("perf.measure.service_time", ["ranker", "--threads", "99999999999"], "from 1 to 1,024"),
        ("perf.measure.service_time", ["ranker", "--instances", "99999999999"], "from 1 to 512"),
        ("perf.measure.sweep", ["ranker", "--concurrency-range", "1:9999999999:1"], "from 1 to 4096"),
        ("perf.measure.ceiling", ["ranker", "--threads", "0"], "from 1 to 1,024"),
        ("perf.measure.ceiling", ["ranker", "--threads", "-1"], "from 1 to 1,024"),
        ("perf.measure.ceiling", ["ranker", "--threads", "999999999999"], "from 1 to 1,024"),
        ("perf.memory.__main__", ["ranker", "--batch", "99999999999999999999999999"], "from 1 to 65,536"),
        ("perf.memory.__main__", ["ranker", "--dims", "width=99999999999999999999"], "below a billion"),
        ("perf.memory.__main__", ["ranker", "--threads", "99999999999999"], "from 1 to 1,024"),
        ("perf.memory.__main__", ["ranker", "--threads", "0"], "from 1 to 1,024"),
        ("perf.pack.__main__", [PLAN, "--seed", "-1"], "from 0 to 4,294,967,295"),
        ("perf.pack.__main__", [PLAN, "--repository", "/nowhere"], "/nowhere: no such directory"),
        ("perf.pack.__main__", ["/nowhere.toml"], "/nowhere.toml: cannot be read (No such file or directory)"),
        ("export.add.__main__", ["--yaml", "/nope"], "/nope: cannot be read (No such file or directory)"),
        ("export.add.__main__", ["m.onnx", "--repository", ""], "Name one"),
        ("perf.compare.versus", [*VERSUS, "--rounds", "1000000000"], "from 1 to 1,000"),
        ("perf.compare.versus", [*VERSUS, "--most-rounds", "4"], "--most-rounds 4: fewer than --rounds 5"),
        ("perf.compare.versus", [*VERSUS, "--seed", "-1"], "from 0 to "),
        ("perf.measure.sweep", ["ranker", "--seed", "x"], "from 0 to "),
        ("perf.compare.versus", [*VERSUS, "--load", "closed:100000000"], "clients, at most 4096"),
        ("perf.compare.versus", [*VERSUS, "--load", "trace:/nope"], "/nope: not a trace of arrivals"),
        ("perf.compare.versus", [*VERSUS, "--seconds", "nan"], "above 0 and at most 86,400"),
        ("perf.compare.versus", [*VERSUS, "--rows", "0"], "from 1 to 65,536"),
        ("perf.compare.versus", [*VERSUS, "--rows", "1000"], "a request has 1 to "),
    ],
)
def test_a_value_out_of_range_is_refused(
    module: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused(module, arguments, capsys)
