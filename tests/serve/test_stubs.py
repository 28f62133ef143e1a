"""Deaths of Python processes while a server starts, seen on real processes."""

import subprocess
import sys

import pytest
from processes import wait_until

from serve.stubs import Loading

SERVER = """
import subprocess, sys, time
dead = [subprocess.Popen([sys.executable, "-c", f"raise SystemExit({code})"]) for code in (0, 7)]
time.sleep(60)
"""
GUARD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SERVER!r}])"


@pytest.mark.slow
def test_a_process_that_triton_ended_is_no_reason() -> None:
    """Triton ends the process of a model that failed with code 0; the model's own reason is in the log."""
    with subprocess.Popen([sys.executable, "-c", GUARD], start_new_session=True) as guard:
        loading = Loading(guard.pid)
        try:
            assert wait_until(lambda: loading.look() is not None, seconds=20)
        finally:
            subprocess.run(["pkill", "--session", str(guard.pid)], check=False)
    assert loading.failures() == ["the Python process of a model ended with code 7 while it was loading"]
