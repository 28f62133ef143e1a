"""Answers counted from the requests that were due in the window."""

import math

import numpy as np
import pytest

from perf.records.completions import per_piece, rate_per_s


def test_answers_by_hand() -> None:
    """Answers at 1.0, 1.5, 2.0, 3.0, 4.0 and 4.5 s, of which the first starts the time and the last is too late."""
    due, latencies = [0.0, 0.5, 1.0, 1.2, 2.0, 2.5, 3.0], [1e6, 1e6, 1e6, math.inf, 1e6, 1.5e6, 1.5e6]
    assert rate_per_s(due, latencies, 4.0) == pytest.approx(4 / 3)
    # 1.5 and 2.0; 3.0; 4.0: a piece ends with its last moment.
    assert per_piece(due, latencies, 4.0, pieces=3) == pytest.approx([2.0, 1.0, 1.0])


@pytest.mark.parametrize(
    ("due", "latencies", "seconds"),
    [([], [], 4.0), ([0.0], [math.inf], 4.0), ([0.0, 1.0], [5e6, 5e6], 4.0), ([0.0], [1e6], 4.0), ([], [1e6], 4.0)],
)
def test_too_few_answers_are_no_rate(due: list[float], latencies: list[float], seconds: float) -> None:
    assert rate_per_s(due, latencies, seconds) is None
    assert per_piece(due, latencies, seconds, pieces=5) == []


@pytest.mark.parametrize("offered", [300.0, 499.0, 1000.0])
def test_a_server_with_a_queue_answers_at_most_its_capacity(offered: float) -> None:
    """500 a second in the order of arrival; those that wait since before the window are not known."""
    due = np.arange(-2.0, 10.0, 1 / offered)
    done = np.zeros(len(due))
    for number, at in enumerate(due):
        done[number] = max(at, done[number - 1] if number else at) + 1 / 500
    inside = due >= 0
    rate = rate_per_s(due[inside].tolist(), ((done - due)[inside] * 1e6).tolist(), 10.0)
    assert rate == pytest.approx(min(offered, 500.0), rel=0.002)
