"""Ramps of several rounds as one: what only one of them met is in none of its figures."""

from dataclasses import replace

import pytest
from hand_made import ramp

from perf.measure.service_profile import ServiceTimes
from perf.studies.prediction.service_rounds import middle, one_ramp


def counted(times: ServiceTimes) -> ServiceTimes:
    """With the sizes that its levels counted, as in a ramp that was measured."""
    return one_ramp([times])


def slow_level(times: ServiceTimes, index: int) -> ServiceTimes:
    """The same, but one level fell into a second in which everything took three times as long."""
    slow = ramp(factor=3.0).levels[index]
    return counted(replace(times, levels=(*times.levels[:index], slow, *times.levels[index + 1 :])))


@pytest.mark.parametrize("index", [1, 2])
@pytest.mark.parametrize("position", [0, 1, 2])
def test_one_slow_second_is_in_nothing_that_follows(index: int, position: int) -> None:
    good = counted(ramp())
    slow = slow_level(good, index)
    assert slow.table_us != good.table_us
    rounds = [good, good, good]
    rounds[position] = slow
    combined = one_ramp(rounds)
    assert combined.table_us == good.table_us
    assert (combined.gap, combined.way, combined.burden) == (good.gap, good.way, good.burden)


def test_the_sizes_are_those_of_the_levels_with_all_instances_at_work() -> None:
    """20 ms + 0.5 ms a row: one row at the lowest level, 4 and 8 above it, 100 executions each."""
    errors = [
        replace(round_, sizes=tuple(replace(size, error_us=error) for size in round_.sizes))
        for round_, error in zip([ramp()] * 3, (3.0, 9.0, 4.0), strict=True)
    ]
    by_rows = {size.rows: (size.executions, size.mean_us, size.error_us) for size in one_ramp(errors).sizes}
    assert by_rows == {1: (100, 20_500.0, 4.0), 4: (100, 22_000.0, 4.0), 8: (100, 24_000.0, 4.0)}
    alone = {size.rows for size in one_ramp([ramp(instances=2)] * 3).sizes}
    assert alone == {4, 8}  # with one request, one of two instances is idle


def test_what_has_no_levels_is_the_median() -> None:
    rounds = [
        replace(counted(ramp()), alone_us=alone, rare_us=rare, noise=(noise,))
        for alone, rare, noise in ((1.0, 9.0, 1.0), (5.0, None, 1.2), (2.0, 7.0, 1.1))
    ]
    combined = one_ramp(rounds)
    assert (combined.alone_us, combined.rare_us, combined.noise) == (2.0, 8.0, (1.1,))


def test_ramps_of_other_levels_are_no_rounds_of_one() -> None:
    shorter = replace(ramp(), levels=ramp().levels[:2])
    with pytest.raises(ValueError, match="shorter"):
        one_ramp([ramp(), shorter])


@pytest.mark.parametrize(("keys", "chosen"), [([3.0], 0), ([2.0, 1.0], 1), ([5.0, 9.0, 7.0], 2), ([1.0, 1.0, 1.0], 1)])
def test_the_middle_one_is_that_of_the_median_key(keys: list[float], chosen: int) -> None:
    assert middle(range(len(keys)), keys) == chosen
