"""Values of options that no program can use are refused in one line, before any work."""

import importlib
import shlex
from collections.abc import Callable
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
        *((f"perf.measure.{name}", ["ranker"]) for name in ("ceiling", "service_time", "sweep")),
        ("perf.tune.__main__", ["ranker", "--p99-ms", "50"]),
        ("perf.demo", []),
        ("perf.compare.versus", VERSUS),
    ],
)
def test_a_folder_of_records_that_is_a_file_is_refused_before_any_work(
    module: str, arguments: list[str], ranker: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (file := tmp_path / "file").write_text("mine")
    line = refused(module, [*arguments, "--results", str(file)], capsys)
    assert f"--results {file}: cannot be written to" in line
    assert file.read_text() == "mine"


OUT_OF_RANGE = {
    "perf.simulate.__main__": "closed:99999999999999 | --max-batch-size 9999999999 | --requests 99999999999999 | "
    "--instances 99999 | --threads 99999 | --results ''",
    "perf.tune.__main__": "--p99-ms 50 --load closed:99999999999",
    "perf.measure.sweep": "--concurrency-range 1:9999999999:1 | --seed x",
    "perf.measure.ceiling": "--threads 0 | --threads -1 | --threads 999999999999",
    "perf.memory.__main__": "--batch 99999999999999999999999999",
    "perf.compare.versus": "--rounds 1000000000 | --most-rounds 4 | --seed -1 | --load trace:/nope | --seconds nan | "
    "--rows 0 | --rows 1000",
}


def test_a_value_out_of_range_is_refused(capsys: pytest.CaptureFixture[str], golden: Callable[..., None]) -> None:
    said = ""
    for module, calls in OUT_OF_RANGE.items():
        first = {"perf.simulate.__main__": SIMULATE, "perf.compare.versus": VERSUS}.get(module, ["ranker"])
        for call in calls.split(" | "):
            arguments = ["ranker", "--load", call] if call.startswith("closed") else [*first, *shlex.split(call)]
            said += f"$ {module} {shlex.join(arguments)}\n{refused(module, arguments, capsys)}\n\n"
    for arguments in (["--seed", "-1"], ["--repository", "/nowhere"]):
        said += f"$ perf.pack {shlex.join(arguments)}\n{refused('perf.pack.__main__', [PLAN, *arguments], capsys)}\n\n"
    golden("program_options", said)
