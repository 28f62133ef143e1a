"""How many tritonservers the tests start, counted in this process and in the Python programs that it starts.

The launcher starts a server through a guard, `python -m serve.guard`, which starts front doors, too. Each start of a
server adds the name of its test to the file that the environment names; `counted/sitecustomize.py` counts in the
programs.
"""

import functools
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

FILE = "TRITON_BATCHING_TESTS_STARTS"
COUNTED = Path(__file__).parent / "counted"


@functools.cache
def count() -> None:
    """Count the starts of this process from now on."""
    sys.addaudithook(_hear)


def by_file() -> Counter[str]:
    """The starts so far of each file of tests, of all processes."""
    path = Path(os.environ[FILE])
    lines = path.read_text().splitlines() if path.exists() else []
    return Counter(line.partition("::")[0] for line in lines)


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "subprocess.Popen" or FILE not in os.environ:
        return
    command = [str(argument) for argument in arguments[1]]
    if "serve.guard" in command and any(argument.endswith("/tritonserver") for argument in command):
        with Path(os.environ[FILE]).open("ab") as file:
            file.write(os.environ.get("PYTEST_CURRENT_TEST", "?").encode() + b"\n")
