"""A short ramp on a real server: what is counted at each level, and the record that comes of it."""

import pytest

from perf.analyzer import Target
from perf.ramp import climb, levels
from perf.service_time import main, recorded
from serve.launcher import Server

MODEL = "simulated_accelerator"


def test_the_levels_rise_from_one_to_more_than_all_instances_can_run() -> None:
    for most, instances in ((1, 1), (8, 1), (64, 2)):
        found = levels(most, instances)
        assert (found[0], found[-1]) == (1, 2 * most * instances + instances)
        assert found == sorted(found)
        assert len(found) <= 14


def test_a_record_names_no_folder_of_its_run() -> None:
    assert recorded("perf.service_time", ["m", "--results", "somewhere", "--threads", "1"])[3:] == (
        "m",
        "--threads",
        "1",
    )
    assert recorded("perf.service_time", ["m", "--results=somewhere"])[3:] == ("m",)


def test_a_count_that_is_none_is_a_users_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([MODEL, "--instances", "0"]) == 2
    assert "--instances 0: not a list of numbers" in capsys.readouterr().err


@pytest.mark.server
def test_a_ramp_counts_every_execution_by_its_size(server: Server) -> None:
    target = Target(model=MODEL, config=server.configs[MODEL], http_url=server.http_url, grpc_url=server.grpc_url)
    told: list[bool] = []
    (lone, full), glimpses = climb(target, [1, 17], lambda text, done: told.append(done))
    assert sum(told) == 2
    # One client is always alone in its execution, and 17 fill batches of 8.
    assert set(lone.counted.batches) == {1}
    assert full.counted.batches[8] > 0
    for level in (lone, full):
        assert level.seconds > 0
        assert level.counted.rows == sum(rows * count for rows, count in level.counted.batches.items())
        # It sleeps 20 ms and 0.5 ms a row, and nothing is faster than that.
        for rows, count in level.counted.batches.items():
            assert level.counted.execution_ns(rows) >= count * (20e6 + 0.5e6 * rows)
    assert {one.rows for one in glimpses} >= {1, 8}
