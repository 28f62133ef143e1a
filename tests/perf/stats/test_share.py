"""The interval on a share of late requests."""

import numpy as np
import pytest
from scipy.special import betaincinv

from perf.stats.latency_target import judge
from perf.stats.share import share


@pytest.mark.parametrize(("requests", "late"), [(100, 0), (100, 1), (100, 37), (100, 100), (5000, 12)])
def test_independent_requests_have_the_exact_binomial_interval(requests: int, late: int) -> None:
    found = share(requests, late, level=0.9)
    low = betaincinv(late, requests - late + 1, 0.05) if late else 0.0
    high = betaincinv(late + 1, requests - late, 0.95) if late < requests else 1.0
    assert (found.value, found.low, found.high) == pytest.approx((late / requests, low, high))
    assert (found.count, found.level) == (requests, 0.9)


@pytest.mark.parametrize("effect", [1.0, 3.5])
def test_it_agrees_with_the_verdict_on_a_target(effect: float) -> None:
    for late in range(30):
        upper = share(2000, late, design_effect=effect, level=0.98).high
        assert (upper < 0.01) == (judge(2000, late, 0.01, 0.99, design_effect=effect) is True), late


def test_it_holds_the_truth_as_often_as_it_says() -> None:
    late = np.random.default_rng(0).binomial(3000, 0.01, 4000)
    intervals = {number: share(3000, int(number)) for number in np.unique(late)}
    # 4,000 trials: the standard error of a share of 95 % is 0.34 %.
    assert np.mean([intervals[number].low <= 0.01 <= intervals[number].high for number in late]) >= 0.94
