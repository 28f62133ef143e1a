"""Freed memory stays in the backend's process: a batch needs no new pages for the copies of its inputs."""

import asyncio
import ctypes
from pathlib import Path
from typing import Any

import heap
import numpy as np
import pytest
from bench import Bench
from onnx import helper
from streams import counted
from tiny_models import onnx_model

from clients.async_connection import connect
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

    async def execute(url: str, times: int) -> None:
        async with connect(url) as connection:

            async def one(row: Any) -> None:
                assert (await connection.infer("largest", {"x": row}))["y"] == row.max()

            for _ in range(times):
                await asyncio.gather(*map(one, rows))

    with bench.serving(("largest",), tmp_path) as server:
        (pid,) = stubs.instances(server.shared_memory_prefix)
        asyncio.run(execute(server.grpc_url, 3))
        before = faults(pid)
        asyncio.run(execute(server.grpc_url, EXECUTIONS))
        touched = faults(pid) - before
        assert counted(server.grpc_url, "largest", executions=3 + EXECUTIONS).batches == {REQUESTS: 3 + EXECUTIONS}
    # Without it each execution touches all pages of its inputs.
    assert touched < EXECUTIONS * rows.nbytes / PAGE_BYTES / 4


def test_a_process_that_is_no_stub_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[tuple[int, int]] = []

    class Library:
        @staticmethod
        def mallopt(parameter: int, value: int) -> None:
            called.append((parameter, value))

    monkeypatch.setattr(ctypes, "CDLL", lambda name: Library)
    heap.keep_freed()
    assert called == []
    monkeypatch.setattr(heap, "STUB", Path("/proc/self/exe").readlink().name)
    heap.keep_freed()
    assert called == [(-3, 32 << 20), (-1, 256 << 20)]
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1000")
    heap.keep_freed()
    assert len(called) == 2
