"""Which trials on record are used again."""

from dataclasses import replace
from pathlib import Path

from simulated_bench import SimulatedBench, accelerator, bench_of, searching

from perf.records.candidate import Candidate
from perf.records.study import HALVING, Trial
from perf.records.traffic import Traffic
from perf.tune.search import Search
from perf.tune.study_log import StudyLog

CANDIDATE = Candidate(max_batch_size=8)


def opened(path: Path) -> Search:
    return searching(path, "closed:16", 60, sizes=(8,))


def measure(log: StudyLog, load: str = "closed:16", seconds: float = 1.0) -> Trial:
    return log.measure(CANDIDATE, Traffic.parse(load), stage=HALVING, round=1, seconds=seconds)


def count(search: Search) -> int:
    return len(bench_of(search).measured)


def test_a_recorded_trial_of_another_length_is_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "study.json"
    first = measure(opened(path).log, seconds=2.9)
    again = opened(path)
    assert measure(again.log, seconds=2.9) == first
    assert count(again) == 0
    longer = measure(again.log, seconds=6.0)
    assert (longer.planned_s, count(again)) == (6.0, 1)
    # A server is started only for what is measured.
    last = opened(path)
    for seconds in (2.9, 6.0, 9.0):
        last.log.prepare(CANDIDATE, Traffic.parse("closed:16"), stage=HALVING, round=1, seconds=seconds)
        assert len(bench_of(last).prepared) == (seconds == 9.0)


def test_a_recorded_trial_after_another_warm_up_is_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "study.json"
    first = opened(path)
    trial = measure(first.log)
    first.log.change(trials=(replace(trial, warm_up_s=2.0),))
    again = opened(path)
    measure(again.log)
    assert count(again) == 1


def test_a_recorded_trial_of_a_changed_trace_is_measured_again(tmp_path: Path) -> None:
    path, trace = tmp_path / "study.json", tmp_path / "arrivals.txt"
    trace.write_text("0.1\n0.2\n")
    search = opened(path)
    first = measure_trace(search.log, trace)
    again = opened(path)
    assert measure_trace(again.log, trace) == first
    assert count(again) == 0
    trace.write_text("0.1\n0.3\n")
    assert measure_trace(again.log, trace).load_sha256 != first.load_sha256
    assert count(again) == 1


def measure_trace(log: StudyLog, trace: Path) -> Trial:
    """A trial of a trace; the simulated bench has no traces, so a closed loop stands in for its requests."""
    bench = log.bench
    assert isinstance(bench, SimulatedBench)
    traffic = Traffic.parse(f"trace:{trace}")
    log.bench = Replaying(service=accelerator, target=bench.target, measured=bench.measured)
    return log.measure(CANDIDATE, traffic, stage=HALVING, round=1, seconds=1.0)


class Replaying(SimulatedBench):
    def measure(self, candidate: Candidate, traffic: Traffic, *, stage: str, round: int, seconds: float) -> Trial:
        trial = super().measure(candidate, Traffic.parse("closed:4"), stage=stage, round=round, seconds=seconds)
        return replace(trial, load=str(traffic), load_sha256=traffic.sha256)
