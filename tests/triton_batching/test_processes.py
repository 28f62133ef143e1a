"""What is read of processes, against processes whose state is known."""

import os
import signal
import subprocess
import sys

from processes import wait_until

from triton_batching import processes
from triton_batching.processes import Footprint, Usage

SLEEP = "import time; time.sleep(60)"


def test_a_process_that_ended_is_a_zombie_until_it_is_waited_for() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import os; os._exit(3)"])
    assert wait_until(lambda: processes.is_zombie(process.pid), seconds=20)
    assert os.waitstatus_to_exitcode(processes.wait_status(process.pid)) == 3
    assert process.pid in processes.children(os.getpid())
    assert not processes.is_running(process.pid)
    assert processes.arguments(process.pid) == []
    assert Footprint.of(process.pid) is None
    process.wait()
    assert not processes.is_zombie(process.pid)
    assert processes.wait_status(process.pid) == 0
    assert processes.tree(process.pid) == []
    assert Usage.of(process.pid) == Usage(cpu_s=0, memory_bytes=0)


def test_a_process_is_found_by_an_argument_and_below_its_ancestors() -> None:
    mark = f"mark-{os.getpid()}"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SLEEP!r}, {mark!r}])"
    with subprocess.Popen([sys.executable, "-c", outer]) as process:
        try:
            assert wait_until(lambda: len(processes.tree(process.pid)) == 2, seconds=20)
            inner = processes.tree(process.pid)[1]
            assert wait_until(lambda: mark in processes.arguments(inner), seconds=20)
            listed = dict(processes.with_argument(mark))
            assert listed[inner][-1] == mark
            assert processes.is_running(inner)
            footprint = Footprint.of(inner)
            assert footprint is not None
            assert footprint.threads == 1
            # Pages that several processes share count in part.
            assert 0 < processes.memory_bytes([inner]) <= footprint.memory_bytes
            os.kill(inner, signal.SIGKILL)
        finally:
            process.kill()


def test_the_time_of_a_child_that_was_waited_for_stays() -> None:
    before = processes.cpu_s(os.getpid())
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.3: pass"], check=True)
    assert processes.cpu_s(os.getpid()) - before >= 0.29  # the kernel counts in steps of 10 ms
    assert processes.machine_s() > 0


def test_private_memory_leaves_out_what_is_shared() -> None:
    """Of 64 MB of its own and 64 MB that it shares, a process below this one counts the first."""
    code = (
        "import mmap, sys; own = bytearray(64 << 20); shared = mmap.mmap(-1, 64 << 20)\n"
        "for i in range(0, 64 << 20, 4096): own[i] = shared[i] = 1\n"
        f"print(flush=True); {SLEEP}"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            assert 64 << 20 < processes.private_bytes(process.pid) < 100 << 20
        finally:
            process.kill()
    assert processes.private_bytes(process.pid) == 0
