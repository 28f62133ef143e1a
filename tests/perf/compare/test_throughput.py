"""Throughput is of the answers in the window."""

from pathlib import Path

import numpy as np
import pytest

from perf.compare.comparison import compare as lines_of
from perf.load.timings import REQUEST
from perf.records import runs
from tests.perf.compare.test_compare import of_timings

OFFERED = 800


def overloaded(folder: Path, capacity: float, repeat: int = 0) -> Path:
    """800 requests a second for 12 s, of which a server answers `capacity` a second; the window are the last 10 s."""
    rng = np.random.default_rng([repeat, int(capacity)])
    timings = np.zeros(12 * OFFERED, dtype=REQUEST)
    timings["due"] = timings["called"] = np.sort(rng.integers(-2 * 10**9, 10 * 10**9, len(timings)))
    done = -2e9 + np.cumsum(rng.exponential(1e9 / capacity, len(timings)))
    timings["done"] = np.maximum(done.astype(np.int64), timings["due"] + 1000)
    return of_timings(folder, timings, float(OFFERED), repeat)


def test_runs_under_an_overload_differ_as_their_answers_do(tmp_path: Path) -> None:
    """The same requests were due in both."""
    a, b = (runs.read(str(overloaded(tmp_path / name, rate))) for name, rate in (("a", 400), ("b", 500)))
    throughput = lines_of(a, b)[0]
    assert throughput.ratio.value == pytest.approx(1.25, rel=0.05)
    assert throughput.ratio.value == pytest.approx(throughput.b / throughput.a, rel=1e-9)
