"""When an open loop's requests are due: rates, burstiness and traces, against their distributions."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perf.load.__main__ import main
from perf.load.arrivals import COOL_DOWN_S, arrivals, climbing, drawn, read_trace
from perf.records.offered_load import Load
from triton_batching.terminal import Mistake


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


def test_constant_requests_are_evenly_spaced() -> None:
    times = drawn("constant", 40.0, 2.0, 1.0, np.random.default_rng(0))
    np.testing.assert_allclose(times, [number / 40 for number in range(1, 81)])


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


@pytest.mark.parametrize("text", ["", "1\n0.5\n", "soon\n", "1\nnan\n"])
def test_a_file_that_is_no_trace_is_refused(text: str, tmp_path: Path) -> None:
    trace = tmp_path / "arrivals.txt"
    trace.write_text(text)
    with pytest.raises(Mistake, match=r"arrivals\.txt: "):
        read_trace(trace)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"pattern": "poisson"}, "needs --rate"),
        ({"pattern": "trace"}, "go together"),
        ({"trace": Path("arrivals.txt")}, "go together"),
        ({"rate_per_s": 100.0}, "--rate 100: --pattern closed has no rate"),
        ({"pattern": "constant", "rate_per_s": 1.0, "requests": 10}, "--requests belongs to a closed loop"),
        ({"workers": 8, "requests": 7}, "less than one for each of the 8 clients"),
        ({"in_flight": 4, "workers": 2, "requests": 7}, "less than one for each of the 8 clients"),
        ({"in_flight": 2, "pattern": "poisson", "rate_per_s": 9.0}, "--in-flight belongs to a closed loop"),
        ({"pattern": "ramp", "rate_per_s": 9.0}, "--rate-to, the requests per second at its end, go together"),
        ({"pattern": "poisson", "rate_per_s": 9.0, "rate_to_per_s": 9.0}, "--rate-to"),
        ({"workers": 0}, "--workers 0: must be from 1"),
        ({"seed": -1}, "--seed -1: must be from 0"),
        ({"pattern": "poisson", "rate_per_s": 1e300}, "--rate 1e.300: must be from 0.001 to 1000000"),
        ({"pattern": "gamma", "rate_per_s": 9.0, "cv2": 1e300}, "--cv2 1e.300: must be from 0.001 to 10000"),
    ],
)
def test_a_load_that_cannot_be_sent_is_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(Mistake, match=message):
        Load(**values)  # type: ignore[arg-type]


def test_requests_are_shared_out() -> None:
    load = Load(workers=3, requests=10)
    assert [load.share(worker) for worker in range(3)] == [4, 3, 3]
    assert Load(workers=3).share(0) is None


def test_a_trace_is_read_before_anything_is_started(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not even the model is looked for."""
    assert main(["absent", "--pattern", "trace", "--trace", str(tmp_path / "missing")]) == 2
    assert "missing: not a trace of arrivals (No such file or directory)." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--delay-ms", "nan"], "--delay-ms nan: a delay is 0 to 3600000 milliseconds."),
        (["--delay-ms", "1e300"], "--delay-ms 1e+300: a delay is 0 to 3600000 milliseconds."),
        (["--delay-ms", "-1"], "--delay-ms -1: a delay is 0 to 3600000 milliseconds."),
        (["--seed", "-1"], "--seed -1: must be from 0 to 18446744073709551615."),
        (
            ["--in-flight-limit", "0", "--pattern", "poisson", "--rate", "9"],
            "--in-flight-limit 0: must be from 8 to 65536.",
        ),
        (
            ["--in-flight-limit", "9"],
            "--in-flight-limit does nothing in a closed loop. Leave it out.",
        ),
        (["--cv2", "5"], "--cv2 does nothing without --pattern gamma. Leave it out."),
        (["--http-url", "localhost:1"], "--http-url does nothing without --url. Leave it out."),
        (["--percent", "90"], "--percent does nothing without --p99-ms. Leave it out."),
        (["--whole"], "--whole does nothing without --p99-ms. Leave it out."),
        (["--results", "/dev/null"], "--results /dev/null: cannot be written to (File exists). Name another folder."),
        (
            ["--time-scale", "nan"],
            "--time-scale nan: a factor is above 0 and at most 1000000; 1 keeps the times.",
        ),
    ],
)
def test_a_value_out_of_range_is_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are checked before the model is looked for."""
    assert main(["absent", *arguments]) == 2
    assert capsys.readouterr().err.strip() == message


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("--max-batch-size", "0", "a whole number from 1 to 2,147,483,647"),
        ("--max-batch-size", str(2**40), "a whole number from 1 to 2,147,483,647"),
        ("--instances", "0", "a whole number from 1 to 1,024"),
        ("--trace-rate", "-1", "a whole number from 0 to 2,147,483,647"),
        ("--duration", "1e12", "a number above 0 and at most 604,800"),
        ("--warm-up", "1e12", "a number from 0 to 604,800"),
        ("--timeout", "1e300", "a number above 0 and at most 604,800"),
        ("--requests", "99999999999999", "a whole number from 1 to 1,000,000,000"),
        ("--p99-ms", "1e300", "a number above 0 and at most 604,800,000"),
        ("--timeout", "nan", "a number above 0 and at most 604,800"),
    ],
)
def test_an_option_out_of_range_is_refused(
    option: str, value: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["absent", option, value])
    assert ended.value.code == 2
    assert f"{option}: {value} is not {expected}." in capsys.readouterr().err
