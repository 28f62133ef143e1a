"""The doctor's program: arguments, output and exit codes."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from doctor_examples import completed, write

from export.repository import REPOSITORY
from serve.doctor.__main__ import main, parser
from serve.doctor.rule import Example
from serve.doctor.rules.ensembles import ENSEMBLE, STEP_CONFIG, ensemble_text, files, step_text

ROOT = Path(__file__).parents[3]
BROKEN = Example('name: "other"\ndynamic_batching { preferred_batch_size: [ 4 ] }')
VARIANTS = {"large": 32, "small": 2}
Capture = pytest.CaptureFixture[str]
Golden = Callable[..., None]


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository in the working folder."""
    write(BROKEN, tmp_path / "models")
    monkeypatch.chdir(tmp_path)
    return Path("models")


def told(capsys: Capture, *calls: str) -> str:
    """What the program says when it is called with each of these arguments, as a terminal shows it."""
    lines = []
    for words in calls:
        try:
            code = main(words.split())
        except SystemExit as end:
            code = int(str(end.code))
        lines += [f"$ python -m serve.doctor {words}", *capsys.readouterr(), f"exit code {code}\n"]
    return "\n".join(line for line in lines if line)


def test_every_format_names_the_place(golden: Golden, broken: Path, capsys: Capture) -> None:
    formats = [f"models --format {name} --select L003,B204" for name in ("text", "json", "sarif", "github")]
    golden("doctor_formats", told(capsys, *formats))


def test_explain_shows_the_docstring_and_the_examples(golden: Golden, capsys: Capture) -> None:
    golden("doctor_explain", told(capsys, "--explain b204", "--explain L003"))


def test_a_mistake_is_answered_with_what_to_do(golden: Golden, broken: Path, capsys: Capture) -> None:
    for folder in ("docs", "src", "tests", "tools"):
        Path("work", folder).mkdir(parents=True)
        Path("mixed", folder).mkdir(parents=True)
    write(BROKEN, Path("mixed", "model_repository"))
    Path("mixed", "data", "2024").mkdir(parents=True)
    Path("file").touch()
    Path("empty").mkdir()
    places = ["nowhere", "file", "empty", "work", "mixed", ""]
    options = ["--select X1", "--select ,", "--target 24", "--log F", "--config-name dynamic", "--explain L003"]
    options += [f"{option} {value}" for option, value in (("--cores", 0), ("--gpus", -1), ("--latency-ms", "nan"))]
    golden("doctor_mistakes", told(capsys, *places, *(f"models {words}" for words in options), "--explain ZZZ"))


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("", 1),
        ("--fail-on error", 1),
        ("--ignore L003 --fail-on error", 0),
        ("--ignore L003,B204", 0),
        ("--ignore L003,B204 --fail-on info", 1),
        ("--fail-on never", 0),
        ("--select G1", 0),
    ],
)
def test_the_exit_code_is_that_of_the_worst_finding(arguments: str, code: int, broken: Path) -> None:
    assert main([str(broken), *arguments.split()]) == code


def test_a_model_and_a_file_stand_for_their_model(broken: Path, capsys: Capture) -> None:
    write(Example("max_batch_size: 4"), broken, name="second")
    whole, *alone = (
        out(capsys, broken / place) for place in ("", "example", "example/config.pbtxt", "example/1/model.onnx")
    )
    assert "second" in whole
    assert len(set(alone)) == 1
    assert "second" not in alone[0]


def out(capsys: Capture, *arguments: str | Path) -> str:
    main([str(argument) for argument in arguments])
    return capsys.readouterr().out


def findings(capsys: Capture, *arguments: str | Path) -> list[dict[str, str]]:
    entries: list[dict[str, str]] = json.loads(out(capsys, *arguments, "--format", "json"))["findings"]
    return entries


def test_a_folder_among_models_is_one_too(broken: Path, capsys: Capture) -> None:
    """To Triton every folder of a repository is a model, so a stray folder is a finding."""
    (broken / "notes").mkdir()
    assert str(broken / "notes") in out(capsys, broken)


@pytest.mark.parametrize("place", ["${max_batch_size}", "{{ max_batch_size }}", "{% if large %} 64 {% endif %}"])
def test_a_template_is_said_to_be_one(place: str, tmp_path: Path, capsys: Capture) -> None:
    text = f'# ${{a_comment}}\nname: "example"\nmax_batch_size: {place}\nbackend: "${{backend}}"\n'
    write(Example(text, files={"1/": ""}, whole=True), tmp_path)
    (finding,) = [finding for finding in findings(capsys, tmp_path) if finding["severity"] == "error"]
    assert (finding["code"], finding["line"], finding["column"]) == ("L001", 3, 17)
    assert finding["message"].startswith(f"this file is a template: {place.split(' 64 ')[0]} ")


def test_a_model_alone_brings_the_ensembles_that_run_it(tmp_path: Path, capsys: Capture) -> None:
    write(Example(ENSEMBLE, files=files(STEP_CONFIG.replace("[ 2 ]", "[ 3 ]"))), tmp_path)
    write(BROKEN, tmp_path, name="stranger")
    outer = write(Example(ensemble_text(step_text(inputs={"X": "x"})), files={"1/": ""}), tmp_path, name="outer")
    text = (outer / "config.pbtxt").read_text()
    (outer / "config.pbtxt").write_text(text.replace('"part"', '"example"'))  # another ensemble, without an input "X"
    told = out(capsys, tmp_path / "part", "--select", "S7")
    assert "S757" in told
    assert str(tmp_path / "outer") in told
    assert "stranger" not in told
    assert "S757" not in out(capsys, tmp_path / "stranger")


