from collections.abc import Mapping
from dataclasses import replace

import pytest

from perf.records.measurement import AnalyzerLoad, AnalyzerResult, AnalyzerWindow, Ceiling, Measurement, MeasurementKey
from perf.report.sweep.mixture import MixtureError
from perf.report.sweep.summary import Comparison, Row, compare
from perf.stats import rounds
from perf.stats.verdict import level_of_each
from serve.management.statistics import Counters
from triton_batching.machine import Machine

MACHINE = Machine(cpu="test", cores=2, memory_bytes=2**33, system="Linux", gpu=None)
NOTHING = Counters.none()


def record(
    config_name: str = "baseline",
    *,
    rate: float = 100.0,
    concurrency: int = 4,
    repeat: int = 1,
    mean_us: float | None = None,
    windows: tuple[float, ...] | None = None,
    batches: Mapping[int, int] | None = None,
    execution_us: float = 1000,
    failed: int = 0,
    summary: bool = True,
    model: str = "m",
) -> Measurement:
    """A point without faults of 2 rows per request, unless told otherwise; the mean then follows from Little's law."""
    mean = mean_us or concurrency * 2 / rate * 1e6
    batches = batches or {2: 50}
    rows = sum(size * count for size, count in batches.items())
    requests = rows // 2
    latency = {name: mean * part for name, part in (("p50_us", 0.9), ("p90_us", 1.1), ("p95_us", 1.2), ("p99_us", 2.0))}
    parts = {"mean_us": mean, "client_send_us": 10.0, "network_us": 20.0, "client_receive_us": 1.0}
    counted = replace(
        NOTHING,
        requests=requests,
        failed_requests=failed,
        rows=rows,
        executions=sum(batches.values()),
        queue_ns=requests * 7_000,
        compute_input_ns=requests * 2_000,
        compute_infer_ns=requests * 30_000,
        compute_output_ns=requests * 4_000,
        batches=batches,
        batches_ns={size: int(count * execution_us * 1e3) for size, count in batches.items()},
    )
    before = replace(NOTHING, requests=5, rows=10, executions=5, failed_requests=3, queue_ns=999, batches={2: 5})
    return Measurement(
        point=MeasurementKey(
            model=model,
            config_name=config_name,
            config_sha256=f"sha of {config_name}",
            model_sha256="sha of model",
            load=AnalyzerLoad(concurrency=concurrency, request_rows=2),
            repeat=repeat,
            machine=MACHINE,
            versions={"python": "3.11"},
        ),
        started_at=f"2030-01-01T00:00:{repeat:02d}+00:00",
        command=("perf_analyzer", "-m", model),
        measured=AnalyzerResult(
            window_ms=500,
            windows=tuple(
                AnalyzerWindow(throughput_rows_per_s=window_rate, latency_us=mean * 1.2)
                for window_rate in ((rate, rate, rate) if windows is None else windows)
            ),
            throughput_rows_per_s=rate,
            requests=requests if summary else None,
            **(latency | parts if summary else {}),
        ),
        before=before,
        after=before + counted,
    )


def ceiling(*, repeat: int = 1, rates: tuple[float, ...] = (200.0, 200.0, 200.0), threads: int = 2) -> Ceiling:
    return Ceiling(
        model="m",
        model_sha256="sha of model",
        threads=threads,
        repeat=repeat,
        machine=MACHINE,
        versions={"python": "3.11"},
        started_at="2030-01-01T00:00:00+00:00",
        rows_per_s={1: (33.0,), 8: rates, 16: (44.0, 55.0)},
    )


def only(*entries: Measurement | Ceiling) -> Comparison:
    (comparison,) = compare(entries)
    return comparison


def row(*entries: Measurement | Ceiling) -> Row:
    return only(*entries).rows[-1]


def test_medians_over_repeats() -> None:
    # mean latency is 8 / rate seconds: 80, 40 and 20 ms, p95 1.2 of it
    last = row(*(record(rate=rate, repeat=repeat) for repeat, rate in enumerate((100.0, 200.0, 400.0), 1)))
    assert last.repeats == 3
    assert last.throughput_rows_per_s == 200
    assert last.mean_us == pytest.approx(40_000)
    assert last.p95_us == pytest.approx(48_000)
    assert last.p99_us == pytest.approx(80_000)
    assert last.throughput == rounds.mean([100.0, 200.0, 400.0])
    assert last.requests == 150


def test_batches_are_summed_and_rows_per_execution_is_a_median() -> None:
    last = row(record(batches={2: 10, 8: 10}), record(batches={8: 20}, repeat=2))
    assert last.batches == {2: 10, 8: 30}
    assert last.rows_per_execution == pytest.approx((100 / 20 + 160 / 20) / 2)
    assert last.infer_us_per_row == pytest.approx((20 * 1000 / 100 + 20 * 1000 / 160) / 2)


