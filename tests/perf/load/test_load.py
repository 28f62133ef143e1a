"""The load generator with servers that it starts itself: exact counts, deaths and Ctrl-C."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from processes import wait_until

from export.repository import REPOSITORY, config_file, model_folder, read_config
from perf.load import __main__ as program
from perf.load.variant import Overrides, read, variant
from serve.management.api import ServerError
from serve.management.statistics import Counters

SHARED_MEMORY = Path("/dev/shm")
MODEL = "simulated_accelerator"
ECHO = 'return [pb_utils.InferenceResponse([pb_utils.Tensor("y", a)]) for a in {order}]'
INPUTS = 'arrays = [pb_utils.get_input_tensor_by_name(r, "x").as_numpy() for r in requests]; '


def test_overrides_replace_values_and_leave_files_alone(tmp_path: Path) -> None:
    before = read(MODEL, "baseline")
    text = config_file(model_folder(MODEL), "baseline").read_text()
    wanted = Overrides(max_batch_size=32, instances=3, delay_us=10_000, parameters={"row_ms": "1"}, time_scale=2.0)
    with variant(wanted.apply(before), model_folder(MODEL)) as repository:
        config = read_config(repository / MODEL / "config.pbtxt")
        assert (repository / MODEL / "1" / "model.py").read_text() == (
            REPOSITORY / MODEL / "1" / "model.py"
        ).read_text()
    assert not repository.exists()
    assert (config.max_batch_size, config.instance_group[0].count) == (32, 3)
    assert config.dynamic_batching.max_queue_delay_microseconds == 20_000
    assert {name: value.string_value for name, value in config.parameters.items()} == {"fixed_ms": "40", "row_ms": "2"}
    assert not before.HasField("dynamic_batching")
    assert config_file(model_folder(MODEL), "baseline").read_text() == text
    # Another maximum does not turn batching on.
    assert not Overrides(max_batch_size=4).apply(before).HasField("dynamic_batching")


def test_models_that_a_model_calls_get_the_same_variant() -> None:
    name = "image_classification"
    wanted = Overrides(max_batch_size=4).apply(read(name, "baseline"))
    with variant(wanted, model_folder(name), "baseline") as repository:
        configs = {folder.name: read_config(folder / "config.pbtxt") for folder in repository.iterdir()}
    assert set(configs) == {name, "image_preprocess", "resnet50", "image_postprocess"}
    assert configs.pop(name).max_batch_size == 4
    for step, config in configs.items():
        assert config == read(step, "baseline")
        assert not config.HasField("dynamic_batching")


@pytest.mark.server
def test_every_request_is_counted_and_answered_right(tmp_path: Path) -> None:
    arguments = ["--workers", "4", "--rows", "2", "--max-batch-size", "8", "--requests", "101", "--time-scale", "0.2"]
    assert program.main([MODEL, *arguments, "--trace-rate", "1", "--results", str(tmp_path)]) in (0, 1)
    record = json.loads(next(tmp_path.glob("*.json")).read_text())
    assert (record["outcome"]["right"], record["outcome"]["wrong"], record["outcome"]["failed"]) == (101, 0, 0)
    # The server's own count of exactly these requests, and no other.
    assert (record["counted"]["requests"], record["counted"]["rows"]) == (101, 202)
    batches = {int(rows): count for rows, count in record["counted"]["batches"].items()}
    assert sum(rows * count for rows, count in batches.items()) == 202
    assert set(batches) <= {2, 4, 6, 8}
    stages = {part["name"]: part for part in record["stages"]["parts"]}
    assert list(stages) == ["client write", "network", "queue", "batch gather", "run", "split", "copy back"]
    assert stages["network"]["sample"] == stages["split"]["sample"] == 101
    assert (record["checked"], record["partial"], record["lost"]) == (True, False, 0)


@contextlib.contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The program as a user starts it, in a process group of its own; it is over at the end."""
    command = [sys.executable, "-m", "perf.load", *arguments]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def below(root: int) -> dict[int, str]:
    """Command lines of all descendants of a process."""
    lines = {}
    for process in psutil.Process(root).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            lines[process.pid] = " ".join(process.cmdline())
    return lines


def below_with(process: subprocess.Popen[str], pattern: str) -> set[int]:
    """The descendants with `pattern` in their command line."""
    return {pid for pid, line in below(process.pid).items() if re.search(pattern, line)}


def counted(process: subprocess.Popen[str]) -> Counters:
    """The counters of the program's server; none before it starts."""
    ports = (re.search(r"tritonserver .*--grpc-port=(\d+)", line) for line in below(process.pid).values())
    with contextlib.suppress(StopIteration, ServerError):
        return Counters.read(f"127.0.0.1:{next(port[1] for port in ports if port)}", MODEL)
    return Counters.none()


@pytest.mark.server
def test_the_run_survives_a_client_and_a_model_process_and_ctrl_c_keeps_what_was_measured(tmp_path: Path) -> None:
    before = set(SHARED_MEMORY.iterdir())
    # With more clients the queue is never empty, and the dead instance's batch would wait for 10 s.
    options = ("--workers", "3", "--instances", "2", "--duration", "300", "--warm-up", "0.5", "--time-scale", "1")
    shared = ("--transport", "shared_memory", "--results", str(tmp_path))
    instance = rf"{MODEL}_0_[01]\b"
    with started(MODEL, *options, *shared) as process:
        assert wait_until(lambda: counted(process).requests >= 100, seconds=60)
        # The process that forks the clients has the same command line and the lowest number.
        os.kill(max(below_with(process, "multiprocessing.forkserver")), signal.SIGKILL)
        old = below_with(process, instance)
        os.kill(min(old), signal.SIGKILL)
        assert wait_until(lambda: bool(new := below_with(process, instance)) and not new & old, seconds=60)
        reloaded = counted(process).requests
        assert wait_until(lambda: counted(process).requests >= reloaded + 200, seconds=60)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err == ""
    assert "PARTIAL" in out
    assert "NOT SOUND: stopped before its end" in out
    assert "1 processes died" in out
    record = json.loads(next(tmp_path.glob("*.json")).read_text())
    assert record["partial"] is True
    assert 0 < record["outcome"]["window_s"] < 300
    assert (record["lost"], len(record["reloads_s"])) == (1, 1)
    # Only requests at the dead instance may fail, and none after the reload.
    assert record["outcome"]["failed"] <= 3 * 4
    assert all("is not healthy" in text for text in record["errors"])
    assert (record["outcome"]["wrong"], record["outcome"]["right"] > 50) == (0, True)
    # Those of other tests' clients go in a moment, and other programs have files there with other names.
    left = [path for kind in ("triton_client_*", "sem.*") for path in SHARED_MEMORY.glob(kind) if path not in before]
    assert wait_until(lambda: not any(path.exists() for path in left), seconds=20), left
