"""A proxy is started again whatever happens meanwhile; here it is a program that sleeps."""

import errno
import os
import re
import shutil
import signal
import subprocess
from typing import Any

import pytest
from processes import wait_until

from serve.front import process
from serve.server_folder import ServerFolder


def test_a_machine_without_room_for_a_process_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    sleep, started, told = shutil.which("sleep"), subprocess.Popen, list[str]()
    assert sleep is not None
    failures = iter([OSError(errno.EAGAIN, "no process left")])

    def start(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        for failure in failures:
            raise failure
        return started(*arguments, **options)

    def command(folder: ServerFolder) -> list[str]:
        return [str(sleep), "60"]

    with process.running(command, is_up=lambda _: True, report=told.append) as proxy:
        monkeypatch.setattr(subprocess, "Popen", start)
        [guard, *_] = proxy.pids()
        os.kill(guard, signal.SIGKILL)
        assert wait_until(lambda: any("cannot be started" in text for text in told), seconds=20)
        assert wait_until(lambda: bool(set(proxy.pids()) - {guard}), seconds=20)


def test_each_end_is_told_with_its_reason_and_when_it_listens_again() -> None:
    sleep, told = shutil.which("sleep"), list[str]()
    with process.running(lambda _: [str(sleep), "60"], is_up=lambda _: True, report=told.append) as proxy:
        assert wait_until(lambda: len(proxy.pids()) == 2, seconds=20)
        os.kill(proxy.pids()[1], signal.SIGKILL)
        assert wait_until(lambda: len(told) == 2, seconds=20)
    assert told[0].startswith("the front door is closed: sleep was killed by SIGKILL; it is started again.")
    assert re.fullmatch(r"the front door is open again, after \d+\.\d s", told[1])
