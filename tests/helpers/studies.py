"""Synthetic studies, from the simulator with seeded, invented service times; no server is involved."""

import functools
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from request_sources import request_source
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

from perf.records.candidate import Candidate
from perf.records.study import AGAINST, FINAL, HALVING, NOISE, LatencyTarget, Prediction, Step, Study, Trial
from perf.records.traffic import Traffic
from perf.simulate.batcher.request import Time
from perf.simulate.batcher.rules import Rules
from perf.simulate.batcher.simulation import SimulationResult, simulate
from serve.management.statistics import Counters
from tests.perf.report.sweep.test_summary import MACHINE, NOTHING

DEFAULT, CHOSEN = Candidate(max_batch_size=4), Candidate(max_batch_size=16, delay_us=1000)
SPACE = {"max_batch_size": (4, 8, 16, 32), "delay_us": (0, 1000, 4000), "instances": (1,)}
BEFORE = """# The ranker, as it was.
name: "ranker"
backend: "onnxruntime"
max_batch_size: 4
dynamic_batching { }
"""
AFTER = """# Tuned: p99 <= 40 ms.
name: "ranker"
backend: "onnxruntime"
max_batch_size: 16
dynamic_batching {
  preferred_batch_size: [ 8, 16 ]
  max_queue_delay_microseconds: 1000
}
instance_group [ { count: 1 kind: KIND_CPU } ]
"""


def _outcome(candidate: Candidate, load: str, requests: int, seed: int, *, noisy: bool) -> SimulationResult:
    """A simulation in which an execution takes 8 ms and 0.5 ms a row, and on a noisy machine a few % more or less."""
    rng = np.random.default_rng(seed)

    def service(rows: int) -> Time:
        wobble = math.exp(rng.normal(0, 0.04)) + (rng.random() < 0.003) * rng.exponential(0.8) if noisy else 1.0
        return int((8 + 0.5 * rows) * wobble * 1e6)

    group = ModelInstanceGroup(count=1, kind=ModelInstanceGroup.KIND_CPU)
    rules = Rules.of(candidate.apply(ModelConfig(name="ranker", instance_group=[group])))
    return simulate(rules, service, request_source(Traffic.parse(load), requests, turnaround=300_000, seed=seed))


def prediction(candidate: Candidate, load: str, sla: LatencyTarget, requests: int = 1500) -> Prediction:
    """The simulation without noise."""
    outcome = _outcome(candidate, load, requests, 1, noisy=False)
    latencies_ms = [float(answer.latency) / 1e6 for answer in outcome.answers]
    busy_ns = sum(float(execution.end - execution.start) for execution in outcome.executions)
    return Prediction(
        candidate=candidate,
        requests=requests,
        throughput_rows_per_s=1e9 * requests / float(outcome.makespan),
        percentiles_ms={q: float(np.percentile(latencies_ms, q)) for q in (50, 90, 95, 99)},
        late=float(np.mean(np.array(latencies_ms) > sla.latency_ms)),
        rows_per_execution=outcome.rows_per_execution,
        queue_share=0.5,
        busy=busy_ns / float(outcome.makespan),
        sizes=outcome.sizes,
    )


def trial(candidate: Candidate, stage: str, load: str, sla: LatencyTarget, *, number: int) -> Trial:
    """A synthetic trial of 700 requests on a machine with noise."""
    requests = 700
    outcome = _outcome(candidate, load, requests, number, noisy=True)
    answers = sorted(outcome.answers, key=lambda answer: answer.request.at)
    network_us = (1e3 * np.random.default_rng(number).gamma(4, 0.05, requests)).tolist()
    us = [float(answer.latency) / 1e3 + more for answer, more in zip(answers, network_us, strict=True)]
    late, limit = sum(latency > sla.latency_ms * 1e3 for latency in us), (1 - sla.percent / 100) * requests
    seconds = float(outcome.makespan) / 1e9
    run_us = float(np.mean([float(each.end - each.start) / 1e3 for each in outcome.executions for _ in each.requests]))
    stages_us = {"client write": 20.0, "network": float(np.mean(network_us)), "queue": 0.0, "run": run_us}
    stages_us["queue"] = float(np.mean(us)) - stages_us["network"] - run_us
    return Trial(
        candidate=candidate,
        stage=stage,
        round=number % 4 + 1,
        started_at=f"2030-01-01T00:{number // 6:02d}:{number % 6 * 10:02d}+00:00",
        load=load,
        seconds=seconds,
        throughput_rows_per_s=requests / seconds,
        offered_per_s=Traffic.parse(load).rate_per_s or None,
        requests=requests,
        late=late,
        late_sends=number % 3,
        not_sent=0,
        failed=0,
        passed=None if 0.4 * limit <= late <= 1.6 * limit else late < limit,
        latencies_us=tuple(us),
        due_s=tuple(float(answer.request.at) / 1e9 for answer in answers),
        stages_us=stages_us,
        counted=_counted(outcome, stages_us),
        cores_busy=0.6,
        load_average=1.0 + 0.1 * number,
        command=("python", "-m", "perf.tune", "ranker", "--p99-ms", f"{sla.latency_ms:g}", "--load", load),
    )


