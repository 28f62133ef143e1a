"""How `perf.why` refuses a wrong call, and what a model could never get."""

from pathlib import Path

import pytest

from perf.records.size_mix import MixError
from perf.simulate.batcher.requests_file import RequestsError
from perf.simulate.batcher.rules import RulesError
from perf.why.__main__ import main
from perf.why.service import ServiceError
from tests.perf.why.test_why import LENGTHS, X, folder
from triton_batching.terminal import Mistake


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "takes inputs of different size (X)"),
        (["--mix", "a"], "--mix a: not a mix of sizes"),
        (["--mix", "20", "--rows", "17"], "--rows 17"),
        (["--mix", "20", "--service-ms", "fast"], "--service-ms fast"),
        (["--mix", ""], "--mix : not a mix of sizes"),
        (["--mix", "20", "--service-ms", ""], "--service-ms : not a service time"),
        (["--live", ""], "no Triton server answers there"),
        (["--config-name", "none"], "tritonserver would silently load config.pbtxt"),
        (["--live", "localhost:1"], "no Triton server answers there"),
        (["--live", "localhost:1", "--gpus", "1"], "--gpus does nothing with --live. Leave it out."),
        (["--live", "localhost:1", "--rows", "1"], "--rows does nothing with --live. Leave it out."),
        (["--mix", "20", "--seconds", "5"], "--seconds does nothing without --live. Leave it out."),
        (["--requests", "F", "--count", "5"], "--count does nothing with --requests. Leave it out."),
        (["--mix", "20", "--service-ms", "1=5,1=6"], "name each number of rows once, in rising order"),
    ],
)
def test_a_wrong_call_ends_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    assert main([*folder(tmp_path, X + LENGTHS), *arguments]) == 2
    assert says in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("--per-second", "1e-300", "a number from 0.001 to 1,000,000"),
        ("--gpus", "-1", "a whole number from 0 to 1,024"),
        ("--count", "0", "a whole number from 1 to 1,000,000"),
        ("--seconds", "nan", "a number above 0 and at most 86,400"),
    ],
)
def test_an_option_out_of_range_is_refused(
    option: str, value: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["m", option, value])
    assert f"{option}: {value} is not {expected}." in capsys.readouterr().err


@pytest.mark.parametrize("options", [["--mix", "20"], ["--requests", "FILE"]])
def test_requests_come_from_one_place(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["m", "--live", "localhost:1", *options])
    assert "not allowed with argument" in capsys.readouterr().err


def test_a_mix_of_sizes_needs_an_input_of_variable_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*folder(tmp_path, X.replace("-1", "4") + LENGTHS), "--mix", "20,30"]) == 2
    assert '--mix 20,30: model "m" takes no input of variable size' in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("place", ["batchstrategy.so", "1/batchstrategy.so"])
def test_a_batching_library_beside_the_model_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    call = folder(tmp_path, X + LENGTHS)
    (tmp_path / "m" / place).parent.mkdir(exist_ok=True)
    (tmp_path / "m" / place).touch()
    assert main([*call, "--mix", "20"]) == 2
    assert f"of its own ({tmp_path / 'm' / place})" in capsys.readouterr().err.replace("\n", "")


def test_a_mistake_is_one_kind_of_error() -> None:
    for kind in (RequestsError, MixError, ServiceError, RulesError):
        assert issubclass(kind, Mistake)
