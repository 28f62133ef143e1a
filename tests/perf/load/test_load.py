"""The load generator on real servers: exact counts, checked replies, full batches, deaths, Ctrl-C and open loops."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from processes import alive, descendants, wait_until
from tiny_models import python_model

from export.repository import REPOSITORY, config_file, model_folder, read_config
from perf.load import __main__ as program
from perf.load import run
from perf.load.deployment import Deployment, running
from perf.load.pool import Pool, Request
from perf.load.variant import Overrides, read, variant
from perf.records.load_record import LoadResult
from perf.records.offered_load import Load
from serve.launcher import Server
from serve.management import traces
from serve.management.api import ServerError
from serve.management.statistics import Counters
from serve.revival import instances
from triton_batching.terminal import Mistake

SHARED_MEMORY = Path("/dev/shm")
MODEL = "simulated_accelerator"
ECHO = 'return [pb_utils.InferenceResponse([pb_utils.Tensor("y", a)]) for a in {order}]'
INPUTS = 'arrays = [pb_utils.get_input_tensor_by_name(r, "x").as_numpy() for r in requests]; '


def quiet(text: str, share: float) -> None:
    """No progress."""


def measure(
    target: Deployment, load: Load, progress: Callable[[Server | None], run.Progress] = lambda _: quiet
) -> LoadResult:
    with running(target, lambda _: None) as server:
        return run.run(target, load, server, run.prepare(target, load, server, quiet), progress(server.server))


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


def test_an_override_of_a_parameter_that_does_not_exist_is_refused() -> None:
    with pytest.raises(
        Mistake, match=r"has no parameter 'speed' to replace\. It has: fixed_ms, queue_limit_ms, row_ms"
    ):
        Overrides(parameters={"speed": "1"}).apply(read(MODEL, None))
    with pytest.raises(Mistake, match="no fixed_ms and row_ms to scale"):
        Overrides(time_scale=2.0).apply(read("ranker", None))


def test_a_pool_that_cannot_tell_its_answers_apart_says_so() -> None:
    request = Request(inputs=(), outputs=(np.zeros(1, dtype=np.float32),))
    assert Pool(requests=[request], tolerance=0.0, apart=0.1).tells_apart
    assert not Pool(requests=[request], tolerance=0.1, apart=0.1).tells_apart
    assert not Pool(requests=[request], tolerance=0.0, apart=0.0).tells_apart


@pytest.mark.server
def test_every_request_is_counted_and_answered_right(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    printed = capsys.readouterr().out
    assert "4 processes x 2 rows, closed loop" in printed
    assert all(name in printed for name in (*stages, "sum of the stages", "rows in an execution", "p99", "cores: "))


@pytest.mark.server
def test_a_reply_of_another_request_is_wrong(tmp_path: Path) -> None:
    """A model that swaps the answers of requests that run together."""
    python_model(tmp_path, "swapped", INPUTS + ECHO.format(order="arrays[1:] + arrays[:1]"))
    target = Deployment(model="swapped", repository=tmp_path, overrides=Overrides(instances=1, delay_us=20_000))
    result = measure(target, Load(workers=4, requests=200))
    together = sum(rows * count for rows, count in result.counted.batches.items() if rows > 1)
    assert together > 0
    assert (result.outcome.wrong, result.outcome.right) == (together, 200 - together)
    assert any("not those of their request" in fault for fault in result.faults)


@pytest.mark.server
def test_a_full_batch_leaves_at_once(tmp_path: Path) -> None:
    """With a delay of 0.5 s, four processes fill batches of four that never wait for it."""
    python_model(tmp_path, "echo", INPUTS + ECHO.format(order="arrays"))
    overrides = Overrides(max_batch_size=4, instances=1, delay_us=500_000)
    target = Deployment(model="echo", repository=tmp_path, overrides=overrides, trace_rate=1)
    with running(target, lambda _: None) as server:
        assert server.trace_file is not None
        load = Load(workers=4, requests=80)
        result = run.run(target, load, server, run.prepare(target, load, server, quiet), quiet)
        traced = [trace for trace in traces.read(server.trace_file) if re.fullmatch(r"[0-3]\.\d+", trace.request_id)]
    assert result.counted.batches == {4: 20}
    assert len(traced) == 80
    queued = sorted(trace.moments["QUEUE_START"] for trace in traced)
    started = sorted(trace.moments["COMPUTE_START"] for trace in traced)
    # From the fourth request's arrival to the start of the batch that it fills.
    waited_ms = [(started[last] - queued[last]) / 1e6 for last in range(3, 80, 4)]
    assert max(waited_ms) < 250
    assert np.median(waited_ms) < 50  # a tenth of the delay


@pytest.mark.server
def test_a_stall_is_in_the_latency_of_every_request_due_in_it() -> None:
    """The model's process is stopped for 0.5 s: a closed loop would show one slow request."""
    stopped = threading.Event()

    def progress(server: Server | None) -> run.Progress:
        assert server is not None

        def stall(text: str, share: float) -> None:
            if text.startswith("measuring") and share > 0.3 and not stopped.is_set():
                stopped.set()
                for pid in instances(server):
                    os.kill(pid, signal.SIGSTOP)
                time.sleep(0.5)
                for pid in instances(server):
                    os.kill(pid, signal.SIGCONT)

        return stall

    # A fifth of the shipped limit of the queue would refuse what waits for the stopped process.
    overrides = Overrides(max_batch_size=32, time_scale=0.2, parameters={"queue_limit_ms": "60000"})
    target = Deployment(model=MODEL, overrides=overrides)
    load = Load(workers=2, pattern="constant", rate_per_s=100.0, warm_up_s=0.5, duration_s=1.5)
    result = measure(target, load, progress)
    assert stopped.is_set()
    assert (result.outcome.answered, result.outcome.not_sent) == (150, 0)
    # 50 were due in the stall, evenly, so they waited 0.5 s to 0 s: 25 of 150 over a quarter of a second.
    assert result.outcome.percentiles_us[99] > 450_000
    assert result.outcome.percentiles_us[90] > 200_000
    assert result.outcome.wrong == 0


