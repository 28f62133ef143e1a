"""What is said of a sweep: golden text, with the intervals of the one rule."""

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from perf.compare.comparison import compare as compare_runs
from perf.records import runs
from perf.records.measurement import Ceiling, Measurement
from perf.report.command import summarise
from perf.report.sweep.summary import Comparison
from perf.report.sweep.verdict import advice, basis, once, sentences
from perf.stats.verdict import level_of_each
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


def against(*rates: float) -> Comparison:
    """Repeats of the baseline at 100 rows/s and of another configuration at these rates."""
    base = [record(rate=100 + 1e-3 * repeat, repeat=repeat) for repeat in range(1, len(rates) + 1)]
    return only(*base, *(record("dynamic", rate=rate, repeat=repeat) for repeat, rate in enumerate(rates, 1)))


# 2 rows in 10 ms and 8 rows in 40 ms: 5 ms a row, batched or not; two at a time take twice as long.
FULL = [
    record(rate=100, execution_us=10_000),
    record("dynamic", rate=101, batches={8: 50}, execution_us=40_000),
    record("dynamic_2_instances", rate=100, batches={8: 50}, execution_us=80_000),
]
CASES = {
    "batches and a second instance": repeated(
        record(rate=100),
        record("dynamic", rate=348, batches={8: 50}),
        record("dynamic_2_instances", rate=696, batches={8: 50}),
    ),
    "full cores": repeated(*FULL),
    "far from the ceiling": repeated(*FULL[:2], ceiling(rates=(120, 121))),
    "near the ceiling": repeated(*FULL[:2], ceiling(rates=(105, 106))),
    "no batches": repeated(record(), record("dynamic")),
    "faster": against(108, 109, 110),
    "slower": against(90, 91, 92),
    "the same": against(*(100, 101) * 7),
    "the same in a few repeats": against(100, 101, 100),
    "not certain": against(102, 114),
    "measured once": against(300),
    "another configuration": repeated(record(), record("tuned", rate=200)),
    "a fault": only(record(), record("dynamic", rate=300, failed=1)),
    "above the ceiling": only(record(rate=150), record("dynamic", rate=340), ceiling(rates=(200.0,))),
    "one configuration": only(record("dynamic")),
    "no common load": only(record(concurrency=2), record("dynamic")),
    "not known well": only(record(rate=100), record(rate=1000, repeat=2)),
}


def test_what_is_said_of_each_outcome(golden: Callable[..., None]) -> None:
    said = [
        "\n".join(filter(None, (f"== {name}", *sentences(each), advice(each), *basis(each), once([each])))) + "\n"
        for name, each in CASES.items()
    ]
    golden("report_sweep_verdicts", "\n".join(said))


def test_every_interval_is_at_the_level_that_is_printed() -> None:
    """Three configurations make three comparisons at 98.33 %; those of p95 were at 95 %."""
    rates = {"baseline": (100, 104, 101), "dynamic": (148, 150, 157), "dynamic_2_instances": (290, 301, 320)}
    comparison = only(
        *(record(name, rate=rate, repeat=n) for name, side in rates.items() for n, rate in enumerate(side, 1))
    )
    assert "each at 98.33 %" in basis(comparison)[0]
    for row in comparison.rows[1:]:
        for interval in (row.to_baseline, row.p95_to_baseline):
            assert interval is not None
            assert interval.level == pytest.approx(level_of_each(3))
    # p95 falls as the rate rises, so its interval is the inverse of that of the throughput.
    for sentence in sentences(comparison):
        ends = [float(number) for number in re.findall(r"([\d.]+) to ([\d.]+)", sentence) for number in number]
        assert ends[2:] == pytest.approx([1 / ends[1], 1 / ends[0]], abs=0.01)


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
