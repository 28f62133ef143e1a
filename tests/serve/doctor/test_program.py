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
    options = [
        "--select X1",
        "--ignore R301",
        "--select ,",
        "--target 24",
        "--log F",
        "--config-name dynamic",
        "--explain L003",
    ]
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


def test_variants_share_a_finding(golden: Golden, varied: Path, capsys: Capture) -> None:
    """Two groups of one file stay two findings, and a variant can be ignored alone."""
    text = "instance_group [ { count: 2 kind: KIND_CPU }, { count: 3 kind: KIND_CPU } ]"
    write(Example(text, files={"configs/other.pbtxt": completed(text)}), varied.parent, name="groups")
    words = f"{varied.parent} --select B201,I411 --format"
    lines = told(capsys, f"{words} text", f"{words} json")
    path = varied / "config.pbtxt"
    path.write_text(f"# doctor: ignore=B201 in=large it is a baseline\n{path.read_text()}")
    golden("doctor_variants", lines + told(capsys, f"{varied} --select B201"))


def test_all_variants_are_fixed(tmp_path: Path, capsys: Capture) -> None:
    configs = {f"configs/{number}.pbtxt": completed('name: "other"') for number in range(12)}
    write(Example('name: "other"', files=configs), tmp_path)
    assert len(findings(capsys, tmp_path, "--select", "L003")) == 1
    assert findings(capsys, tmp_path / "example", "--select", "L003", "--fix") == []


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
