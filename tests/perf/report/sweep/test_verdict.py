import re
from dataclasses import replace

import pytest

from perf.compare.comparison import compare as compare_runs
from perf.records import runs
from perf.records.measurement import Ceiling, Measurement
from perf.report.command import summarise
from perf.report.sweep.summary import Comparison
from perf.report.sweep.table import filled
from perf.report.sweep.verdict import advice, basis, judged, once, sentences
from perf.stats.looks import anew
from perf.stats.verdict import CANNOT_TELL, FASTER, SAME, SLOWER
from perf.studies.archive import RESULTS, unpacked
from tests.perf.report.sweep.test_summary import ceiling, only, record


def repeated(*entries: Measurement | Ceiling) -> Comparison:
    """The records, and each measurement 23 times more; the figures differ by a millionth."""
    points = [entry for entry in entries if isinstance(entry, Measurement)]
    again = [_again(each, repeat, number) for number, each in enumerate(points) for repeat in range(2, 25)]
    return only(*entries, *again)


def _again(entry: Measurement, repeat: int, number: int) -> Measurement:
    """One more; which repeats are above the first one differs from point to point."""
    factor, old = 1 + 1e-6 * (-1.0) ** (repeat >> number), entry.measured
    p95_us = None if old.p95_us is None else old.p95_us * factor
    measured = replace(old, throughput_rows_per_s=old.throughput_rows_per_s * factor, p95_us=p95_us)
    return replace(entry, point=replace(entry.point, repeat=repeat), measured=measured)


def test_a_gain_names_figures_and_the_batches() -> None:
    # p95 is 1.2 x 8 rows in flight / rate, so it falls as the rate rises: 1/3.48 and 1/2
    comparison = repeated(
        record(rate=100),
        record("dynamic", rate=348, batches={8: 50}),
        record("dynamic_2_instances", rate=696, batches={8: 50}),
    )
    assert sentences(comparison) == (
        "dynamic batching: faster, 3.48 x (3.48 to 3.48) the rows/s of the baseline at concurrency 4, p95 0.29 x "
        "(0.29 to 0.29), because 8.0 rows ran together instead of 2.0.",
        "a second instance: faster, 2.00 x (2.00 to 2.00) the rows/s of dynamic at concurrency 4, p95 0.50 x "
        "(0.50 to 0.50).",
    )


def test_full_cores_are_said_when_a_second_instance_gains_nothing_either() -> None:
    # 2 rows in 10 ms and 8 rows in 40 ms: 5 ms a row, batched or not; two at a time take twice as long
    comparison = repeated(
        record(rate=100, execution_us=10_000),
        record("dynamic", rate=101, batches={8: 50}, execution_us=40_000),
        record("dynamic_2_instances", rate=100, batches={8: 50}, execution_us=80_000),
    )
    assert sentences(comparison) == (
        "dynamic batching: the same within 3% as the baseline at concurrency 4 (1.01 x, 1.01 to 1.01): "
        "8.0 rows ran together instead of 2.0, but a row took 1.00 x the compute time, "
        "so its cores are already full (compute-bound).",
        "a second instance: the same within 3% as dynamic at concurrency 4 (0.99 x, 0.99 to 0.99): "
        "side by side, each row took 2.0 x as long, so its cores were already full (compute-bound).",
    )


def test_full_cores_are_said_near_the_ceiling_and_not_otherwise() -> None:
    points = [record(rate=100, execution_us=10_000), record("dynamic", batches={8: 50}, execution_us=40_000)]
    assert "compute-bound" not in sentences(repeated(*points))[0]
    assert "compute-bound" not in sentences(repeated(*points, ceiling(rates=(120, 120))))[0]
    assert "compute-bound" in sentences(repeated(*points, ceiling(rates=(105, 105))))[0]


def test_no_batches_no_gain() -> None:
    assert sentences(repeated(record(), record("dynamic")))[0].endswith(
        ": 2.0 rows ran together, as before, so no batches formed."
    )


def against(*rates: float) -> Comparison:
    """Repeats of the baseline at 100 rows/s and of another configuration at these rates."""
    base = [record(rate=100 + 1e-3 * repeat, repeat=repeat) for repeat in range(1, len(rates) + 1)]
    return only(*base, *(record("dynamic", rate=rate, repeat=repeat) for repeat, rate in enumerate(rates, 1)))


@pytest.mark.parametrize(
    ("rates", "word", "sentence"),
    [
        ((108, 109, 110), FASTER, "dynamic batching: faster, 1.09 x (1.07 to 1.12) the rows/s of the baseline at conc"),
        ((90, 91, 92), SLOWER, "dynamic batching: slower, 0.91 x (0.89 to 0.94) the rows/s of the baseline at concurr"),
        (
            (100, 101) * 7,
            SAME,
            "dynamic batching: the same within 3% as the baseline at concurrency 4 (1.00 x, 1.00 to 1.01): 2.0 rows "
            "ran together, as before, so no batches formed.",
        ),
        # Three repeats do not show what happens in one of five, but the counters say why there is no gain.
        (
            (100, 101, 100),
            CANNOT_TELL,
            "dynamic batching against the baseline at concurrency 4: 1.00 x (0.99 to 1.02), cannot tell, measure 11 "
            "more repeats: a new sweep with --repeats 14. So far no difference above 3%: 2.0 rows ran together, as "
            "before, so no batches formed.",
        ),
        (
            (102, 114),
            CANNOT_TELL,
            "dynamic batching against the baseline at concurrency 4: 1.08 x (0.53 to 2.19), cannot tell, measure 5 "
            "more repeats: a new sweep with --repeats 7.",
        ),
        (
            (300,),
            CANNOT_TELL,
            "dynamic batching against the baseline at concurrency 4: 3.00 x, measured once.",
        ),
    ],
)
def test_the_verdict_is_that_of_the_one_rule(rates: tuple[float, ...], word: str, sentence: str) -> None:
    comparison = against(*rates)
    found = judged(comparison.rows[1], comparison.rows[0], comparison)
    assert found is not None
    assert (found[0], found[1]) == (comparison.rows[1].to_baseline, comparison.rows[1].verdict)
    assert found[1].word == word
    assert sentences(comparison)[0].startswith(sentence)


