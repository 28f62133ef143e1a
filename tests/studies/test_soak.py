"""A soak of one minute on a real server finds nothing; a dead stub, a wrong model and Ctrl-C are found out."""

import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from processes import alive, descendants, wait_until

from perf.studies.soak import soak
from perf.studies.soak.__main__ import main
from perf.studies.soak.job import MODELS, PICTURES
from perf.studies.soak.record import SoakRecord, load
from perf.studies.soak.repository import build

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.server


def recorded(folder: Path) -> SoakRecord:
    (path,) = folder.glob("*.json")
    return load(path)


def temporary() -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob("perf-soak-*"))


def started(folder: Path, minutes: str) -> subprocess.Popen[bytes]:
    """The program, once its clients have called."""
    command = [sys.executable, "-m", "perf.studies.soak", "--minutes", minutes, "--results", str(folder)]
    output = folder / "output.txt"
    with output.open("w") as file:
        program = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT)
    assert wait_until(lambda: output.read_text().count(" right") >= 1 or program.poll() is not None, seconds=90)
    assert program.poll() is None, output.read_text()
    return program


def stubs(pid: int) -> list[int]:
    living = []
    for process in descendants(pid):
        try:
            name = (Path("/proc") / str(process) / "comm").read_text()
        except OSError:
            continue
        if name.startswith("triton_python"):
            living.append(process)
    return sorted(living)


def test_a_minute_finds_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = temporary()
    code = main(["--minutes", "1", "--results", str(tmp_path)])
    record = recorded(tmp_path)
    assert record.problems == ()
    assert code == 0, capsys.readouterr().out
    ended = sum((Counter(user.outcomes) for user in record.users), Counter[str]())
    # Everything that can happen did happen, and every process had right answers.
    assert {"right", "rejected", "timed out", "cancelled", "invalid input", "refused by the model", "killed"} == set(
        ended
    )
    assert all(user.outcomes["right"] > 0 for user in record.users)
    for model in MODELS:
        assert record.served[model].rows > record.served[model].executions > 0
    assert temporary() <= before


def test_a_stub_that_is_killed_is_found(tmp_path: Path) -> None:
    program = started(tmp_path, "2")
    processes = descendants(program.pid)
    os.kill(stubs(program.pid)[0], signal.SIGKILL)
    assert program.wait(120) == 1
    record = recorded(tmp_path)
    assert any("a process of the server died" in fault for fault in record.faults)
    assert record.seconds < 100
    assert wait_until(lambda: not alive(processes), seconds=10)


def test_a_wrong_answer_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoiled(folder: Path) -> Path:
        model = build(folder) / PICTURES / "1" / "model.py"
        text = model.read_text()
        # One row of a batch is off by one step, as if it were its neighbour's.
        assert text.count(".mean(axis=1)") == 1
        model.write_text(text.replace(".mean(axis=1)", ".mean(axis=1) + (len(picture) == 5)"))
        return folder

    monkeypatch.setattr(soak, "build", spoiled)
    assert main(["--minutes", "0.1", "--results", str(tmp_path)]) == 1
    record = recorded(tmp_path)
    wrong = [failure for failure in record.failed if failure.outcome == "wrong"]
    assert wrong
    assert {finding.model for finding in wrong} == {PICTURES}
    assert "in place of" in wrong[0].message


def test_ctrl_c_keeps_what_was_found(tmp_path: Path) -> None:
    program = started(tmp_path, "5")
    processes = descendants(program.pid)
    program.send_signal(signal.SIGINT)
    assert program.wait(90) == 130
    record = recorded(tmp_path)
    assert record.interrupted
    assert record.calls > 0
    assert record.problems == ()
    assert wait_until(lambda: not alive(processes), seconds=10)
