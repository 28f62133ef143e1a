"""The verdict on a latency target: against exact binomial sums, with any number of looks, and while requests are in
flight."""

import math
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from perf.load.target_check import TargetCheck
from perf.load.timings import FAILED, NOT_SENT, REQUEST, RIGHT, WRONG, Timings
from perf.load.window import sample
from perf.records.load_record import Sample
from perf.stats.latency_target import LatencyTarget, glance, judge, least
from triton_batching.terminal import Mistake

MS = 1_000_000
PERCENT = Fraction(1, 100)
SLA = LatencyTarget(latency_ms=50.0)


def at_most(count: int, of: int) -> Fraction:
    """Probability of at most `count` late ones of `of` at 1 % each, in whole numbers."""
    return sum(
        (math.comb(of, late) * PERCENT**late * (1 - PERCENT) ** (of - late) for late in range(count + 1)), Fraction(0)
    )


@pytest.mark.parametrize(("late", "requests"), [(0, 459), (1, 662), (10, 2010)])
def test_as_many_requests_as_mlperf_asks_for(late: int, requests: int) -> None:
    assert least(late, SLA.share) == requests
    assert at_most(late, requests) <= PERCENT < at_most(late, requests - 1)
    assert judge(requests, late, SLA.share) is True
    assert judge(requests - 1, late, SLA.share) is None


@settings(deadline=None)  # the first example loads scipy
@given(st.integers(1, 400), st.integers(0, 400))
def test_verdicts_are_those_of_exact_sums(requests: int, late: int) -> None:
    late = min(late, requests)
    few, many = at_most(late, requests), 1 - (at_most(late - 1, requests) if late else 0)
    expected = True if few <= PERCENT else False if many <= PERCENT else None
    assert judge(requests, late, SLA.share) is expected


def verdicts(rule: str, requests: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each number of requests: how many late ones still pass (-1: none does), and from how many on it fails."""
    judged = {"judge": judge, "glance": glance}[rule]
    passing, failing, at, over = [], [], -1, 1
    for number in range(1, requests + 1):
        while judged(number, at + 1, SLA.share) is True:
            at += 1
        while over <= number and judged(number, over, SLA.share) is not False:
            over += 1
        passing.append(at)
        failing.append(over)
    return np.array(passing), np.array(failing)


@pytest.mark.slow
def test_any_number_of_looks_is_wrong_for_one_in_a_hundred_at_most() -> None:
    """4,000 systems with exactly 1 % late, a look after every request: by the rule for looks and by the other.

    Any verdict on such a system is wrong.
    """
    late = np.cumsum(np.random.default_rng(6).random((4000, 2500)) < 0.01, axis=1)
    share = {}
    for rule in ("glance", "judge"):
        passing, failing = verdicts(rule, late.shape[1])
        share[rule] = (np.mean(np.any(late <= passing, axis=1)), np.mean(np.any(late >= failing, axis=1)))
    # Three standard errors of a count of 40 in 4,000 are 0.5 %.
    assert max(share["glance"]) <= 0.01
    assert min(share["judge"]) > 0.03


def test_looking_costs_requests() -> None:
    first = next(number for number in range(1, 2000) if glance(number, 0, SLA.share) is True)
    # By hand: (1 - 0.99^(n + 1)) / ((n + 1) 0.01 0.99^n) is to reach 100.
    ratio = (1 - 0.99 ** (first + 1)) / ((first + 1) * 0.01 * 0.99**first)
    assert (first, ratio >= 100) == (644, True)
    assert glance(100, 40, SLA.share) is False
    assert glance(10_000, 100, SLA.share) is None


@dataclass(frozen=True, kw_only=True)
class Going:
    """A run at one moment."""

    timings: Timings
    until_ns: int
    going_ns: tuple[int, ...] = ()


def requests(due_ms: list[float], latency_ms: float, outcome: int = RIGHT) -> Timings:
    timings = np.zeros(len(due_ms), dtype=REQUEST)
    timings["due"] = [int(due * MS) for due in due_ms]
    timings["done"] = timings["due"] + int(latency_ms * MS)
    timings["outcome"] = outcome
    return timings


def test_a_request_counts_once_its_time_is_up() -> None:
    """720 fast requests in 36 s; which of those of the last 50 ms are slow is not known while they are on their way."""
    fast = requests([50.0 * number for number in range(720)], 5.0)
    check, end = TargetCheck(target=SLA), 36_000 * MS
    assert check.is_sure(Going(timings=fast, until_ns=end), 0, end)
    # The rule takes 644 of them with none late. Those that were due in the last 50 ms do not count yet.
    assert not check.is_sure(Going(timings=fast, until_ns=32_200 * MS), 0, end)
    assert check.is_sure(Going(timings=fast, until_ns=32_220 * MS), 0, end)
    # One that is on its way and older than the limit is late, so it is not sure any more; a younger one is nothing yet.
    assert not check.is_sure(Going(timings=fast, until_ns=end, going_ns=(100 * MS,)), 0, end)
    assert check.is_sure(Going(timings=fast, until_ns=end, going_ns=(35_999 * MS,)), 0, end)
    assert not replace(check, stops=False).is_sure(Going(timings=fast, until_ns=end), 0, end)


def test_a_request_without_a_right_answer_is_late() -> None:
    parts = [requests([1.0], 5.0, outcome) for outcome in (FAILED, NOT_SENT, WRONG)]
    window = sample(np.concatenate([requests([0.0, 2.0, 3.0], 49.9), requests([4.0], 50.1), *parts]), 0)
    assert window.due_s == (0.0, 0.001, 0.001, 0.001, 0.002, 0.003, 0.004)
    assert window.latencies_us == (49_900.0, math.inf, math.inf, math.inf, 49_900.0, 49_900.0, 50_100.0)
    assert window.late(SLA) == 4
    judged = TargetCheck(target=SLA).judgement(window, early=False)
    assert (judged.requests, judged.late, judged.passed, judged.early) == (7, 4, False, False)
    assert TargetCheck(target=SLA).judgement(Sample(due_s=(), latencies_us=()), early=False).passed is None


@pytest.mark.parametrize(
    ("latency_ms", "percent"), [(0.0, 99.0), (math.nan, 99.0), (math.inf, 99.0), (10.0, 100.0), (10.0, math.nan)]
)
def test_a_wrong_target_is_a_mistake(latency_ms: float, percent: float) -> None:
    with pytest.raises(Mistake, match="the latency must be a finite number above 0, the percentile between 0 and 100"):
        LatencyTarget(latency_ms=latency_ms, percent=percent)
