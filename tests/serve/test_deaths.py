"""Deaths of single processes under `python -m serve`: it serves again or ends by itself, and leaves nothing behind."""

import os
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest
from processes import alive, descendants, leftovers, wait_until
from server_processes import IMPATIENT, prefix, tritonserver
from serving_program import ask, end, printed, program
from sleepers import PLAIN, sleeper
from tiny_models import lookup

from serve.management import admin
from serve.stubs import instances

CONFIG = 'max_batch_size: 1\ninput [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ]\n'
pytestmark = pytest.mark.server


def successor(first: int, shared: str) -> int:
    """The process that comes in place of `first`, as soon as it is there."""
    assert wait_until(lambda: bool(instances(shared).keys() - {first}), seconds=20)
    return min(instances(shared).keys() - {first})


def test_a_process_whose_successor_dies_while_it_loads_brings_a_new_server(tmp_path: Path) -> None:
    sleeper(tmp_path / "models", "sleeper", CONFIG)
    output = tmp_path / "output.txt"
    serving = program(tmp_path / "models", output, "--", *PLAIN, *IMPATIENT, change="revival.ABSENT_S = 1.0")
    try:
        assert printed(output, "gRPC clients take --url ")
        url = output.read_text().partition("--url ")[2].split()[0]
        shared = prefix(tritonserver(serving.pid))
        (first,) = instances(shared)
        os.kill(first, signal.SIGKILL)
        os.kill(successor(first, shared), signal.SIGKILL)
        assert printed(output, "gRPC clients take --url ", times=2)
        assert ask(url) == "answered"
        assert output.read_text().count("the model 'sleeper' has no process any more") == 1
    finally:
        end(serving)


def test_a_guard_that_is_killed_costs_one_restart(tmp_path: Path) -> None:
    """Its server waits for a request that runs, and has the ports until it is killed."""
    sleeper(tmp_path / "models", "sleeper", CONFIG, fixed_ms=30_000)
    output = tmp_path / "output.txt"
    serving = program(tmp_path / "models", output, "--", *PLAIN, change="guard_process.SERVER_END_S = 4.0")
    try:
        assert printed(output, "gRPC clients take --url ")
        url = output.read_text().partition("--url ")[2].split()[0]
        threading.Thread(target=ask, args=(url,), daemon=True).start()
        time.sleep(1)
        server = tritonserver(serving.pid)
        shared = prefix(server)
        os.kill(psutil.Process(server).ppid(), signal.SIGKILL)
        assert printed(output, "gRPC clients take --url ", times=2)
        assert not alive({server})
        assert not leftovers(shared)
        assert "the guard of tritonserver was killed by SIGKILL" in output.read_text()
        assert "the start failed" not in output.read_text()
        assert url == output.read_text().rpartition("--url ")[2].split()[0]
    finally:
        end(serving)


def test_a_stopped_guard_does_not_keep_it_from_ending(tmp_path: Path) -> None:
    lookup(tmp_path / "models")
    output = tmp_path / "output.txt"
    serving = program(tmp_path / "models", output, "--", *PLAIN, change="guard_process.END_S = 3.0")
    assert printed(output, "gRPC clients take --url ")
    processes = descendants(serving.pid)
    server = tritonserver(serving.pid)
    shared = prefix(server)
    os.kill(psutil.Process(server).ppid(), signal.SIGSTOP)
    serving.send_signal(signal.SIGTERM)
    assert serving.wait(60) == 0
    assert wait_until(lambda: not alive(processes), seconds=20), alive(processes)
    assert not leftovers(shared)
    assert not [
        file for file in admin.files(range(1, 65_536)) if file.exists() and f'"pid": {serving.pid}' in file.read_text()
    ]


def test_many_signals_end_it_as_one_does(tmp_path: Path) -> None:
    lookup(tmp_path / "models")
    output = tmp_path / "output.txt"
    serving = program(tmp_path / "models", output, "--", *PLAIN)
    assert printed(output, "gRPC clients take --url ")
    processes = descendants(serving.pid)
    for _ in range(3000):
        if serving.poll() is not None:
            break
        serving.send_signal(signal.SIGTERM)
        serving.send_signal(signal.SIGINT)
        time.sleep(0.005)
    assert serving.wait(30) in (0, 130)  # Python handles SIGINT first if both wait
    assert "Traceback" not in output.read_text()
    assert output.read_text().count("stopped. The log is") == 1
    assert wait_until(lambda: not alive(processes), seconds=20), alive(processes)
