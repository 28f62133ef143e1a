"""The command `triton-batching`."""

import importlib.util
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_models import lookup

from triton_batching.__main__ import VERBS, main

ROOT = Path(__file__).parents[2]


def run(*arguments: str, shell: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "triton_batching", *arguments]
    return subprocess.run(command, cwd=ROOT, text=True, capture_output=True, input=shell, check=False)


def test_a_verb_gets_its_arguments_and_gives_its_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lookup(tmp_path)
    assert main(["doctor", str(tmp_path)]) == 0
    assert "0 errors" in capsys.readouterr().out
    assert main(["doctor", str(tmp_path / "absent")]) == 2
    assert "no such file or folder" in capsys.readouterr().err


def test_a_package_that_is_not_installed_is_named() -> None:
    code = (
        "import sys; sys.modules['psutil'] = None; from triton_batching.__main__ import main; sys.exit(main(['serve']))"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, text=True, capture_output=True, check=False)
    assert ended.returncode == 2
    assert "the package 'psutil' is not installed. Run make setup" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


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


@pytest.mark.parametrize(
    "call",
    [
        *("serve --model nobody", "load nobody", "measure nobody", "profile nobody", "why nobody", "memory nobody"),
        *("simulate nobody --load closed:1", "tune nobody --p99-ms 50"),
        "versus nobody default other --load closed:1 --p99-ms 50",
    ],
)
def test_a_verb_for_a_model_takes_the_users_repository(
    call: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").mkdir()
    assert main([*call.split(), "--repository", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"{tmp_path}: no model 'nobody' there. It has: mine.\n"


def test_the_version_is_that_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert run("--version").stdout == f"triton-batching {project['version']}\n"


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


HEAVY = (
    "altair google.protobuf grpc jinja2 ml_dtypes msgspec numpy onnx onnxruntime PIL prometheus_client psutil rich "
    "scipy torch tritonclient vl_convert"
)


def test_what_it_says_itself(capsys: pytest.CaptureFixture[str], golden: Callable[..., None]) -> None:
    codes = {"": 0, "tone": 2, "--completion ksh": 2}
    assert {call: main(call.split()) for call in codes} == codes
    printed = capsys.readouterr()
    golden("program", f"{printed.out}\n{printed.err}")


def test_help_imports_no_heavy_package() -> None:
    """Counted in modules, since seconds depend on the machine; the list of verbs imports no stage, either."""
    stages = ("export", "serve", "perf", "clients")
    code = (
        "import contextlib, io, sys; from triton_batching.__main__ import VERBS, main\n"
        f"heavy, stages = {HEAVY.split()!r}, {stages!r}\n"
        "with contextlib.redirect_stdout(io.StringIO()): main([])\n"
        "print([name for name in (*heavy, *stages) if name in sys.modules])\n"
        "for verb in VERBS:\n"
        "    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()): main([verb, '--help'])\n"
        "    print([verb, *(name for name in heavy if name in sys.modules)])"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, text=True, capture_output=True, check=True)
    assert ended.stdout.splitlines() == ["[]", *(f"['{verb}']" for verb in VERBS)]
