"""What `perf.why` reads: files of requests, mixes of sizes and service times."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from perf.simulate.batcher.mix import Mix
from perf.simulate.batcher.request import MS
from perf.simulate.batcher.requests_file import RequestsError, read_requests
from perf.why.service import ServiceError, counted, read_service
from serve.management.statistics import Counters
from tests.perf.why.test_why import LENGTHS, X, config


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


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "column 2"),
        ("[1]", "is not a JSON object"),
        ("[" * 100_000, "nested too deep"),
        ('{"input": {}}', 'unknown key "input"'),
        ('{"inputs": []}', "not an object of shapes"),
        ('{"inputs": {"Y": [1]}}', 'input "Y" is not one of model "m", which has: X'),
        ("{}", 'input "X" has dims \\[-1\\], so its shape is needed'),
        ('{"inputs": {"X": [1, 2]}}', 'input "X" has shape \\[1, 2\\], but dims \\[-1\\]'),
        ('{"inputs": {"X": "20"}}', 'input "X" has shape "20"'),
        ('{"inputs": {"X": [true]}}', 'input "X" has shape \\[true\\]'),
        ('{"inputs": {"X": {"shape": [2], "datatype": "FP32"}}}', "is INT32, not FP32"),
        ('{"inputs": {"X": [2]}, "rows": 17}', "17 rows in one request, but max_batch_size is 16"),
        ('{"inputs": {"X": [2]}, "rows": 0}', '"rows" is 0, not a whole number from 1 up'),
        ('{"inputs": {"X": [2]}, "at_ms": -1}', '"at_ms" is -1, not a number'),
        ('{"inputs": {"X": [2]}, "at_ms": NaN}', '"at_ms" is NaN, not a number'),
        (
            '{"inputs": {"X": [2]}, "at_ms": 1790000000000}',
            "not a number from 0 to 1e\\+12. Count from the first request",
        ),
        ('{"inputs": {"X": [2]}, "priority": "high"}', '"priority" is "high"'),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, says: str) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text('{"inputs": {"X": [1]}}\n' + line + "\n")
    with pytest.raises(RequestsError, match=re.escape(f"{path}:2") + ".*" + says):
        read_requests(path, config(X + LENGTHS))


def test_a_file_without_requests_or_without_text(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text("\n")
    with pytest.raises(RequestsError, match="no requests in it"):
        read_requests(path, config(X + LENGTHS))
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RequestsError, match="not UTF-8"):
        read_requests(path, config(X + LENGTHS))
    with pytest.raises(RequestsError, match="No such file"):
        read_requests(tmp_path / "none", config(X + LENGTHS))


def test_sizes_of_a_mix() -> None:
    load = Mix(sizes=[2, 3], count=3, per_second=100).load(config(X + LENGTHS))
    assert [(request.at, request.shapes) for request in load.arrivals()] == [
        (0, {"X": (2,)}),
        (10 * MS, {"X": (3,)}),
        (20 * MS, {"X": (2,)}),
    ]


def test_service_times() -> None:
    affine, steps = read_service("20+0.5"), read_service("1=20,8=27,16=27")
    assert [affine(rows) for rows in (1, 8)] == [20_500_000, 24_000_000]
    assert [steps(rows) for rows in (1, 3, 8, 12, 32)] == [20 * MS, 22 * MS, 27 * MS, 27 * MS, 27 * MS]
    for wrong in ("", "x", "1=", "-1", "0=3", "20+x", "nan", "1=5,1=6", "8=1,1=5"):
        with pytest.raises(ServiceError, match="--service-ms"):
            read_service(wrong)


def test_a_size_that_the_server_did_not_count_is_on_the_steps_of_the_others() -> None:
    """Steps of 8 rows, of 10 ms each: 9 and 12 rows were not counted and take as long as 16."""
    batches = dict.fromkeys([*range(1, 9), 16, 24, 32], 50)
    times_ns = {rows: 50 * 10 * MS * -(-rows // 8) for rows in batches}
    service = counted(replace(Counters.none(), batches=batches, batches_ns=times_ns), 32)
    assert [service(rows) for rows in (1, 8, 16, 32)] == [10 * MS, 10 * MS, 20 * MS, 40 * MS]
    assert [service(rows) / MS for rows in (9, 12, 17)] == pytest.approx([20, 20, 30], rel=0.01)
