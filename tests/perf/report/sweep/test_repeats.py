"""What more repeats do: they find a gain more often, and narrow the interval of a point."""

import math

import numpy as np

from perf.stats.verdict import CANNOT_TELL, FASTER
from tests.perf.report.sweep.test_summary import ceiling, only, record, row


def rates(count: int, factor: float, seed: int) -> list[float]:
    return [100 * factor * math.exp(each) for each in np.random.default_rng(seed).normal(0, 0.03, count)]


def test_more_repeats_find_a_gain_more_often_and_mark_no_steady_point() -> None:
    """A gain of 10 % at 3 % standard deviation; by the range of the repeats, 90 % of 20 repeats were not stable."""
    found = []
    for count in (2, 3, 5, 20):
        words = []
        for seed in range(20):
            sides = {name: rates(count, factor, 2 * seed + place) for place, (name, factor) in enumerate(PAIR.items())}
            rows = only(
                *(record(name, rate=rate, repeat=n) for name, side in sides.items() for n, rate in enumerate(side, 1))
            ).rows
            assert not any(each.marks for each in rows)
            assert rows[1].verdict is not None
            words.append(rows[1].verdict.word)
        assert set(words) <= {FASTER, CANNOT_TELL}
        found.append(words.count(FASTER))
    assert found == sorted(found)
    assert (found[2] > 15, found[3]) == (True, 20)


PAIR = {"baseline": 1.0, "dynamic": 1.1}


def test_a_point_that_is_not_known_well_says_how_many_more_repeats_it_needs() -> None:
    # Logarithms 0.0953 apart, standard deviation 0.0674: 2.776 x 0.0674 / sqrt 5 < 0.0953 < 3.182 x 0.0674 / sqrt 4.
    assert row(record(rate=100), record(rate=110, repeat=2)).more_repeats == 3
    assert row(record(rate=100), record(rate=101, repeat=2)).more_repeats == 0
    assert row(record(rate=100)).more_repeats == 2
    assert row(record(rate=100), record(rate=1000, repeat=2)).more_repeats is None
    assert row(record(rate=0, mean_us=1.0)).more_repeats is None


def test_what_varies_is_not_marked() -> None:
    """Its interval says so, in which more repeats are of use."""
    assert row(record(windows=(80, 100, 120))).marks == ()
    assert row(record(rate=80), record(rate=120, repeat=2)).marks == ()
    assert row(record(), ceiling(rates=(150, 200, 250))).marks == ()