def _counted(outcome: SimulationResult, stages_us: Mapping[str, float]) -> Counters:
    count, spent = len(outcome.answers), Counter[int]()
    for execution in outcome.executions:
        spent[execution.rows] += int(execution.end - execution.start)
    return replace(
        NOTHING,
        requests=count,
        rows=count,
        executions=len(outcome.executions),
        queue_ns=int(1e3 * count * stages_us["queue"]),
        compute_infer_ns=int(1e3 * count * stages_us["run"]),
        batches=outcome.sizes,
        batches_ns=dict(sorted(spent.items())),
    )


def impossible() -> Study:
    """A study whose target no execution can meet: all requests of all candidates are late, by more or less."""
    sla, load = LatencyTarget(latency_ms=2), "closed:16"
    order = (DEFAULT, Candidate(max_batch_size=8), CHOSEN, Candidate(max_batch_size=32))
    trials = tuple(trial(candidate, HALVING, load, sla, number=number) for number, candidate in enumerate(order, 1))
    text = "compute: an execution takes longer than the target"
    return replace(study(load), sla=sla, chosen=None, after_pbtxt="", limit=text, trials=trials)


@functools.cache
def study(load: str = "poisson:380", *, same: bool = False, name: str = "ranker") -> Study:
    """A whole study; `same` measures the default in place of the chosen candidate, so that there is no gain to find."""
    sla = LatencyTarget(latency_ms=40)
    grid = [Candidate(max_batch_size=rows, delay_us=us) for rows in SPACE["max_batch_size"] for us in SPACE["delay_us"]]
    measured = DEFAULT if same else CHOSEN
    others = [Candidate(max_batch_size=8, delay_us=1000), Candidate(max_batch_size=32, delay_us=4000)]
    pattern, _, size = load.partition(":")
    numbers = [float(size) * share for share in (0.5, 0.8, 1.2, 1.6, 2.2)]
    trials = [trial(candidate, HALVING, load, sla, number=n) for n, candidate in enumerate((*others, CHOSEN), 1)]
    trials += [trial(measured, FINAL, f"{pattern}:{round(count)}", sla, number=n) for n, count in enumerate(numbers, 4)]
    for repeat in range(4):
        number = 10 + 3 * repeat
        pair = (measured, AGAINST, CHOSEN), (DEFAULT, AGAINST, DEFAULT), (DEFAULT, NOISE, DEFAULT)
        for turn, (candidate, stage, named) in enumerate(pair):
            repetition = trial(candidate, stage, load, sla, number=number + turn)
            trials.append(replace(repetition, candidate=named, round=repeat + 1))
    return Study(
        model=name,
        config_name="default",
        load=load,
        sla=sla,
        objective="throughput",
        machine=MACHINE,
        versions={"python": "3.11", "numpy": "1.26"},
        started_at="2030-01-01T00:00:00+00:00",
        command=("python", "-m", "perf.tune", name, "--p99-ms", "40", "--load", load),
        default=DEFAULT,
        chosen=CHOSEN,
        space=SPACE,
        profiles=(),
        predictions=tuple(prediction(candidate, load, sla) for candidate in grid),
        trials=tuple(trials),
        steps=(
            Step(at_s=0.0, text="profiled ranker: s(b) of 1 to 32 rows"),
            Step(at_s=16.0, text="simulated 12 candidates"),
            Step(at_s=40.0, text="dropped max 32, 4 ms, 1 instance: p99 over the SLA"),
            Step(at_s=75.0, text="kept max 16, 1 ms, 1 instance: highest verified throughput within the SLA"),
        ),
        limit="compute: the instance is busy 94 % of the time",
        before_pbtxt=BEFORE,
        after_pbtxt=AFTER,
        model_sha256="ab" * 32,
    )
