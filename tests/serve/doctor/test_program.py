"""The doctor's program: arguments, output and exit codes."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from doctor_examples import write

from export.repository import REPOSITORY
from serve.doctor.__main__ import main, parser
from serve.doctor.rule import RULES, Example
from serve.doctor.rules.ensembles import ENSEMBLE, STEP_CONFIG, ensemble_text, files, step_text

BROKEN = Example('name: "other"\ndynamic_batching { preferred_batch_size: [ 4 ] }')
SARIF_LEVELS = {"error", "warning", "note"}


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    write(BROKEN, tmp_path)
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str]:
    code = main([str(argument) for argument in arguments])
    return code, capsys.readouterr().out


def test_text_names_the_place(broken: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(capsys, broken)
    lines = out.splitlines()
    text = (broken / "example" / "config.pbtxt").read_text().splitlines()
    line = next(number for number, content in enumerate(text, 1) if "other" in content)
    assert code == 1
    assert lines[0].startswith(f"{broken}/example/config.pbtxt:{line}:1: error L003: ")
    assert lines[-1] == "1 error, 1 warning, 1 info"


def test_json_holds_every_finding(broken: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out = run(capsys, broken, "--format", "json")
    findings = json.loads(out)["findings"]
    assert [finding["code"] for finding in findings] == ["L003", "B215", "B204"]
    first = next(finding for finding in findings if finding["code"] == "L003")
    assert first | {"message": "", "line": 0} == {
        "code": "L003",
        "severity": "error",
        "model": "example",
        "path": str(broken / "example" / "config.pbtxt"),
        "line": 0,
        "column": 1,
        "message": "",
        "fixable": True,
        "also_in": [],
    }


def test_sarif_has_what_code_scanning_needs(broken: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out = run(capsys, broken, "--format", "sarif")
    log = json.loads(out)
    assert log["version"] == "2.1.0"
    (sarif_run,) = log["runs"]
    rules = sarif_run["tool"]["driver"]["rules"]
    for result in sarif_run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in SARIF_LEVELS
        region = result["locations"][0]["physicalLocation"]["region"]
        assert region["startLine"] >= 1
        assert region["startColumn"] >= 1


def test_github_commands_are_one_line_each(broken: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out = run(capsys, broken, "--format", "github", "--select", "L003")
    assert out.startswith("::error file=")
    assert ",title=L003::name is " in out
    assert len(out.splitlines()) == 2


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ([], 1),
        (["--fail-on", "error"], 1),
        (["--ignore", "L003", "--fail-on", "error"], 0),
        (["--ignore", "L003,B204"], 0),
        (["--ignore", "L003,B204", "--fail-on", "info"], 1),
        (["--fail-on", "never"], 0),
        (["--select", "G1"], 0),
        (["--select", "X1"], 2),
        (["--target", "24"], 2),
        (["nowhere"], 2),
        (["--select", ""], 2),
        (["--log", "F"], 2),
        (["--config-name", "dynamic"], 2),
        (["--explain", "L003"], 2),
    ],
)
def test_exit_codes(arguments: list[str], code: int, broken: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, broken, *arguments)[0] == code


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--cores", "0"),
        ("--cores", "-1"),
        ("--gpus", "-1"),
        *(("--latency-ms", value) for value in ("nan", "inf", "0")),
    ],
)
def test_a_machine_that_cannot_be_is_refused(
    option: str, value: str, broken: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([str(broken), option, value])
    assert capsys.readouterr().err.startswith(f"{option}: {value} is not a ")


def test_a_model_and_a_file_stand_for_their_model(broken: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(Example("max_batch_size: 4"), broken, name="second")
    whole = run(capsys, broken / "example")[1]
    assert "second" not in whole
    assert run(capsys, broken / "example" / "config.pbtxt")[1] == whole
    assert run(capsys, broken / "example" / "1" / "model.onnx")[1] == whole
    assert "second" in run(capsys, broken)[1]


def test_explain_shows_the_docstring_and_the_examples(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(capsys, "--explain", "b204")
    assert code == 0
    assert RULES["B204"].explanation in out
    assert "preferred_batch_size: [ 2, 4 ]" in out


def test_a_folder_of_other_things_is_no_repository(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("docs", "src", "tests", "tools"):
        (tmp_path / name).mkdir()
    message = refused(capsys, tmp_path)
    assert f"{tmp_path}: this is not a model repository: none of its 4 folders has a config.pbtxt" in message
    assert "Name the folder that holds the models' folders." in message
    write(BROKEN, tmp_path / "model_repository")
    (tmp_path / "data" / "2024").mkdir(parents=True)
    message = refused(capsys, tmp_path)
    assert "only 1 of its 6 folders" in message
    assert f"Name {tmp_path / 'model_repository'}." in message


def test_a_folder_among_models_is_one_too(broken: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """To Triton every folder of a repository is a model, so a stray folder is a finding."""
    (broken / "notes").mkdir()
    code, out = run(capsys, broken)
    assert code == 1
    assert str(broken / "notes") in out


@pytest.mark.parametrize("place", ["${max_batch_size}", "{{ max_batch_size }}", "{% if large %} 64 {% endif %}"])
def test_a_template_is_said_to_be_one(place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = f'# ${{a_comment}}\nname: "example"\nmax_batch_size: {place}\nbackend: "${{backend}}"\n'
    write(Example(text, files={"1/": ""}, whole=True), tmp_path)
    first = place.split(" 64 ")[0]
    code, out = run(capsys, tmp_path)
    assert code == 1
    (line,) = [line for line in out.splitlines() if " error " in line]
    assert f"config.pbtxt:3:17: error L001: this file is a template: {first} " in line
    assert out.splitlines()[-1] == "1 error, 0 warnings, 0 infos"


def test_a_model_alone_brings_the_ensembles_that_run_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(Example(ENSEMBLE, files=files(STEP_CONFIG.replace("[ 2 ]", "[ 3 ]"))), tmp_path)
    write(BROKEN, tmp_path, name="stranger")
    outer = write(Example(ensemble_text(step_text(inputs={"X": "x"})), files={"1/": ""}), tmp_path, name="outer")
    text = (outer / "config.pbtxt").read_text()
    (outer / "config.pbtxt").write_text(text.replace('"part"', '"example"'))  # another ensemble, without an input "X"
    out = run(capsys, tmp_path / "part", "--select", "S7")[1]
    assert "S757" in out
    assert str(tmp_path / "outer") in out
    assert "stranger" not in out
    assert "S757" not in run(capsys, tmp_path / "stranger")[1]


def test_a_model_is_examined_again_after_it_was_fixed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(Example('name: "other"'), tmp_path)
    assert run(capsys, tmp_path / "example", "--fix", "--select", "L0") == (0, "no findings\n")


def test_a_call_without_a_path_is_a_mistake() -> None:
    with pytest.raises(SystemExit, match="2"):
        main([])


def test_an_unknown_code_is_answered_with_the_families(capsys: pytest.CaptureFixture[str]) -> None:
    message = refused(capsys, "--explain", "ZZZ")
    assert "B2.. (batching)" in message
    assert "--explain B2" in message
    assert not re.search(r"[A-Z]\d{3}", message)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    assert main([str(argument) for argument in arguments]) == 2
    return capsys.readouterr().err


def test_our_own_repository_has_no_findings(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(capsys, REPOSITORY, "--fail-on", "info")
    assert (code, out) == (0, "no findings\n")


def test_a_suppression_silences_its_line_its_file_or_its_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(Example("dynamic_batching { }  # doctor: ignore=B215 the gateway limits the load"), tmp_path)
    assert run(capsys, tmp_path)[1] == "no findings\n"
    (folder / "configs").mkdir()
    (folder / "configs" / "other.pbtxt").write_text(
        (folder / "config.pbtxt").read_text().replace("# doctor: ignore=B215", "#")
    )
    assert run(capsys, tmp_path)[1].count("B215") == 1
    text = (folder / "config.pbtxt").read_text().replace("dynamic_batching { }  #", "dynamic_batching { }\n#")
    (folder / "config.pbtxt").write_text(text)
    assert run(capsys, tmp_path)[1] == "no findings\n"


def test_the_hook_and_the_action_run_this_program() -> None:
    root = Path(__file__).parents[3]
    scripts = tomllib.loads((root / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts["triton-doctor"] == "serve.doctor.__main__:main"
    (hook,) = yaml.safe_load((root / ".pre-commit-hooks.yaml").read_text())
    assert hook["entry"] == "triton-doctor"
    for path in ("m/config.pbtxt", "a/b/configs/dynamic.pbtxt", "m/1/model.py", "config.pbtxt"):
        assert re.search(hook["files"], path)
    assert not re.search(hook["files"], "clients/model.py")
    action = yaml.safe_load((root / "action.yml").read_text())
    command = action["runs"]["steps"][-1]["run"].split()
    assert command[0] == "triton-doctor"
    assert "${{" not in " ".join(command)
    options = {word for word in command if word.startswith("--")}
    assert options <= {option for argument in parser()._actions for option in argument.option_strings}


def test_installing_the_doctor_pulls_no_plots_and_no_old_numpy() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    heavy = {"altair", "jinja2", "pillow", "scipy", "numpy>=1.26,<2"}
    assert not heavy & set(project["dependencies"])
    assert heavy <= set(project["optional-dependencies"]["tools"])
    # What the doctor imports is what a bare installation must have.
    imported = "import sys, serve.doctor.__main__; print({name.partition('.')[0] for name in sys.modules})"
    out = subprocess.run([sys.executable, "-c", imported], capture_output=True, text=True, check=True).stdout
    assert not {"altair", "jinja2", "msgspec", "PIL", "psutil", "scipy", "yaml"} & ast.literal_eval(out)


def test_the_readme_names_every_option() -> None:
    text = (Path(__file__).parents[3] / "serve" / "doctor" / "README.md").read_text()
    options = {option for action in parser()._actions for option in action.option_strings if option.startswith("--")}
    assert {option for option in options if f"`{option}" not in text and not option.startswith("--no-")} <= {"--help"}
