"""Limits of what the server may use: what is not tried, what is not chosen, and the words for it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from onnx import helper, numpy_helper
from simulated_bench import CONFIG, SimulatedBench, bench_of, searching
from tiny_models import onnx_model

from perf.memory.measured import Instance, MemoryRecord, Size
from perf.records.candidate import Candidate
from perf.records.resource_use import Limits, ResourceUse
from perf.records.study import FINAL, Trial
from perf.records.traffic import Traffic
from perf.tune.comparison import Comparison
from perf.tune.limits import estimated, of_record, tried, unknown
from perf.tune.reasons import not_tried
from perf.tune.remedy import remedies
from perf.tune.search import Search
from perf.tune.space import space
from perf.tune.study_log import StudyLog
from triton_batching.machine import Machine

RECORD = MemoryRecord(
    model="m", model_sha256="", length=0, device="cpu", machine=Machine.this(), versions={}, empty=0, sizes={}
)
LIMITS = Limits(server_cores=1.5, server_memory_mib=600)
SEARCHED = space(CONFIG, largest=16, cores=2, gpu=False)


def of_rows(candidate: Candidate) -> ResourceUse:
    """An invented model: 100 MiB and 20 MiB a row for each instance."""
    return ResourceUse(server_memory_mib=candidate.instances * (100.0 + 20 * candidate.max_batch_size))


@dataclass(kw_only=True)
class UsingBench(SimulatedBench):
    """Its servers use what `use` says."""

    use: Callable[[Candidate], ResourceUse]

    def measure(self, candidate: Candidate, traffic: Traffic, *, stage: str, round: int, seconds: float) -> Trial:
        trial = super().measure(candidate, traffic, stage=stage, round=round, seconds=seconds)
        return replace(trial, used=self.use(candidate))


def limited(path: Path, limits: Limits, use: Callable[[Candidate], ResourceUse], p99_ms: float = 100) -> Search:
    """A search over batches of 8 and 16 rows on one or two instances of an accelerator."""
    search = searching(path, "closed:32", p99_ms, sizes=(8, 16))
    bench = bench_of(search)
    using = UsingBench(service=bench.service, target=bench.target, use=use)
    search.screen = replace(search.screen, goal=replace(search.goal, limits=limits))
    study = replace(search.log.study, limits=limits)
    search.log = StudyLog(study, path, using)
    return search


def test_what_an_estimate_excludes_is_said_and_is_no_candidate() -> None:
    # One instance needs 100 + 20 x 16 = 420 MiB; two need 2 x (100 + 20 x 11) = 640, and 600 with 10 rows.
    (sentence,) = not_tried(SEARCHED, LIMITS, of_rows)
    held = "its instances hold 640.0 MiB of memory (--memory-mib 600) after full batches of that size"
    assert sentence == f"not tried: 2 instances, max_batch_size 11 or more: {held}"
    # The current configuration, one instance of 8 rows, is measured with 260 MiB, too.
    one, two = not_tried(SEARCHED, Limits(server_memory_mib=150), of_rows)
    assert "1 instance, max_batch_size 3 or more, except the current configuration: its instances" in one
    assert "2 instances, max_batch_size 1 or more: its instances" in two
    candidates = SEARCHED.candidates(lambda parallelism, rows: 1000.0 * rows)
    assert tried(candidates, LIMITS, of_rows) == [
        each for each in candidates if each.instances == 1 or each.max_batch_size <= 10
    ]
    assert tried(candidates, LIMITS, unknown) == list(candidates)
    # The current configuration is measured, whatever it needs.
    assert tried(candidates, Limits(server_memory_mib=1), of_rows) == [SEARCHED.default]


@pytest.mark.slow
def test_a_search_chooses_the_best_within_the_limits(tmp_path: Path) -> None:
    free = limited(tmp_path / "free.json", Limits(), of_rows).run().chosen
    assert free is not None
    assert (free.candidate.instances, free.candidate.max_batch_size) == (2, 16)
    search = limited(tmp_path / "limited.json", Limits(server_memory_mib=500), of_rows)
    chosen = search.run().chosen
    assert chosen is not None
    # Of one instance with 420 MiB and two of 8 rows with 520 only the first is within 500 MiB.
    assert (chosen.candidate.instances, chosen.candidate.max_batch_size) == (1, 16)
    assert chosen.used == ResourceUse(server_memory_mib=420)
    steps = " ".join(step.text for step in search.log.study.steps)
    assert "meets the target, used 840.0 MiB of memory (--memory-mib 500)" in steps


@pytest.mark.slow
@pytest.mark.parametrize(
    ("used", "why"), [(1.75, "used 1.75 cores (--cpu 1.5)"), (None, "has no reading for --cpu 1.5")]
)
def test_a_choice_that_is_not_surely_within_a_limit_in_the_last_comparison_is_dropped(
    tmp_path: Path, used: float | None, why: str
) -> None:
    """Its trials before the choice were within the limit. Its first round is final."""
    path = tmp_path / "study.json"
    search = limited(path, Limits(server_cores=1.5), lambda candidate: ResourceUse(server_cores=1.0))
    best = search.run().chosen
    assert best is not None
    count = sum(trial.candidate == best.candidate for trial in search.log.study.trials if trial.stage == "halving")
    seen: list[Candidate] = []

    def greedier(candidate: Candidate) -> ResourceUse:
        seen.append(candidate)
        late = candidate == best.candidate and seen.count(candidate) > count
        return ResourceUse(server_cores=used if late else 1.0)

    again = limited(tmp_path / "again.json", Limits(server_cores=1.5), greedier)
    other = again.run().chosen
    assert other is None or other.candidate != best.candidate
    steps = [step.text for step in again.log.study.steps]
    assert f"{best.candidate}: not chosen, it {why} in the last comparison" in steps
    final = [trial for trial in again.log.study.trials if (trial.candidate, trial.stage) == (best.candidate, FINAL)]
    assert len(final) == 1


@pytest.mark.slow
def test_without_a_reading_of_what_is_limited_nothing_is_chosen(tmp_path: Path) -> None:
    """As with a nvidia-smi that hangs: a configuration of 9 GB would else be within 4 GB."""
    search = limited(tmp_path / "study.json", Limits(gpu_memory_mib=4000), of_rows)
    result = search.run()
    assert result.chosen is None
    assert result.closest is not None
    (remedy,) = remedies(result.closest, search.screen, search.corrections, search.candidates)
    assert remedy.startswith(f"the limits: {result.closest.candidate} has no reading for --gpu-memory-mib 4000, and")
    steps = [step.text for step in search.log.study.steps]
    assert any(text.endswith("meets the target, has no reading for --gpu-memory-mib 4000") for text in steps)


def test_a_current_configuration_over_a_limit_is_replaced_by_a_slower_one(tmp_path: Path) -> None:
    search = limited(tmp_path / "study.json", Limits(server_memory_mib=500), of_rows)
    slow, fast = Candidate(max_batch_size=8), Candidate(max_batch_size=16, instances=2)

    def rounds(candidate: Candidate) -> tuple[Trial, ...]:
        load = search.screen.traffic
        return tuple(
            search.log.bench.measure(candidate, load, stage="", round=number, seconds=2.0) for number in (1, 2, 3)
        )

    both = Comparison(goal=search.goal, final=rounds(slow), current=rounds(fast))
    assert both.better
    assert not replace(both, goal=replace(search.goal, limits=Limits())).better
    # The other way round it may not be chosen.
    assert not replace(both, final=both.current, current=both.final).better


def test_a_recorded_trial_without_what_is_limited_is_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "study.json"

    def measured_now(limits: Limits, use: Callable[[Candidate], ResourceUse]) -> int:
        search = limited(path, limits, use)
        search.log.measure(search.default, search.screen.traffic, stage="halving", round=1, seconds=1.0)
        assert search.log.study.limits == limits
        return search.log.measured_now

    assert measured_now(Limits(), lambda candidate: ResourceUse()) == 1
    assert measured_now(Limits(), of_rows) == 0
    assert measured_now(Limits(server_memory_mib=500), of_rows) == 1
    assert measured_now(Limits(server_memory_mib=400), of_rows) == 0


@pytest.mark.slow
def test_each_instance_holds_what_was_measured_of_the_largest_size_up_to_its_batches(tmp_path: Path) -> None:
    weights = numpy_helper.from_array(np.ones((2048, 4096), dtype=np.float32), "weights")
    node = helper.make_node("MatMul", ["x", "weights"], ["y"])
    onnx_model(tmp_path / "models", "linear", [node], dims=(2048, 4096), initialisers=[weights])
    instance, said = Instance.of("linear", repository=tmp_path / "models"), list[str]()
    estimate, why = estimated(instance, LIMITS, 6, said.append, tmp_path)
    assert (why, said[0]) == ("", "memory of linear: loading")
    record = instance.measured([6], tmp_path)
    assert list(record.sizes) == [1, 2, 4, 6]
    for rows, instances, at in ((1, 1, 1), (5, 3, 4), (6, 1, 6), (64, 2, 6)):
        used = estimate(Candidate(max_batch_size=rows, instances=instances))
        held = max(size.held for rows, size in record.sizes.items() if rows <= at)
        assert used == ResourceUse(server_memory_mib=instances * held / 2**20)
        assert held > weights.ByteSize()
    # Without a limit of memory nothing is measured, and what cannot be measured is said.
    assert estimated(replace(instance, file=tmp_path), Limits(), 6, said.append, tmp_path) == (unknown, "")
    assert "no ONNX file" in estimated(replace(instance, file=tmp_path), LIMITS, 6, said.append, tmp_path)[1]


def test_on_a_gpu_what_the_device_lost_counts(tmp_path: Path) -> None:
    sizes = {
        1: Size(peak=3 << 20, held=2 << 20, device=500 << 20),
        8: Size(peak=3 << 20, held=2 << 20, device=600 << 20),
    }
    used = of_record(replace(RECORD, device="gpu", sizes=sizes))(Candidate(max_batch_size=8, instances=2))
    assert used == ResourceUse(server_memory_mib=4, gpu_memory_mib=1200)
    assert sizes[8].nbytes == 600 << 20