def test_a_table_says_what_its_intervals_are_and_what_it_needs() -> None:
    assert basis(against(102, 114)) == (
        "An interval is Student's t of the repeats in pairs, at 95 %.",
        "The throughput of 1 of 2 points is not known within 10% (95 %): a new sweep with about --repeats 6 would do.",
        anew("repeats"),
    )
    # The points are known, and the ratio is not.
    assert basis(against(97, 99, 101))[1:] == (anew("repeats"),)
    names = ("baseline", "dynamic", "dynamic_2_instances")
    assert basis(repeated(*map(record, names), ceiling(rates=(190.0, 200.0, 230.0)))) == (
        "Intervals are Student's t of the repeats in pairs, each at 98.33 %, so that the 3 of throughput at one "
        "concurrency hold together with 95 %, and so do those of p95.",
        "The ceiling is 200.0 rows/s, 190.0 to 230.0 over its rounds; a share of it holds for a machine of this speed.",
    )
    assert basis(only(record(rate=100), record(rate=1000, repeat=2))) == (
        "The throughput of 1 of 1 points is not known within 10% (95 %): a quieter machine would do.",
        anew("repeats"),
    )


def test_what_was_measured_once_has_ratios_and_no_verdict() -> None:
    quick = against(300)
    assert advice(quick) == "measured once: dynamic 3.00 x the rows/s of the baseline at 4 in flight"
    assert basis(quick) == ()
    assert [column.title for column in filled(quick) if column.title in ("x base", "verdict")] == ["x base"]
    assert "gives ratios and no verdict. For a verdict: make demo" in once([quick])
    assert once([against(300, 301)]) == ""


def test_a_share_of_the_ceiling_above_1_is_marked_and_explained() -> None:
    shares = only(record(rate=150), record("dynamic", rate=340), ceiling(rates=(200.0,)))
    (column,) = [each for each in filled(shares) if each.title == "x ceil."]
    assert [column.value(row) for row in shares.rows] == ["0.75", "1.70*"]
    assert "* 1 of 2 points are above it: a server cannot be faster than onnxruntime alone" in basis(shares)[-1]


def test_every_interval_is_at_the_level_that_is_printed() -> None:
    """Three configurations make three comparisons at 98.33 %; those of p95 were at 95 %."""
    rates = {"baseline": (100, 104, 101), "dynamic": (148, 150, 157), "dynamic_2_instances": (290, 301, 320)}
    comparison = only(
        *(record(name, rate=rate, repeat=n) for name, side in rates.items() for n, rate in enumerate(side, 1))
    )
    assert "each at 98.33 %" in basis(comparison)[0]
    for row in comparison.rows[1:]:
        assert row.p95_to_baseline is not None
        assert row.p95_to_baseline.level == pytest.approx(1 - 0.05 / 3)
    # p95 falls as the rate rises, so its interval is the inverse of that of the throughput.
    for sentence in sentences(comparison):
        ends = [float(number) for number in re.findall(r"([\d.]+) to ([\d.]+)", sentence) for number in number]
        assert ends[2:] == pytest.approx([1 / ends[1], 1 / ends[0]], abs=0.01)


def test_the_highest_common_concurrency_is_compared() -> None:
    points = [record(concurrency=number) for number in (2, 8, 16)]
    comparison = only(*points, *(record("dynamic", rate=300, concurrency=number) for number in (2, 8)))
    assert "at concurrency 8" in sentences(comparison)[0]


def test_marked_points_are_named() -> None:
    (sentence,) = sentences(only(record(), record("dynamic", rate=300, failed=1)))
    assert sentence.endswith(" Faulty: dynamic, see the marks.")


def test_without_a_reference_nothing_is_claimed() -> None:
    assert sentences(only(record("dynamic"))) == (
        "dynamic: 100.0 rows/s at concurrency 4; no other configuration was measured.",
    )
    assert sentences(only(record())) == (
        "baseline: 100.0 rows/s at concurrency 4; no other configuration was measured.",
    )
    assert sentences(only(record(concurrency=2), record("dynamic")))[0].startswith("No concurrency was measured")


def test_another_configuration_is_set_against_the_baseline() -> None:
    (sentence,) = sentences(repeated(record(), record("tuned", rate=200)))
    assert sentence == (
        "tuned: faster, 2.00 x (2.00 to 2.00) the rows/s of the baseline at concurrency 4, p95 0.50 x (0.50 to 0.50)."
    )


def test_the_report_and_the_comparison_of_the_same_records_agree() -> None:
    """One said a gain of 1.70, the other that it cannot tell."""
    with unpacked(RESULTS / "demo.jsonl") as folder:
        lines = compare_runs(runs.read(f"{folder}:baseline"), runs.read(f"{folder}:dynamic"))
        comparisons = summarise(folder).comparisons
    of_load = {(line.model, line.load.split()[0]): line for line in lines if line.quantity == "throughput"}
    found = [row for comparison in comparisons for row in comparison.of("dynamic")]
    assert len(found) == len(of_load) > 0
    for row in found:
        line = of_load[row.model, f"closed:{row.load.concurrency}"]
        assert (row.to_baseline, row.verdict) == (line.ratio, line.verdict)
