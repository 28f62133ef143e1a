"""When an open loop's requests are due: rates, burstiness and traces, against their distributions."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perf.load.__main__ import main
from perf.load.arrivals import COOL_DOWN_S, arrivals, climbing, drawn, read_trace
from perf.records.offered_load import Load


@pytest.mark.parametrize(
    ("pattern", "cv2", "expected"), [("poisson", 9.0, 1.0), ("gamma", 4.0, 4.0), ("gamma", 0.25, 0.25)]
)
def test_gaps_have_the_given_mean_and_variation(pattern: str, cv2: float, expected: float) -> None:
    times = drawn(pattern, 200.0, 500.0, cv2, np.random.default_rng(1))
    gaps = np.diff(times)
    # 100,000 gaps: the mean of gaps with cv2 4 has a standard error of 0.6 %.
    assert np.mean(gaps) == pytest.approx(1 / 200, rel=0.03)
    assert np.var(gaps) / np.mean(gaps) ** 2 == pytest.approx(expected, rel=0.1)
    assert times[-1] < 500.0


@given(st.sampled_from(["constant", "poisson", "gamma"]), st.floats(1.0, 500.0), st.integers(0, 99), st.integers(1, 9))
def test_a_load_is_rising_and_dealt_out_without_loss(pattern: str, rate: float, seed: int, workers: int) -> None:
    load = Load(workers=workers, pattern=pattern, rate_per_s=rate, seed=seed, warm_up_s=0.5, duration_s=1.0)
    times = arrivals(load)
    assert np.all(np.diff(times) >= 0)
    assert not len(times) or (times[0] >= 0 and times[-1] <= load.warm_up_s + load.duration_s + COOL_DOWN_S)
    np.testing.assert_array_equal(np.sort(np.concatenate([times[worker::workers] for worker in range(workers)])), times)
    np.testing.assert_array_equal(arrivals(load), times)


def test_a_ramp_has_as_many_arrivals_as_the_area_under_its_rate() -> None:
    """100/s before the window, from there to 500/s in 4 s, then 500/s: by adding up the rate in steps of 1 ms."""
    steps = np.arange(0.0, 6.0, 0.001)
    area = np.cumsum(np.minimum(100 + 100 * steps, 500)) * 0.001
    np.testing.assert_allclose(climbing(area, 100.0, 500.0, 4.0), steps + 0.001, atol=0.001)
    # A falling rate, and a constant one: 100 t - 6.25 t^2 = 225 at t = (100 - sqrt(4375)) / 12.5.
    falling = climbing(np.array([225.0, 300.0, 400.0]), 100.0, 50.0, 4.0)
    np.testing.assert_allclose(falling, [(100 - 4375**0.5) / 12.5, 4.0, 6.0])
    np.testing.assert_allclose(climbing(np.array([50.0, 500.0]), 100.0, 100.0, 4.0), [0.5, 5.0])
    load = Load(pattern="ramp", rate_per_s=100.0, rate_to_per_s=500.0, warm_up_s=2.0, duration_s=4.0, seed=3)
    times = arrivals(load)
    assert np.all(np.diff(times) >= 0)
    counts, _ = np.histogram(times, [0.0, 2.0, 4.0, 6.0, 7.0])
    expected = np.array([200, 400, 800, 500])
    assert np.all(np.abs(counts - expected) < 4 * np.sqrt(expected))


def test_a_trace_is_replayed_in_the_window(tmp_path: Path) -> None:
    trace = tmp_path / "arrivals.txt"
    trace.write_text("# seconds\n100.0\n100.5\n100.5\n103.0\n")
    np.testing.assert_array_equal(read_trace(trace), [0.0, 0.5, 0.5, 3.0])
    times = arrivals(Load(workers=1, pattern="trace", trace=trace, warm_up_s=2.0, duration_s=1.0))
    # The request at 3 s is outside the second that is measured; what comes before is warm-up.
    np.testing.assert_array_equal(times[times >= 2.0], [2.0, 2.5, 2.5])


def test_a_load_that_cannot_be_sent_is_refused_before_the_model_is_looked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Callable[..., None]
) -> None:
    said = []

    def refused(words: str) -> None:
        try:
            status: int | str | None = main(["absent", *words.split()])
        except SystemExit as ended:
            status = ended.code
        error = capsys.readouterr().err
        assert status == 2, words
        assert error.count("\n") == 1
        said.append(f"$ load absent {words}\n{error}")

    for words in (
        "--pattern poisson",
        "--pattern trace",
        "--rate 100",
        "--pattern constant --rate 1 --requests 10",
        "--workers 8 --requests 7",
        "--in-flight 2 --pattern poisson --rate 9",
        "--pattern ramp --rate 9",
        "--pattern poisson --rate 9 --rate-to 9",
        "--seed -1",
        "--pattern poisson --rate 1e300",
        "--delay-ms nan",
        "--in-flight-limit 0 --pattern poisson --rate 9",
        "--in-flight-limit 9",
        "--cv2 5",
        "--http-url localhost:1",
        "--percent 90",
        "--results /dev/null",
        "--time-scale nan",
        "--max-batch-size 0",
        "--duration 1e12",
        "--requests 99999999999999",
        "--p99-ms 1e300",
        "--pattern trace --trace missing",
    ):
        refused(words)
    for text in ("", "1\n0.5\n", "soon\n", "1\nnan\n"):
        (tmp_path / "arrivals.txt").write_text(text)
        refused(f"--pattern trace --trace {tmp_path}/arrivals.txt")
    golden("load_mistakes", "".join(said))
