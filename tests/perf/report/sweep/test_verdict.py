from perf.report.sweep.verdict import gained, sentences
from tests.perf.report.sweep.test_summary import ceiling, only, record


def test_a_gain_names_figures_and_the_batches() -> None:
    # p95 is 1.2 x 8 rows in flight / rate, so it falls as the rate rises: 1/3.48 and 1/2
    comparison = only(
        record(rate=100),
        record("dynamic", rate=348, batches={8: 50}),
        record("dynamic_2_instances", rate=696, batches={8: 50}),
    )
    assert sentences(comparison) == (
        "dynamic batching: 3.48 x the rows/s of the baseline at concurrency 4 (p95 0.29 x), "
        "because 8.0 rows ran together instead of 2.0.",
        "a second instance: another 2.00 x the rows/s of dynamic at concurrency 4 (p95 0.50 x).",
    )


def test_full_cores_are_said_when_a_second_instance_gains_nothing_either() -> None:
    # 2 rows in 10 ms and 8 rows in 40 ms: 5 ms a row, batched or not; two at a time take twice as long
    comparison = only(
        record(rate=100, execution_us=10_000),
        record("dynamic", rate=101, batches={8: 50}, execution_us=40_000),
        record("dynamic_2_instances", rate=100, batches={8: 50}, execution_us=80_000),
    )
    assert sentences(comparison) == (
        "dynamic batching: nothing gained over the baseline at concurrency 4 (1.01 x, within the spread): "
        "8.0 rows ran together instead of 2.0, but a row took 1.00 x the compute time, "
        "so its cores are already full (compute-bound).",
        "a second instance: nothing gained over dynamic at concurrency 4 (0.99 x, within the spread): "
        "side by side, each row took 2.0 x as long, so its cores were already full (compute-bound).",
    )


def test_full_cores_are_said_near_the_ceiling_and_not_otherwise() -> None:
    points = [record(rate=100, execution_us=10_000), record("dynamic", batches={8: 50}, execution_us=40_000)]
    assert "compute-bound" not in sentences(only(*points))[0]
    assert "compute-bound" not in sentences(only(*points, ceiling(rates=(120, 120))))[0]
    assert "compute-bound" in sentences(only(*points, ceiling(rates=(105, 105))))[0]


def test_no_batches_no_gain() -> None:
    assert sentences(only(record(), record("dynamic")))[0].endswith(
        ": 2.0 rows ran together, as before, so no batches formed."
    )


def test_a_difference_within_the_spread_is_no_gain() -> None:
    base = [record(rate=100), record(rate=100, repeat=2)]
    noisy = only(*base, record("dynamic", rate=102), record("dynamic", rate=114, repeat=2))
    steady = only(*base, record("dynamic", rate=108), record("dynamic", rate=109, repeat=2))
    slower = only(*base, record("dynamic", rate=90), record("dynamic", rate=91, repeat=2))
    assert [gained(comparison.rows[1], comparison.rows[0]) for comparison in (noisy, steady, slower)] == [0, 1, -1]
    assert "nothing gained" in sentences(noisy)[0]
    assert sentences(slower)[0].endswith(", a loss.")


def test_the_highest_common_concurrency_is_compared() -> None:
    points = [record(concurrency=number) for number in (2, 8, 16)]
    comparison = only(*points, *(record("dynamic", rate=300, concurrency=number) for number in (2, 8)))
    assert "at concurrency 8 " in sentences(comparison)[0]


def test_marked_points_are_named() -> None:
    (sentence,) = sentences(only(record(), record("dynamic", rate=300, failed=1)))
    assert sentence.endswith(" Not stable: dynamic, see the marks.")


def test_without_a_reference_nothing_is_claimed() -> None:
    assert sentences(only(record("dynamic"))) == (
        "dynamic: 100.0 rows/s at concurrency 4; no other configuration was measured.",
    )
    assert sentences(only(record())) == (
        "baseline: 100.0 rows/s at concurrency 4; no other configuration was measured.",
    )
    assert sentences(only(record(concurrency=2), record("dynamic")))[0].startswith("No concurrency was measured")


def test_another_configuration_is_set_against_the_baseline() -> None:
    (sentence,) = sentences(only(record(), record("tuned", rate=200)))
    assert sentence == "tuned: 2.00 x the rows/s of the baseline at concurrency 4 (p95 0.50 x)."