def test_ratios_are_paired_by_repeat() -> None:
    # 300/100 and 200/200: the mean ratio is sqrt 3, while the ratio of the means would be sqrt(300 x 200 / 100 / 200)
    base = [record(rate=100, repeat=1), record(rate=200, repeat=2)]
    last = row(*base, record("dynamic", rate=200, repeat=2), record("dynamic", rate=300, repeat=1))
    assert last.to_baseline == rounds.paired([300.0, 200.0], [100.0, 200.0])
    # p95 goes as 1 / rate here
    assert last.p95_to_baseline is not None
    assert last.p95_to_baseline.value == pytest.approx(3**-0.5)


def test_all_intervals_of_a_load_hold_together() -> None:
    """Two configurations over the baseline, and the second one over the first one as well; at 4 only the first."""
    names = {"baseline": (2, 4), "dynamic": (2, 4), "dynamic_2_instances": (2,)}
    points = [
        record(name, rate=100.0 + repeat, concurrency=number, repeat=repeat)
        for name, numbers in names.items()
        for number in numbers
        for repeat in (1, 2, 3)
    ]
    comparison = only(*points)
    assert [comparison.compared_at(number) for number in (2, 4, 8)] == [3, 1, 0]
    levels = {(each.config_name, each.load.concurrency): each.to_baseline for each in comparison.rows}
    assert {key: interval and interval.level for key, interval in levels.items() if key[0] != "baseline"} == {
        ("dynamic", 2): level_of_each(3),
        ("dynamic_2_instances", 2): level_of_each(3),
        ("dynamic", 4): 0.95,
    }


def test_ceiling_is_the_fastest_batch_and_paired_by_repeat() -> None:
    ceilings = [ceiling(rates=(190, 200, 210)), ceiling(repeat=2, rates=(400, 400, 400))]
    comparison = only(record(rate=100), record(rate=100, repeat=2), *ceilings)
    assert comparison.ceiling is not None
    assert (comparison.ceiling.rows, comparison.ceiling.throughput_rows_per_s) == (8, 305)  # of 190 200 210 400 400 400
    assert comparison.rows[0].to_ceiling == rounds.paired([100.0, 100.0], [200.0, 400.0])
    assert (comparison.ceiling.low, comparison.ceiling.high) == (190, 400)
    assert row(record()).to_ceiling is None


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"machine": replace(MACHINE, cores=64)}, "machine"),
        ({"versions": {"python": "3.12"}}, "versions"),
        ({"config_sha256": "another"}, "configuration file"),
        ({"model_sha256": "another"}, "model file"),
    ],
)
def test_mixtures_are_refused(change: dict[str, object], what: str) -> None:
    other = record(repeat=2)
    other = replace(other, point=replace(other.point, **change))  # type: ignore[arg-type]
    with pytest.raises(
        MixtureError, match=rf"c004\.r1\.json and .*c004\.r2\.json differ in their {what}.*(Move|Remove)"
    ):
        compare([record(), other])


def test_faults_are_marked() -> None:
    """perf_analyzer's figure for one window without the end of a request was six times the truth."""
    # 4 in flight x 2 rows at 100 rows/s is 80 ms; the mean that makes 8 / mean differ by the factor.
    for factor, marks in ((1.041, ("Little's law off by 4.1 %",)), (0.95, ("Little's law off by 5.0 %",)), (1.029, ())):
        assert row(record(mean_us=80_000 / factor)).marks == marks
    assert row(record(windows=())).marks == ("0 windows of 3",)
    # The builder's counters start at 3.
    assert row(record(failed=2), record(failed=1, repeat=2)).marks == ("failed requests: 3",)
    last = row(record(summary=False))
    assert last.marks == ("perf_analyzer printed no summary in repeat 1",)
    assert (last.mean_us, last.p95_us, last.stages.network_us, last.stages.queue_us) == (None, None, None, 7)


def test_what_is_not_comparable_has_no_ratio() -> None:
    assert row(record(rate=100), record("dynamic", repeat=2)).to_baseline is None
    assert row(record(concurrency=2), record("dynamic", concurrency=4)).to_baseline is None
    # What fewer threads than cores reach is not the ceiling.
    assert only(record(), ceiling(threads=1)).ceiling is None
    other = record("dynamic")
    other = replace(other, point=replace(other.point, load=replace(other.point.load, protocol="grpc")))
    assert [len(comparison.rows) for comparison in compare([record(), other])] == [1, 1]
