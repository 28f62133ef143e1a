"""A short ramp on a real server: what is counted at each level, and the record that comes of it."""

from dataclasses import replace

import pytest
from hand_made import ramp

from perf.measure.analyzer import Endpoint
from perf.measure.ramp import climb, levels
from perf.measure.service_time_run import concluded, with_steps
from serve.launcher import Server
from triton_batching.terminal import Failure

MODEL = "simulated_accelerator"


def test_the_levels_rise_from_one_to_more_than_all_instances_can_run() -> None:
    for most, instances in ((1, 1), (8, 1), (64, 2)):
        concurrencies = levels(most, instances)
        assert (concurrencies[0], concurrencies[-1]) == (1, 2 * most * instances + instances)
        assert concurrencies == sorted(concurrencies)
        assert len(concurrencies) <= 14


def test_levels_that_were_repeated_count_and_show_the_drift() -> None:
    """8 rows took 24 ms in 100 executions and, at the end, 30 ms in as many: 27 ms, and a drift of 4.24 / 27."""
    repeated = replace(ramp(factor=1.25).levels[-1], concurrency=17)
    record = concluded(replace(ramp(), sizes=(), again=(repeated,)), [])
    assert {size.rows: (size.executions, size.mean_us) for size in record.sizes} == {
        1: (100, 20_500.0),
        4: (100, 22_000.0),
        8: (200, 27_000.0),
    }
    exact = replace(record, sizes=tuple(replace(size, error_us=1.0) for size in record.sizes))
    assert exact.burden.drift == pytest.approx(3 * 2**0.5 / 27, rel=0.01)
    assert concluded(replace(ramp(), sizes=()), []).burden.drift == 0.0


@pytest.mark.parametrize(("batches", "batches_text"), [({}, "{}"), ({2: 3}, "{2: 3}"), ({1: 0}, "{1: 0}")])
def test_a_lowest_level_without_executions_of_one_row_is_an_error(batches: dict[int, int], batches_text: str) -> None:
    lowest = replace(ramp().levels[0], counted=replace(ramp().levels[0].counted, batches=batches))
    with pytest.raises(Failure, match=f"^hand_made: .* executions by rows {batches_text},"):
        concluded(replace(ramp(), levels=(lowest, *ramp().levels[1:])), [])


@pytest.mark.server
def test_a_ramp_counts_every_execution_by_its_size(server: Server) -> None:
    target = Endpoint(model=MODEL, config=server.configs[MODEL], http_url=server.http_url, grpc_url=server.grpc_url)
    done_steps: list[bool] = []
    climbed = climb(target, [1, 17], lambda text, done: done_steps.append(done))
    lone, full = climbed.levels
    assert sum(done_steps) == 2
    # One client is always alone in its execution, and 17 fill batches of 8.
    assert set(lone.counted.batches) == {1}
    assert full.counted.batches[8] > 0
    for level in (lone, full):
        assert level.seconds > 0
        assert level.counted.rows == sum(rows * count for rows, count in level.counted.batches.items())
        # It sleeps 20 ms and 0.5 ms a row, and nothing is faster than that.
        for rows, count in level.counted.batches.items():
            assert level.counted.execution_ns(rows) >= count * (20e6 + 0.5e6 * rows)
    assert {glimpse.rows for glimpse in climbed.glimpses} >= {1, 8}


@pytest.mark.server
def test_a_gap_with_a_jump_is_measured_by_requests_of_its_middle(server: Server) -> None:
    """Only 1 and 8 rows were counted, 20.5 and 24 ms, so 4 rows are next, and then none or others between."""
    target = Endpoint(model=MODEL, config=server.configs[MODEL], http_url=server.http_url, grpc_url=server.grpc_url)
    lowest, _, highest = ramp().levels
    counted = tuple(size for size in ramp().sizes if size.rows in (1, 8))
    found = with_steps(target, replace(ramp(), levels=(lowest, highest), sizes=counted))
    assert found.wide[0].rows == 4
    assert all(set(level.counted.batches) == {level.rows} for level in found.wide)
    assert {1, 4, 8} <= set(found.computing.counted)
    assert found.computing.times_us[4] >= 20_500
