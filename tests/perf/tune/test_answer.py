import math
from dataclasses import replace
from pathlib import Path

import pytest
from simulated_bench import CONFIG, SimulatedBench, accelerator, searching

from perf.records.candidate import Candidate
from perf.records.study import FINAL, Trial
from perf.records.traffic import Traffic
from perf.stats.latency_target import LatencyTarget
from perf.tune.answer import other_work, pareto
from perf.tune.bottleneck import bottleneck
from perf.tune.reasons import reasons, simplified
from perf.tune.simulator import Corrections
from serve.management.statistics import Counters

DEFAULT, CHOSEN = Candidate.of(CONFIG), Candidate(max_batch_size=16, instances=2)


def trial(candidate: Candidate = DEFAULT, load: str = "closed:16", stage: str = FINAL, number: int = 1) -> Trial:
    bench = SimulatedBench(service=accelerator, target=LatencyTarget(latency_ms=100))
    return bench.measure(candidate, Traffic.parse(load), stage=stage, round=number, seconds=1.0)


def test_the_bottleneck_is_named_with_its_numbers() -> None:
    measured = trial()
    # 16 clients and batches of 8 in 24 ms: each waits for one batch and is in the next.
    assert bottleneck([measured]).startswith("compute: the instances are full")
    assert f"{measured.counted.rows_per_execution:.3g} rows per execution" in bottleneck([measured])
    assert 7.5 < measured.counted.rows_per_execution <= 8
    assert bottleneck([replace(measured, cores_busy=0.97)]).startswith("cores: all are busy")
    assert "cores 97%" in bottleneck([replace(measured, cores_busy=0.97)])
    # What others took is not the model's need.
    crowded = bottleneck([replace(measured, cores_busy=0.97, cores_ours=0.33)])
    assert crowded.startswith("other work: it took 64% of the cores")
    assert "cores 97% (server and clients 33%)" in crowded
    assert bottleneck([replace(measured, cores_busy=0.97, cores_ours=0.95)]).startswith("cores: all are busy")

    alone = trial(load="closed:1")
    idle = replace(alone, counted=replace(alone.counted, batches_ns={1: 10**8}, queue_ns=0))
    assert bottleneck([idle]).startswith("transfer: most of the time passes between client and server")
    queued = replace(idle, counted=replace(idle.counted, queue_ns=int(sum(idle.latencies_us) * 900)))
    assert bottleneck([queued]).startswith("queue: most of the time is spent waiting")
    with pytest.raises(ValueError, match="nothing was measured"):
        bottleneck([])
    lost = replace(measured, throughput_rows_per_s=0.0, latencies_us=(math.inf,) * 10, counted=Counters.none())
    assert bottleneck([lost]) == "overload: no request was answered, so no time of a request is known"


@pytest.mark.slow
def test_the_front_holds_the_candidates_that_no_other_beats_in_both(tmp_path: Path) -> None:
    search = searching(tmp_path / "s.json", "closed:16", 100)
    screened = search.screen.run(search.candidates, Corrections())
    front = pareto(screened)
    for candidate in screened:
        beaten = any(
            other.throughput_rows_per_s >= candidate.throughput_rows_per_s
            and other.p99_ms <= candidate.p99_ms
            and (other.throughput_rows_per_s, other.p99_ms) != (candidate.throughput_rows_per_s, candidate.p99_ms)
            for other in screened
        )
        assert (candidate in front) <= (not beaten)
    assert front[0].throughput_rows_per_s == max(candidate.throughput_rows_per_s for candidate in screened)


def test_the_own_clients_are_no_other_work() -> None:
    """Server and clients of a model that is bound by the cores leave a load average far above their number."""
    own = replace(trial(), load_average=9.0, cores_busy=0.99, cores_ours=0.97)
    assert other_work([own]) == pytest.approx(0.02)
    disturbed = replace(own, load_average=0.1, cores_ours=0.6)
    assert other_work([own, disturbed]) == pytest.approx(0.39)
    assert other_work([replace(own, cores_ours=None)]) == 0.0


def test_a_value_that_does_not_help_keeps_its_current_setting(tmp_path: Path) -> None:
    """Sixteen clients fill two batches of eight, so that sixteen rows in one are never there."""
    search = searching(tmp_path / "s.json", "closed:16", 100)
    simple = simplified(search.screen, Corrections(), replace(CHOSEN, delay_us=2_000), DEFAULT)
    assert simple == replace(CHOSEN, max_batch_size=8, delay_us=2_000)
    assert set(reasons(search.screen, Corrections(), simple, DEFAULT)) == {"max_queue_delay_microseconds", "instances"}
