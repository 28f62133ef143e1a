"""Freed memory stays in the backend's process: a batch needs no new pages for the copies of its inputs."""

from pathlib import Path
from types import SimpleNamespace

import heap
import numpy as np
import pytest
from bench import Bench
from onnx import helper
from streams import Stream, counted
from tiny_models import onnx_model

from serve import stubs

REQUESTS, VALUES, EXECUTIONS = 8, 150_000, 10
PAGE_BYTES = 4096


def faults(pid: int) -> int:
    """The pages that the system gave to a process without reading a file (proc_pid_stat(5), field 10)."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[7])


@pytest.mark.server
def test_later_batches_touch_no_new_pages(bench: Bench, tmp_path: Path) -> None:
    batching = "dynamic_batching { max_queue_delay_microseconds: 60000000 }"
    nodes = [helper.make_node("ReduceMax", ["x"], ["y"], axes=[1])]
    onnx_model(tmp_path, "largest", nodes, dims=(VALUES, 1), config=batching, max_batch_size=REQUESTS)
    rows = np.random.default_rng(0).normal(size=(REQUESTS, 1, VALUES)).astype(np.float32)
    with bench.serving(("largest",), tmp_path) as server, Stream(server.grpc_url) as stream:
        (pid,) = (pid for pid, model in stubs.instances(server.shared_memory_prefix).items() if model == "largest")
        largest = rows.max(2).ravel().tolist()

        def execute(times: int) -> None:
            for _ in range(times):
                answers = stream.send("largest", [{"x": row} for row in rows])
                assert [answer["y"].item() for answer in answers if isinstance(answer, dict)] == largest

        execute(3)
        warm = faults(pid)
        execute(EXECUTIONS)
        touched = faults(pid) - warm
        assert counted(server.grpc_url, "largest", executions=3 + EXECUTIONS).batches == {REQUESTS: 3 + EXECUTIONS}
    # Without it each execution touches all pages of its inputs.
    assert touched < EXECUTIONS * rows.nbytes / PAGE_BYTES / 4


@pytest.mark.parametrize("option", heap.VARIABLES)
def test_an_option_that_the_environment_sets_stays(option: int, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = set[int]()
    monkeypatch.setattr("ctypes.CDLL", lambda _: SimpleNamespace(mallopt=lambda name, _: changed.add(name)))
    monkeypatch.setattr(heap, "_is_stub", lambda: True)
    monkeypatch.setenv(heap.VARIABLES[option], "1")
    heap.return_freed()
    heap.keep_freed()
    assert changed == {*heap.VARIABLES} - {option}
