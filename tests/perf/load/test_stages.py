"""The stages and the checks of a run, against sums by hand, and with inputs that must fail."""

import json
from pathlib import Path

import numpy as np
import pytest

from perf.load.stages import COUNTERS, TRACES, stages
from perf.load.table import stage_table
from perf.load.timings import FAILED, NOT_SENT, REQUEST, RIGHT, WRONG, Timings
from perf.load.window import sample, summary
from perf.records import file
from perf.records.load_record import REMAINDER, CpuTime, LoadRecord, LoadResult, Stages
from perf.records.offered_load import Load
from perf.stats.quantile import quantile
from serve.management.statistics import Counters
from serve.management.traces import Trace
from triton_batching.machine import Machine

MS = 1_000_000


def timings(count: int = 10, *, wait_ms: int = 50, outcome: int = RIGHT, every_ms: int = 100) -> Timings:
    """Requests of process 0, one every `every_ms` ms: 1 ms to write, `wait_ms` to wait, 2 ms to read."""
    rows = []
    for number in range(count):
        at = number * every_ms * MS
        sent, received = at + MS, at + MS + wait_ms * MS
        rows.append((0, number, at, at, sent, received, received + 2 * MS, outcome))
    return np.array(rows, dtype=REQUEST)


def counters(count: int = 10, *, run_ms: int = 30) -> Counters:
    """Per request 10 ms of queue, 1 ms of gather, `run_ms`, and 3 ms of output for the whole batch."""
    return Counters(
        requests=count,
        failed_requests=0,
        rows=count,
        executions=5,
        queue_ns=count * 10 * MS,
        compute_input_ns=count * MS,
        compute_infer_ns=count * run_ms * MS,
        compute_output_ns=count * 3 * MS,
        batches={2: 5},
        batches_ns={2: 5 * run_ms * MS},
    )


def trace(number: int, *, inside_ms: int = 43) -> Trace:
    """The server's view of one: `inside_ms` from the queue to the response, of which the last 2 ms are output."""
    start = 7_000_000 * MS  # another clock than the client's
    moments = {
        "QUEUE_START": start,
        "COMPUTE_START": start + 10 * MS,
        "COMPUTE_INPUT_END": start + 11 * MS,
        "COMPUTE_OUTPUT_START": start + (inside_ms - 2) * MS,
        "INFER_RESPONSE_COMPLETE": start + inside_ms * MS,
        "COMPUTE_END": start + (inside_ms + 1) * MS,
    }
    return Trace(model="m", request_id=f"0.{number}", moments=moments)


def stage_ms(parts: Stages) -> dict[str, float]:
    return {part.name: part.mean_us / 1e3 for part in parts.parts}


def test_each_stage_comes_from_its_source() -> None:
    parts = stages(timings(), counters(), [trace(2), trace(7)])
    # The client waited 50 ms and the server says that 43 of them passed inside: 7 are the network's.
    expected = {"client write": 1, "network": 7, "queue": 10, "batch gather": 1, "run": 30, "split": 2, "copy back": 2}
    assert stage_ms(parts) == pytest.approx(expected)
    assert (parts.latency_us, parts.sum_us) == pytest.approx((53_000, 53_000))
    assert parts.holds is True
    assert {part.name: part.source for part in parts.parts}["network"] == TRACES
    assert [part.sample for part in parts.parts] == [10, 2, 10, 10, 10, 2, 10]


def test_the_sum_fails_when_counters_and_clients_disagree() -> None:
    # Another client's slow requests are in the counters: run 36 ms instead of 30 is 11 % of 53 ms.
    parts = stages(timings(), counters(run_ms=36), [trace(2)])
    assert parts.error == pytest.approx(6 / 53)
    assert parts.holds is False


def test_without_traces_the_sum_is_not_checked() -> None:
    parts = stages(timings(), counters(), [])
    sources = {part.name: part.source for part in parts.parts}
    assert (sources["network"], sources["split"]) == (REMAINDER, COUNTERS)
    assert stage_ms(parts)["network"] == pytest.approx(53 - 1 - 10 - 1 - 30 - 3 - 2)
    names = list(stage_table(parts).columns[0].cells)
    assert "outside the server" in names
    assert "network" not in names
    assert (parts.error, parts.holds) == (None, None)


def test_latency_counts_from_when_a_request_was_due() -> None:
    late = timings()
    late["due"] -= 20 * MS
    parts = stages(late, counters(), [trace(2)])
    assert stage_ms(parts)["late send"] == pytest.approx(20)
    assert parts.latency_us == pytest.approx(73_000)
    assert summary(late, Load(pattern="constant", rate_per_s=10.0), -20 * MS, 980 * MS).late_sends == 10


def test_outcomes_are_counted_apart() -> None:
    parts = ((6, RIGHT), (1, WRONG), (2, FAILED), (1, NOT_SENT))
    mixed = np.concatenate([timings(count, outcome=outcome) for count, outcome in parts])
    counts = summary(mixed, Load(pattern="constant", rate_per_s=10.0, rows=4, in_flight_limit=8), 0, 1000 * MS)
    assert (counts.right, counts.wrong, counts.failed, counts.not_sent, counts.answered) == (6, 1, 2, 1, 7)
    assert (counts.requests_per_s, counts.rows_per_s, counts.offered_per_s) == (7, 28, 10)
    assert counts.mean_us == pytest.approx(53_000)
    assert counts.percentiles_us[99] == pytest.approx(53_000)


