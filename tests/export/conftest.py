"""What the tests of the exporters share."""

import contextlib
import io
import subprocess
import sys
from collections.abc import Iterator

import pytest

from perf.memory.__main__ import main as memory
from serve.doctor.__main__ import main as doctor

PROGRAMS = {"serve.doctor": doctor, "perf.memory": memory}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Run torch on one thread, because two threads of small layers mostly wait for each other on shared cores."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def programs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the programs of later stages, which `add` and `variant` start, in this process: a start takes a second."""
    started = subprocess.run

    def run(command: list[str], **options: object) -> "subprocess.CompletedProcess[str]":
        if command[:2] != [sys.executable, "-m"] or command[2] not in PROGRAMS:
            return started(command, **options)  # type: ignore[call-overload, no-any-return]
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = PROGRAMS[command[2]](command[3:])
        return subprocess.CompletedProcess(command, code, out.getvalue(), err.getvalue())

    monkeypatch.setattr(subprocess, "run", run)
