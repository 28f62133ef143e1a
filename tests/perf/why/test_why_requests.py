"""What `perf.why` reads: files of requests, mixes of sizes and service times."""

from dataclasses import replace
from pathlib import Path

import pytest

from perf.simulate.batcher.request import MS
from perf.simulate.batcher.requests_file import read_requests
from perf.why.service import counted
from serve.management.statistics import Counters
from tests.perf.why.test_why import config


def test_a_file_of_requests(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text(
        '{"at_ms": 0, "inputs": {"INPUT": [20]}}\n'
        "# a comment, then an empty line\n\n"
        '{"at_ms": 1.5, "inputs": {"INPUT": {"shape": [30], "datatype": "FP32"}}, "rows": 2, "count": 2}\n'
        '{"inputs": {"INPUT": [7], "OPTIONAL": [3]}, "priority": 1, "timeout_us": 5}\n'
    )
    parsed = config(
        'max_batch_size: 4 input [ { name: "INPUT" data_type: TYPE_FP32 dims: [ -1 ] }, '
        '{ name: "FIXED" data_type: TYPE_FP32 dims: [ 2, 3 ] }, '
        '{ name: "OPTIONAL" data_type: TYPE_FP32 dims: [ 3 ] optional: true } ]'
    )
    read = read_requests(path, parsed)
    assert [request.at for request in read] == [0, 1_500_000, 1_500_000, 1_500_000]
    assert [request.rows for request in read] == [1, 2, 2, 1]
    assert read[0].shapes == {"INPUT": (20,), "FIXED": (2, 3)}
    assert read[3].shapes == {"INPUT": (7,), "FIXED": (2, 3), "OPTIONAL": (3,)}
    assert (read[3].priority, read[3].timeout) == (1, 5000)


def test_a_size_that_the_server_did_not_count_is_on_the_steps_of_the_others() -> None:
    """Steps of 8 rows, of 10 ms each: 9 and 12 rows were not counted and take as long as 16."""
    batches = dict.fromkeys([*range(1, 9), 16, 24, 32], 50)
    times_ns = {rows: 50 * 10 * MS * -(-rows // 8) for rows in batches}
    service = counted(replace(Counters.none(), batches=batches, batches_ns=times_ns), 32)
    assert [service(rows) for rows in (1, 8, 16, 32)] == [10 * MS, 10 * MS, 20 * MS, 40 * MS]
    assert [service(rows) / MS for rows in (9, 12, 17)] == pytest.approx([20, 20, 30], rel=0.01)