def test_our_own_repository_has_no_findings(capsys: Capture) -> None:
    assert out(capsys, REPOSITORY, "--fail-on", "info") == "no findings\n"


def test_a_suppression_silences_its_line_its_file_or_its_model(tmp_path: Path, capsys: Capture) -> None:
    folder = write(Example("dynamic_batching { }  # doctor: ignore=B215 the gateway limits the load"), tmp_path)
    path = folder / "config.pbtxt"
    assert findings(capsys, tmp_path) == []
    (folder / "configs").mkdir()
    (folder / "configs" / "other.pbtxt").write_text(path.read_text().replace("# doctor: ignore=B215", "#"))
    assert [finding["code"] for finding in findings(capsys, tmp_path)] == ["B215"]
    path.write_text(path.read_text().replace("dynamic_batching { }  #", "dynamic_batching { }\n#"))
    assert findings(capsys, tmp_path) == []


@pytest.fixture
def varied(tmp_path: Path) -> Path:
    """A model whose config.pbtxt and variants lack dynamic_batching, with another max_batch_size each."""
    configs = {f"configs/{name}.pbtxt": completed(f"max_batch_size: {size}") for name, size in VARIANTS.items()}
    return write(Example("max_batch_size: 8", files=configs), tmp_path)


def test_variants_share_a_finding(varied: Path, capsys: Capture) -> None:
    (finding,) = findings(capsys, varied)
    assert (finding["code"], finding["path"]) == ("B201", str(varied / "config.pbtxt"))
    assert finding["message"].endswith("Add dynamic_batching { }. (config.pbtxt and 2 variants: large, small)")
    assert finding["also_in"] == [str(varied / "configs" / f"{name}.pbtxt") for name in VARIANTS]
    path = varied / "config.pbtxt"
    path.write_text(f"# doctor: ignore=B201 in=large it is a baseline\n{path.read_text()}")
    (finding,) = findings(capsys, varied)
    assert finding["message"].endswith("(config.pbtxt and 1 variant: small)")


def test_two_groups_of_a_file_stay_two_findings(tmp_path: Path, capsys: Capture) -> None:
    text = "instance_group [ { count: 2 kind: KIND_CPU }, { count: 3 kind: KIND_CPU } ]"
    write(Example(text, files={"configs/other.pbtxt": completed(text)}), tmp_path)
    messages = [finding["message"] for finding in findings(capsys, tmp_path, "--select", "I411")]
    assert [message[0] for message in messages] == ["2", "3"]
    assert all(message.endswith("(config.pbtxt and 1 variant: other)") for message in messages)


def test_all_variants_are_fixed(tmp_path: Path, capsys: Capture) -> None:
    configs = {f"configs/{number}.pbtxt": completed('name: "other"') for number in range(12)}
    write(Example('name: "other"', files=configs), tmp_path)
    assert len(findings(capsys, tmp_path, "--select", "L003")) == 1
    assert findings(capsys, tmp_path / "example", "--select", "L003", "--fix") == []


@pytest.mark.parametrize("code", ["R301", "I409", "G112"])
def test_the_code_of_a_rule_that_is_gone_is_named(code: str, varied: Path, capsys: Capture) -> None:
    for arguments in ([str(varied), "--select", code], [str(varied), "--ignore", code], ["--explain", code]):
        assert main(arguments) == 2
        assert capsys.readouterr().err.startswith(f'"{code}" is not the code of a rule')
    path = varied / "config.pbtxt"
    path.write_text(f"# doctor: ignore={code} an old comment\n{path.read_text()}")
    (finding,) = findings(capsys, varied, "--select", "L016")
    assert finding["message"] == f"{code} is not a rule, so the comment ignores nothing. Remove the code."


def test_the_hook_and_the_action_run_this_program() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts["triton-doctor"] == "serve.doctor.__main__:main"
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert hook["entry"] == "triton-doctor"
    for path in ("m/config.pbtxt", "a/b/configs/dynamic.pbtxt", "m/1/model.py", "config.pbtxt"):
        assert re.search(hook["files"], path)
    assert not re.search(hook["files"], "clients/model.py")
    command = yaml.safe_load((ROOT / "action.yml").read_text())["runs"]["steps"][-1]["run"].split()
    assert command[0] == "triton-doctor"
    assert "${{" not in " ".join(command)
    options = {word for word in command if word.startswith("--")}
    assert options <= set(re.findall(r"--[a-z-]+", parser().format_help()))


def test_installing_the_doctor_pulls_no_plots_and_no_old_numpy() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    heavy = {"altair", "jinja2", "pillow", "scipy", "numpy>=1.26,<2"}
    assert not heavy & set(project["dependencies"])
    assert heavy <= set(project["optional-dependencies"]["tools"])
    # What the doctor imports is what a bare installation must have.
    imported = "import sys, serve.doctor.__main__; print({name.partition('.')[0] for name in sys.modules})"
    out = subprocess.run([sys.executable, "-c", imported], capture_output=True, text=True, check=True).stdout
    assert not {"altair", "jinja2", "msgspec", "PIL", "psutil", "scipy", "yaml"} & ast.literal_eval(out)


def test_the_readme_names_every_option() -> None:
    text = (ROOT / "serve" / "doctor" / "README.md").read_text()
    options = set(re.findall(r"^ +(--[a-z-]+)", parser().format_help(), re.MULTILINE))
    assert len(options) > 10
    assert {option for option in options if f"`{option}" not in text} == set()
