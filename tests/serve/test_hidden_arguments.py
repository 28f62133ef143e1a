"""Arguments that a program gets and no command line shows."""

import os
import subprocess
import sys

import pytest

from serve import hidden_arguments

SHOW = "import sys; print(sys.argv[1:]); print(open('/proc/self/cmdline').read().split('\\0')[3:-1])"


def test_hidden_arguments_arrive_and_are_not_shown() -> None:
    values = {"FIRST": "--flag=secret one", "SECOND": "größer"}
    command = [sys.executable, "-c", SHOW, "FIRST", "plain", "SECOND"]
    with hidden_arguments.start(command, values, environment=os.environ, stdout=subprocess.PIPE, text=True) as process:
        got, shown = process.communicate(timeout=30)[0].splitlines()
    assert got == "['--flag=secret one', 'plain', 'größer']"
    assert shown == "['FIRST', 'plain', 'SECOND']"
    assert process.returncode == 0


def test_a_separate_process_hides_arguments_for_a_parent_that_must_not_fork() -> None:
    command = [sys.executable, "-P", "-m", hidden_arguments.__name__, sys.executable, "-c", SHOW, "FIRST", "plain"]
    ended = subprocess.run(command, input='{"FIRST": "secret"}', stdout=subprocess.PIPE, text=True, check=True)
    assert ended.stdout.splitlines() == ["['secret', 'plain']", "['FIRST', 'plain']"]
    command[-4:] = ["-c", "import sys; sys.exit(int(sys.argv[1]))", "FIRST"]
    assert subprocess.run(command, input='{"FIRST": "7"}', text=True, check=False).returncode == 7


def test_without_ptrace_the_program_runs_with_visible_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(request: int, pid: int, data: int = 0) -> None:
        raise PermissionError(1, "ptrace: Operation not permitted")

    monkeypatch.setattr(hidden_arguments, "_ptrace", forbidden)
    reasons: list[str] = []
    command = [sys.executable, "-c", SHOW, "FIRST"]
    with hidden_arguments.start(
        command, {"FIRST": "secret"}, environment=os.environ, visible=reasons.append, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.communicate(timeout=30)[0].splitlines() == ["['secret']", "['secret']"]
    assert reasons == ["ptrace is not allowed here"]


def test_a_program_that_is_not_there_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        hidden_arguments.start(["/no/such/program", "A"], {"A": "1"}, environment={})
