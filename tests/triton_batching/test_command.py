"""The command `triton-batching`."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

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
            assert verb == "vendor" or module.partition(".")[0] == stage.partition(":")[0], verb


def test_without_a_verb_it_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    said = capsys.readouterr().out
    assert all(f"\n  {verb} " in said for verb in VERBS)
    assert "example: triton-batching tune ranker --p99-ms 50" in said


def test_a_verb_gets_its_arguments_and_gives_its_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-repo", str(tmp_path)]) == 0
    assert "no faults" in capsys.readouterr().out
    assert main(["check-repo", str(tmp_path / "absent")]) == 2
    assert "no such directory" in capsys.readouterr().err


def test_mistakes_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, said in ((["tone"], "no such verb. There are: export, add"), (["--completion", "ksh"], "bash, zsh")):
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert said in error
        assert len(error.splitlines()) == 1


def test_a_package_that_is_not_installed_is_named() -> None:
    code = (
        "import sys; sys.modules['psutil'] = None; from triton_batching.__main__ import main; "
        "sys.exit(main(['serve', '--help']))"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, text=True, capture_output=True, check=False)
    assert ended.returncode == 2
    assert "the package 'psutil' is not installed. Run make setup" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_the_list_imports_no_stage() -> None:
    loaded = "import sys; from triton_batching.__main__ import main; main([]); print([n for n in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", loaded], cwd=ROOT, text=True, capture_output=True, check=True)
    names = ended.stdout.splitlines()[-1]
    assert not any(f"'{name}'" in names for name in ("export", "serve", "perf", "clients", "numpy", "rich"))


def test_bash_completes_verbs_and_options() -> None:
    completion = run("--completion", "bash").stdout
    program = f'triton-batching() {{ "{sys.executable}" -m triton_batching "$@"; }}\n'
    line = 'COMP_WORDS=({0}); COMP_CWORD={1}; _triton_batching; echo "${{COMPREPLY[@]}}"\n'
    asked = line.format("triton-batching tu", 1) + line.format("triton-batching check-repo --he", 2)
    ended = subprocess.run(
        ["bash", "-c", program + completion + asked], cwd=ROOT, text=True, capture_output=True, check=True
    )
    assert ended.stdout.splitlines() == ["tune", "--help"]
