"""Which trials on record are used again."""

from dataclasses import replace
from pathlib import Path

import pytest
from simulated_bench import Interrupted, SimulatedBench, accelerator, bench_of, searching

from perf.records.candidate import Candidate
from perf.records.resource_use import Limits
from perf.records.size_mix import SizeMix
from perf.records.study import FINAL, HALVING, Study, Trial
from perf.records.traffic import Traffic
from perf.stats.latency_target import LatencyTarget
from perf.tune.comparison import Comparison
from perf.tune.search import Search
from perf.tune.study_log import ROUNDS, StudyLog
from perf.tune.tuning import Question

CANDIDATE = Candidate(max_batch_size=8)
ONE, OTHER = Candidate(max_batch_size=8, instances=2), Candidate(max_batch_size=16, instances=2)


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


def compared(search: Search, choice: Candidate) -> Comparison:
    """The rounds of a choice beside the current configuration."""
    comparison = search._final_rounds.of(choice, search.screen.traffic)
    assert comparison is not None
    assert len(comparison.final) == len(comparison.current) == ROUNDS
    return comparison


def test_a_round_is_read_only_if_both_sides_were_measured_for_this_choice(tmp_path: Path) -> None:
    """Else an older trial of the current configuration is compared with a newer one of the choice."""
    path = tmp_path / "study.json"
    first = compared(opened(path), ONE)
    again = opened(path)
    assert compared(again, ONE) == first
    assert count(again) == 0
    other = opened(path)
    compared(other, OTHER)
    assert count(other) == 2 * ROUNDS
    back = opened(path)
    compared(back, ONE)
    assert count(back) == 2 * ROUNDS


def test_both_sides_of_an_interrupted_round_are_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "study.json"

    def interrupted(choice: Candidate) -> None:
        with pytest.raises(Interrupted):
            compared(searching(path, "closed:16", 60, sizes=(8,), stop_after=1), choice)

    interrupted(ONE)
    again = opened(path)
    compared(again, ONE)
    assert count(again) == 2 * ROUNDS
    # The first side of a round of another choice is no side of this one's. The other rounds are still whole.
    interrupted(OTHER)
    back = opened(path)
    compared(back, ONE)
    assert [(candidate, number) for candidate, _, number, _ in bench_of(back).measured] == [(CANDIDATE, 1), (ONE, 1)]
    assert sum(trial.stage == FINAL for trial in Study.read(path).trials) == ROUNDS


def test_a_resumed_study_has_the_space_and_the_profiles_of_the_new_command(tmp_path: Path) -> None:
    path = tmp_path / "study.json"
    measure(opened(path).log)
    search = opened(path)
    wider = replace(search.log.study, space={"max_batch_size": (8, 64)}, profiles=("wider.json",))
    log = StudyLog(wider, path, search.log.bench)
    measure(log)
    assert count(search) == 0
    assert (log.finish().space, log.finish().profiles) == (wider.space, wider.profiles)


def test_trials_without_what_is_limited_stay_on_record(tmp_path: Path) -> None:
    """A command with a limit, if it is stopped, takes nothing from the one without."""
    path, traffic, both = tmp_path / "study.json", Traffic.parse("closed:16"), [CANDIDATE, OTHER]
    for candidate in both:
        opened(path).log.measure(candidate, traffic, stage=HALVING, round=1, seconds=1.0)
    search = opened(path)
    limited = replace(search.log.study, limits=Limits(server_memory_mib=500))
    measure(StudyLog(limited, path, search.log.bench))
    assert count(search) == 1
    assert {trial.candidate for trial in Study.read(path).trials} == set(both)
    free = opened(path)
    for candidate in both:
        free.log.measure(candidate, traffic, stage=HALVING, round=1, seconds=1.0)
    assert count(free) == 0


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


def test_each_mix_has_a_study_of_its_own() -> None:
    def name(mix: SizeMix | None) -> str:
        traffic = Traffic.parse("closed:16", mix=mix)
        return Question(model="m", target=LatencyTarget(latency_ms=50), traffic=traffic).record.name

    names = [name(SizeMix(text=text)) for text in ("8:64", "8,64", ",".join(map(str, range(1, 200))))]
    assert len({*names, name(None)}) == 4
    assert name(None) == "m.closed-16.throughput.p99-50ms.json"
    assert max(map(len, names)) < 60
