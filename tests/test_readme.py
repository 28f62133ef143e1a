"""The README tells the truth: its commands run and its files exist."""

import importlib
import os
import re
import socket
import subprocess
from pathlib import Path

import pytest
from processes import wait_until

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
COMMANDS = sorted(set(re.findall(r"(?:`|^    )(make [a-z-]+)", README, re.MULTILINE)))


def make(*arguments: str, **keywords: object) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    return subprocess.run(
        ["make", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=400, check=False
    )


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def test_every_target_exists() -> None:
    assert len(COMMANDS) >= 8
    for command in COMMANDS:
        assert make("--dry-run", command.split()[1]).returncode == 0, command


def test_help_lists_every_target() -> None:
    listed = set(re.findall(r"^  ([a-z-]+) ", make("help").stdout, re.MULTILINE))
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony is not None
    assert listed == set(phony[1].split())


def test_every_file_that_is_linked_exists() -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in link]
    assert links
    for link in links:
        assert (ROOT / link).exists(), link


@pytest.mark.server
def test_make_demo_and_make_report(tmp_path: Path) -> None:
    """The README's first command, with fewer and shorter measurements."""
    done = make("demo", f"RESULTS={tmp_path}", "ARGS=--quick")
    assert done.returncode == 0, done.stdout + done.stderr
    for word in ("What batching bought", "simulated_accelerator", "ranker", "queue42"):
        assert word in done.stdout, done.stdout
    page = (tmp_path / "report.html").read_text()
    # The timeline, and seven figures or six for each of two models: one is of the ceiling.
    assert page.count("data-chart=") == 14
    assert (tmp_path / "summary.csv").read_text().startswith("model,")
    (tmp_path / "report.html").unlink()
    report = make("report", f"RESULTS={tmp_path}")
    assert report.returncode == 0, report.stderr
    assert (tmp_path / "report.html").is_file()


@pytest.mark.server
def test_make_serve_and_make_client(tmp_path: Path) -> None:
    port = free_port()
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    with (tmp_path / "serve.txt").open("w") as output:
        server = subprocess.Popen(
            ["make", "serve", "MODEL=text_recognition", f"ARGS=--http-port 0 --grpc-port {port} --metrics-port 0"],
            cwd=ROOT,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        shown = tmp_path / "serve.txt"
        assert wait_until(lambda: "ready" in shown.read_text(), seconds=60), shown.read_text()
        read = make("client", f"ARGS=--url 127.0.0.1:{port}")
        assert read.returncode == 0, read.stdout
        assert "queue42" in read.stdout
    finally:
        os.killpg(server.pid, 2)
        server.wait(30)
    assert "stopped" in shown.read_text()


@pytest.mark.slow
def test_make_check_repo() -> None:
    done = make("check-repo")
    assert done.returncode == 0
    assert "no faults" in done.stdout


STAGES = ("triton_batching", "export", "serve", "clients", "perf")
SOURCES = [path.read_text() for stage in STAGES for path in (ROOT / stage).rglob("*.py")]
PROGRAMS = sorted({name for source in SOURCES for name in re.findall(r'"python -m ([a-z_.]+)",', source)})


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_every_program_has_help_with_an_example(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    name = f"{program}.__main__" if (ROOT / program.replace(".", "/")).is_dir() else program
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(name).main(["--help"])
    assert ended.value.code == 0
    assert f"example: python -m {program}" in capsys.readouterr().out
