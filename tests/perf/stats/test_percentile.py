"""A percentile is the order statistic of its rank, counted in whole numbers."""

import math
from fractions import Fraction
from functools import partial

import numpy as np
import pytest

from perf.stats.percentile import percentile


@pytest.mark.parametrize("percent", ["50", "90", "95", "99", "99.9", "100"])
def test_the_rank_is_exact(percent: str) -> None:
    """Of 1 to n the value is its own rank; 99.9 % of 1000 are 999, which floating point makes more."""
    ranks = {count: math.ceil(count * Fraction(percent) / 100) for count in (1, 2, 19, 20, 99, 100, 1000, 1001, 2000)}
    values = {count: percentile(np.arange(count, 0, -1.0), float(percent)) for count in ranks}
    assert values == ranks


def test_an_unanswered_request_is_the_slowest() -> None:
    value = partial(percentile, [3.0, math.inf, 1.0, 2.0])
    assert [float(value(percent)) for percent in (25, 75, 76)] == [1.0, 3.0, math.inf]
    assert float(percentile([], 99)) == math.inf


def test_the_percentile_is_of_the_last_axis() -> None:
    assert percentile(np.array([[1.0, 9.0, 5.0], [2.0, 4.0, 3.0]]), 50).tolist() == [5.0, 3.0]
