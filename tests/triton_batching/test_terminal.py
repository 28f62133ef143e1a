"""How a program says what is wrong with its call, and how it ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from triton_batching.terminal import guarded, program_parser

ROOT = Path(__file__).parents[2]
CLEANING = """
import sys, time
from triton_batching.terminal import guarded

def action():
    try:
        print("running", flush=True)
        time.sleep(60)
    finally:
        time.sleep(0.5)
        print("cleaned", flush=True)

sys.exit(guarded(action))
"""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["m", "--p99-ms", "abc"], "--p99-ms abc: not a number."),
        (["m", "--p99-ms", "5", "-b", "1.5"], "-b/--rows 1.5: not a whole number."),
        (["m", "--p99-ms", "5", "--kind", "tpu"], "--kind tpu: not a choice. Give one of 'cpu', 'gpu'."),
        (["m", "--p99-ms"], "--p99-ms: its value is missing."),
        (["m"], "--p99-ms: missing, and required."),
        ([], "model, --p99-ms: missing, and required."),
        (["m", "--p99-ms", "5", "--fast"], "--fast: unknown."),
    ],
)
def test_a_mistyped_call_ends_with_one_line_and_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = program_parser("python -m program", "What it does.", example="m --p99-ms 50")
    parser.add_argument("model")
    parser.add_argument("--p99-ms", type=float, required=True)
    parser.add_argument("-b", "--rows", type=int)
    parser.add_argument("--kind", choices=("cpu", "gpu"))
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(arguments)
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"{message} See python -m program --help.\n"


PRINTING = {
    "print": "print('a')",
    "console": "terminal().print('a')",
    "another console": "__import__('rich').print('a')",
    "help": "program_parser('p', 'd', example='e').parse_args(['--help'])",
}


@pytest.mark.parametrize("printing", PRINTING.values(), ids=PRINTING)
@pytest.mark.parametrize("output", ["closed", "full", "unread"])
def test_a_program_whose_output_fails_ends_without_a_traceback(printing: str, output: str) -> None:
    program = (
        "import sys; from triton_batching.terminal import guarded, program_parser, terminal; "
        f"sys.exit(guarded(lambda: {printing}))"
    )
    reading, writing = os.pipe()
    os.close(reading)
    redirected = {"closed": ">&-", "full": ">/dev/full", "unread": ""}[output]
    command = ["bash", "-c", f'exec "$0" -c "$1" {redirected}', sys.executable, program]
    ended = subprocess.run(command, cwd=ROOT, stdout=writing, stderr=-1, text=True, check=False)
    os.close(writing)
    full = "standard output: cannot be written to (No space left on device). Send it to another place.\n"
    expected = {"closed": (0, ""), "full": (2, full), "unread": (141, "")}
    assert (ended.returncode, ended.stderr) == expected[output]


def test_an_error_that_is_not_of_the_output_is_raised() -> None:
    def action() -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        guarded(action)


def test_more_interrupts_do_not_stop_the_cleaning_up() -> None:
    with subprocess.Popen([sys.executable, "-c", CLEANING], cwd=ROOT, stdout=-1, stderr=-1, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "running\n"
        while program.poll() is None:
            program.send_signal(signal.SIGINT)
            time.sleep(0.01)
        out, err = program.communicate()
    assert program.returncode == 130
    assert out == "cleaned\n"
    assert err.splitlines()[-1] == "stopped."
    assert "stopping. Ctrl-\\ ends the program at once." in err
    assert "Traceback" not in err


def test_interrupts_clean_up_when_nobody_reads_the_messages() -> None:
    """The first Ctrl-C also ends the `tee` that read standard error."""
    reading, writing = os.pipe()
    os.close(reading)
    with subprocess.Popen([sys.executable, "-c", CLEANING], cwd=ROOT, stdout=-1, stderr=writing, text=True) as program:
        os.close(writing)
        assert program.stdout is not None
        assert program.stdout.readline() == "running\n"
        while program.poll() is None:
            program.send_signal(signal.SIGINT)
            time.sleep(0.01)
        assert program.stdout.read() == "cleaned\n"
    assert program.returncode == 130


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "service", "code"),
    [
        (signal.SIGTERM, True, 0),
        (signal.SIGINT, True, 130),
        (signal.SIGTERM, False, -signal.SIGTERM),
        (signal.SIGINT, False, 130),
    ],
)
def test_a_service_that_sigterm_stops_has_not_failed(number: signal.Signals, service: bool, code: int) -> None:
    program = (
        "import signal, sys; from triton_batching.terminal import guarded; "
        f"sys.exit(guarded(lambda: signal.raise_signal({int(number)}), service={service}))"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, stderr=-1, check=False).returncode == code
