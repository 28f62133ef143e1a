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


def overloaded(rows: int, batch_s: float, seconds: float, *, phase: float, jitter: float = 0.0) -> float | None:
    """The rate of a server with batches of `rows` that take `batch_s`, and of 1.1 times what it can answer.

    The clients get the answers of a batch within 3 % of its time. The window begins in the `phase` of a batch. The
    times have the standard deviation `jitter`.
    """
    rng = np.random.default_rng(round(1000 * phase))
    times = batch_s * np.exp(rng.normal(0, jitter, int(2 * seconds / batch_s) + 2))
    done = np.repeat(np.cumsum(times), rows) - phase * batch_s
    done += np.tile(np.linspace(0, 0.03 * batch_s, rows), len(times))
    due = batch_s * (np.arange(len(done)) / (1.1 * rows) - 1 - phase)
    inside = (due >= 0) & (due < seconds)
    return rate_per_s(due[inside].tolist(), ((done - due)[inside] * 1e6).tolist(), seconds)


@pytest.mark.parametrize("rows", [1, 8, 32, 64])
@pytest.mark.parametrize(("batch_s", "seconds"), [(0.3, 3.0), (0.3, 1.5), (0.01, 3.0)])
def test_the_rate_of_equal_batches_is_exact_wherever_the_window_begins(
    rows: int, batch_s: float, seconds: float
) -> None:
    for phase in np.linspace(0, 0.95, 20):
        rate = overloaded(rows, batch_s, seconds, phase=phase)
        assert rate == pytest.approx(rows / batch_s, rel=1e-6)


@pytest.mark.parametrize("rows", [1, 8, 32, 64])
def test_the_rate_of_batches_that_vary_is_right_on_average(rows: int) -> None:
    """About eight batches in each of 300 windows, with a standard deviation of 10 %: the mean has one of 0.2 %."""
    rates = [overloaded(rows, 0.3, 3.0, phase=phase, jitter=0.1) for phase in np.linspace(0, 0.999, 300)]
    assert np.mean([rate or 0.0 for rate in rates]) == pytest.approx(rows / (0.3 * math.exp(0.1**2 / 2)), rel=0.01)


def test_the_batch_that_the_window_cuts_is_not_counted() -> None:
    """Batches of 3 answers until 1.02, 2.02, 3.02, 4.02 and 5.02 s."""
    done = np.repeat([1.0, 2.0, 3.0, 4.0, 5.0], 3) + np.tile([0.0, 0.01, 0.02], 5)
    due = np.arange(15) / 15
    latencies = ((done - due) * 1e6).tolist()
    assert rate_per_s(due.tolist(), latencies, 5.01) == pytest.approx(3.0)
    # The pieces end at 2.52 and 4.02 s.
    assert per_piece(due.tolist(), latencies, 5.01, pieces=2) == pytest.approx([2.0, 4.0])
    assert rate_per_s(due.tolist(), latencies, 1.01) is None


def test_one_batch_is_no_rate() -> None:
    """32 answers within 1 ms are no rate of 32,000 a second."""
    due, done = np.zeros(32), np.linspace(0.3, 0.301, 32)
    assert rate_per_s(due.tolist(), (done * 1e6).tolist(), 3.0) is None
    assert rate_per_s(due.tolist(), (done * 1e6).tolist(), 0.3005) is None
