"""The command `triton-batching`."""

import importlib.util
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tiny_models import lookup

from clients.endpoint import DEFAULT_URL
from perf.memory import __main__ as memory_program
from perf.memory.command import STRATEGIES
from perf.memory.estimate.session import LEVELS
from perf.simulate.batcher.requests_file import MOST_REQUESTS
from perf.tune import __main__ as tune_program
from perf.tune.goal import OBJECTIVES
from perf.watch import __main__ as watch_program
from perf.why import __main__ as why_program
from serve.doctor import __main__ as doctor_program
from serve.doctor.render import FORMATS
from triton_batching.__main__ import STAGES, VERBS, main

ROOT = Path(__file__).parents[2]


def run(*arguments: str, shell: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "triton_batching", *arguments]
    return subprocess.run(command, cwd=ROOT, text=True, capture_output=True, input=shell, check=False)


def test_every_verb_is_a_program_of_its_stage() -> None:
    for stage, verbs in STAGES.items():
        for verb, (module, text) in verbs.items():
            name = f"{module}.__main__" if (ROOT / module.replace(".", "/")).is_dir() else module
            assert importlib.util.find_spec(name), verb
            assert text[0].islower(), "a line each, without a full stop"
            assert not text.endswith("."), verb
            assert module.partition(".")[0] == stage.partition(":")[0], verb


def test_without_a_verb_it_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    said = capsys.readouterr().out
    assert all(f"\n  {verb} " in said for verb in VERBS)
    assert "example: triton-batching tune ranker --p99-ms 50" in said


def test_a_verb_gets_its_arguments_and_gives_its_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lookup(tmp_path)
    assert main(["doctor", str(tmp_path)]) == 0
    assert "0 errors" in capsys.readouterr().out
    assert main(["doctor", str(tmp_path / "absent")]) == 2
    assert "no such file or folder" in capsys.readouterr().err


def test_mistakes_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, said in ((["tone"], "no such verb. There are: add,"), (["--completion", "ksh"], "bash, zsh")):
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert said in error
        assert len(error.splitlines()) == 1


def test_a_package_that_is_not_installed_is_named() -> None:
    code = (
        "import sys; sys.modules['psutil'] = None; from triton_batching.__main__ import main; sys.exit(main(['serve']))"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, text=True, capture_output=True, check=False)
    assert ended.returncode == 2
    assert "the package 'psutil' is not installed. Run make setup" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_help_imports_no_heavy_package() -> None:
    """Counted in modules, since seconds depend on the machine."""
    heavy = (
        *(
            "altair",
            "grpc",
            "google.protobuf",
            "jinja2",
            "ml_dtypes",
            "msgspec",
            "numpy",
            "onnx",
            "onnxruntime",
        ),
        *(
            "PIL",
            "prometheus_client",
            "psutil",
            "rich",
            "scipy",
            "torch",
            "tritonclient",
            "vl_convert",
        ),
    )
    code = (
        "import sys; from triton_batching.__main__ import main\n"
        "try: main([sys.argv[1], '--help'])\n"
        f"except SystemExit: print([name for name in {heavy} if name in sys.modules])"
    )
    imported = {}
    for verb in VERBS:
        ended = subprocess.run([sys.executable, "-c", code, verb], cwd=ROOT, text=True, capture_output=True, check=True)
        imported[verb] = ended.stdout.splitlines()[-1]
        assert ended.stdout.startswith(f"usage: triton-batching {verb} ")
    assert imported == dict.fromkeys(VERBS, "[]")


@pytest.mark.parametrize("verb", VERBS)
def test_each_program_has_the_name_that_it_was_called_by(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    name = VERBS[verb]
    program = importlib.import_module(f"{name}.__main__" if (ROOT / name.replace(".", "/")).is_dir() else name)
    for called, call in (
        (f"triton-batching {verb}", lambda: main([verb, "--help"])),
        (f"python -m {name}", lambda: program.main(["--help"])),
    ):
        with pytest.raises(SystemExit):
            call()
        text = capsys.readouterr().out
        assert text.startswith(f"usage: {called} ")
        assert f"example: {called} " in text


def test_the_choices_of_an_option_are_those_of_its_program() -> None:
    """A parser lists them itself, so that it need not import the program."""
    assert set(memory_program.LEVELS) == set(LEVELS)
    assert set(memory_program.STRATEGIES) == set(STRATEGIES)
    assert set(doctor_program.FORMATS) == set(FORMATS)
    assert set(tune_program.OBJECTIVES) == set(OBJECTIVES)
    assert why_program.MOST_REQUESTS == MOST_REQUESTS
    assert watch_program.DEFAULT_URL == DEFAULT_URL


@pytest.mark.parametrize(
    ("verb", "arguments"),
    [
        ("serve", ["--model", "nobody"]),
        ("load", ["nobody"]),
        ("measure", ["nobody"]),
        ("profile", ["nobody"]),
        ("versus", ["nobody", "default", "other", "--load", "closed:1", "--p99-ms", "50"]),
        ("why", ["nobody"]),
        ("simulate", ["nobody", "--load", "closed:1"]),
        ("tune", ["nobody", "--p99-ms", "50"]),
        ("memory", ["nobody"]),
    ],
)
def test_a_verb_for_a_model_takes_the_users_repository(
    verb: str, arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").mkdir()
    assert main([verb, *arguments, "--repository", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"{tmp_path}: no model 'nobody' there. It has: mine.\n"


def test_the_version_is_that_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert run("--version").stdout == f"triton-batching {project['version']}\n"


def test_the_list_imports_no_stage() -> None:
    loaded = "import sys; from triton_batching.__main__ import main; main([]); print([n for n in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", loaded], cwd=ROOT, text=True, capture_output=True, check=True)
    names = ended.stdout.splitlines()[-1]
    assert not any(f"'{name}'" in names for name in ("export", "serve", "perf", "clients", "numpy", "rich"))


def test_bash_completes_verbs_and_options() -> None:
    completion = run("--completion", "bash").stdout
    program = f'triton-batching() {{ "{sys.executable}" -m triton_batching "$@"; }}\n'
    line = 'COMP_WORDS=({0}); COMP_CWORD={1}; _triton_batching; echo "${{COMPREPLY[@]}}"\n'
    asked = line.format("triton-batching tu", 1) + line.format("triton-batching compare --he", 2)
    ended = subprocess.run(
        ["bash", "-c", program + completion + asked], cwd=ROOT, text=True, capture_output=True, check=True
    )
    assert ended.stdout.splitlines() == ["tune", "--help"]


@pytest.mark.parametrize("target", ["serve", "measure", "tune"])
def test_make_exports_the_ranker_only_for_itself(target: str) -> None:
    """A dry run, with a file of the ranker that does not exist."""
    for model in ("ranker", "text_recognition"):
        command = ["make", "--dry-run", target, f"MODEL={model}", "RANKER=nowhere.onnx"]
        printed = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=True).stdout
        assert ("-m export ranker" in printed) == (model == "ranker")
