"""Code that runs as another user of this machine, which only root can do."""

import os
from collections.abc import Callable

import pytest

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can play another user")


def as_nobody(do: Callable[[], object]) -> str:
    """The text of the result of `do`, run by a child process without root's rights; "" if it raises."""
    reading, writing = os.pipe()
    if child := os.fork():
        os.close(writing)
        with os.fdopen(reading) as file:
            text = file.read()
        os.waitpid(child, 0)
        return text
    try:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        os.write(writing, str(do()).encode())
    finally:
        os._exit(0)