def test_throughput_is_of_requests_that_were_answered_in_the_window() -> None:
    """A server that answers one request each 25 ms under one each 10 ms: of 100 due in a second, 40 are answered in it.

    The others of these are answered later, and 20 of those that are answered in it were due before.
    """
    overload = np.zeros(300, dtype=REQUEST)
    overload["due"] = overload["called"] = (np.arange(300) - 33) * 10 * MS
    overload["done"] = (np.arange(300) - 20) * 25 * MS + 15 * MS
    counts = summary(overload, Load(pattern="constant", rate_per_s=100.0, rows=4), 0, 1000 * MS)
    assert (counts.requests_per_s, counts.rows_per_s, counts.offered_per_s) == (40, 160, 100)
    assert counts.answered == 100
    # Latencies are those of the requests that were due in the window, the last of them answered after 2 s.
    assert counts.percentiles_us[99] == max(overload["done"][33:132] - overload["due"][33:132]) / 1e3
    failed = overload.copy()
    failed["outcome"][20:30] = FAILED
    assert summary(failed, Load(pattern="constant", rate_per_s=100.0), 0, 1000 * MS).requests_per_s == 30


def test_a_percentile_is_a_latency_that_was_measured() -> None:
    # Of twenty the two slow ones are the 19th and 20th: nothing between 53 and 503 ms was ever measured.
    slow = np.concatenate([timings(18), timings(2, wait_ms=500)])
    counts = summary(slow, Load(pattern="constant", rate_per_s=10.0), 0, 2000 * MS)
    assert counts.percentiles_us == {50: 53_000.0, 90: 53_000.0, 95: 503_000.0, 99: 503_000.0}
    assert summary(slow[:0], Load(), 0, MS).percentiles_us == dict.fromkeys((50, 90, 95, 99), 0.0)


def result(measured: Timings, load: Load, window_ms: int) -> LoadResult:
    return LoadResult(
        load=load,
        outcome=summary(measured, load, 0, window_ms * MS),
        stages=stages(measured, counters(), [trace(2)]),
        counted=counters(),
        busy=CpuTime(clients_s=1.0, server_s=0.5, machine_s=1.0, wall_s=1.0, cores=2),
        errors={},
        memory_bytes=0,
        sample=sample(measured, 0),
        judgement=None,
        checked=True,
        partial=False,
        lost=0,
        reloads_s=(),
    )


def test_p99_is_recorded_with_its_interval(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    measured = timings(4000, every_ms=1)
    measured["done"] = measured["due"] + (np.repeat(rng.exponential(10.0, 1000), 4) * MS).astype(np.int64)
    run = result(measured, Load(pattern="constant", rate_per_s=1000.0), 4000)
    found = run.p99
    assert found is not None
    assert found == quantile(run.sample.latencies_us, 99)
    # Four in a row are alike, so the interval is wider than that of 4,000 independent requests, and holds the truth.
    assert 4 <= found.design_effect < 6
    assert found.low_ms < 10 * np.log(100) < found.high_ms
    path = recorded(run).write(tmp_path)
    assert json.loads(path.read_text())["p99_interval"] == vars(found)
    assert file.read(path, LoadRecord).p99 == found


def recorded(run: LoadResult) -> LoadRecord:
    return LoadRecord(
        **vars(run),
        model="ranker",
        config_name=None,
        config_sha256="",
        config="",
        transport="grpc",
        time_scale=1.0,
        started_at="2030-01-01T00:00:00+00:00",
        command=(),
        machine=Machine(cpu="A", cores=2, memory_bytes=1, system="Linux", gpu=None),
        versions={},
    )


def test_littles_law_is_checked() -> None:
    # Ten requests of 53 ms in 530 ms keep one process busy without a break.
    sound = result(timings(every_ms=53), Load(workers=1), 530)
    assert sound.little == pytest.approx(0.0)
    assert sound.faults == []
    idle = result(timings(every_ms=53), Load(workers=1), 1000)
    assert idle.little == pytest.approx(0.53 - 1)
    (fault,) = idle.faults
    assert fault.startswith("Little's law is off by -47.0% (limit 5%): throughput x latency is not the number")
    assert fault.endswith("Measure longer (--duration), or load with fewer clients (--workers).")


def test_cpu_time_is_a_share_of_all_cores() -> None:
    busy = CpuTime(clients_s=1.0, server_s=0.5, machine_s=1.2, wall_s=1.0, cores=2)
    assert (busy.ours, busy.all, busy.share(1.0)) == (0.75, 0.75, 0.5)
    earlier = CpuTime(clients_s=0.5, server_s=0.5, machine_s=0.2, wall_s=0.5, cores=2)
    assert (busy - earlier) == CpuTime(clients_s=0.5, server_s=0.0, machine_s=1.0, wall_s=0.5, cores=2)