@pytest.mark.server
def test_requests_over_the_limit_in_flight_are_counted_as_not_sent() -> None:
    target = Deployment(model=MODEL, overrides=Overrides(max_batch_size=1, instances=1))
    load = Load(workers=2, pattern="poisson", rate_per_s=200.0, in_flight_limit=4, warm_up_s=0.5, duration_s=1.0)
    outcome = measure(target, load).outcome
    # One request takes 20.5 ms, so at most 49 of about 200 can be answered.
    assert outcome.answered <= 60
    assert outcome.not_sent > 100
    assert outcome.offered_per_s == outcome.answered + outcome.not_sent


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


def until(process: subprocess.Popen[str], words: str, count: int) -> list[int]:
    """Wait for `count` descendants with `words` in their command line; the lowest process id first."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and process.poll() is None:
        pids = sorted(pid for pid, line in below(process.pid).items() if words in line)
        if len(pids) >= count:
            return pids
        time.sleep(0.05)
    raise AssertionError(f"{words}: not there in time")


def answered(process: subprocess.Popen[str], count: int) -> None:
    """Wait until the program's server has answered so many requests."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        ports = (re.search(r"tritonserver .*--grpc-port=(\d+)", line) for line in below(process.pid).values())
        with contextlib.suppress(StopIteration, ServerError):
            url = f"127.0.0.1:{next(port[1] for port in ports if port)}"
            if Counters.read(url, MODEL).requests >= count:
                return
        time.sleep(0.05)
    raise AssertionError(f"{count} answers: not there in time")


def record_in(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(next(folder.glob("*.json")).read_text())
    return content


@pytest.mark.server
def test_the_run_goes_on_if_a_client_and_a_model_process_are_killed(tmp_path: Path) -> None:
    before = set(SHARED_MEMORY.iterdir())
    # On a busy machine the reload may take ten seconds.
    options = ("--workers", "6", "--instances", "2", "--duration", "20", "--warm-up", "0.5", "--time-scale", "1")
    shared = ("--transport", "shared_memory")
    with started(MODEL, *options, *shared, "--results", str(tmp_path)) as process:
        # The process that forks the workers has the same command line and the lowest number.
        workers = until(process, "multiprocessing.forkserver", 7)[1:]
        answered(process, 150)
        os.kill(workers[-1], signal.SIGKILL)
        time.sleep(0.5)
        stubs = [pid for pid, line in below(process.pid).items() if re.search(rf"{MODEL}_0_1\b", line)]
        os.kill(stubs[0], signal.SIGKILL)
        out, err = process.communicate(timeout=60)
    record = record_in(tmp_path)
    assert process.returncode == 1
    assert (record["lost"], len(record["reloads_s"])) == (1, 1)
    assert "1 processes died" in out
    assert record["outcome"]["wrong"] == 0
    assert record["outcome"]["longest_gap_s"] < 2
    # Only requests at the dead instance failed, and none after the reload.
    assert 0 < record["outcome"]["failed"] <= 6 * 4
    assert record["outcome"]["right"] > 100
    assert all("is not healthy" in text for text in record["errors"])
    assert "resource_tracker" not in err
    assert "Traceback" not in err
    assert {path.name for path in set(SHARED_MEMORY.iterdir()) - before if "triton_batching" not in path.name} == set()


@pytest.mark.server
def test_ctrl_c_keeps_what_was_measured(tmp_path: Path) -> None:
    options = ("--workers", "3", "--duration", "60", "--warm-up", "0.5", "--time-scale", "1")
    with started(MODEL, *options, "--results", str(tmp_path)) as process:
        answered(process, 250)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    record = record_in(tmp_path)
    assert record["partial"] is True
    assert record["outcome"]["right"] > 10
    assert 0 < record["outcome"]["window_s"] < 20
    assert "PARTIAL" in out
    assert "NOT SOUND: stopped before its end" in out
    assert err == ""


@pytest.mark.server
def test_more_ctrl_c_neither_change_the_end_nor_leave_a_process(tmp_path: Path) -> None:
    options = ("--workers", "2", "--duration", "60", "--warm-up", "0.5", "--time-scale", "1")
    with started(MODEL, *options, "--results", str(tmp_path)) as process:
        answered(process, 50)
        processes = descendants(process.pid)
        while process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
            time.sleep(0.05)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in err
    # The forkserver and the resource tracker end when they see that the program has ended.
    assert wait_until(lambda: not alive(processes), seconds=20)
    assert record_in(tmp_path)["partial"] is True
