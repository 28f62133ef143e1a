"""Synthetic studies, from the simulator with seeded, invented service times; no server is involved."""

import functools
import math
from collections.abc import Callable, Sequence
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


def milliseconds(rows: int) -> float:
    """The invented service time: 8 ms and 0.5 ms a row."""
    return 8 + 0.5 * rows


def _service(rng: np.random.Generator | None, scale: float) -> Callable[[int], Time]:
    def service(rows: int) -> Time:
        wobble = math.exp(rng.normal(0, 0.04)) + (rng.random() < 0.003) * rng.exponential(0.8) if rng else 1.0
        return int(milliseconds(rows) * scale * wobble * 1e6)

    return service


def _outcome(
    candidate: Candidate, load: str, requests: int, seed: int, rng: np.random.Generator | None, scale: float
) -> SimulationResult:
    kind = ModelInstanceGroup.KIND_CPU
    config = ModelConfig(name="ranker", instance_group=[ModelInstanceGroup(count=1, kind=kind)])
    traffic = request_source(Traffic.parse(load), requests, turnaround=300_000, seed=seed)
    return simulate(Rules.of(candidate.apply(config)), _service(rng, scale), traffic)


def _latencies_ms(outcome: SimulationResult) -> list[float]:
    return [float(answer.latency) / 1e6 for answer in outcome.answers]


def prediction(candidate: Candidate, load: str, sla: LatencyTarget, requests: int = 1500) -> Prediction:
    """The simulation without noise."""
    outcome = _outcome(candidate, load, requests, 1, None, 1.0)
    latencies_ms = _latencies_ms(outcome)
    seconds = float(outcome.makespan) / 1e9
    busy = (
        sum(float(execution.end - execution.start) for execution in outcome.executions)
        / 1e9
        / seconds
        / candidate.instances
    )
    return Prediction(
        candidate=candidate,
        requests=requests,
        throughput_rows_per_s=requests / seconds,
        percentiles_ms={q: float(np.percentile(latencies_ms, q)) for q in (50, 90, 95, 99)},
        late=float(np.mean(np.array(latencies_ms) > sla.latency_ms)),
        rows_per_execution=outcome.rows_per_execution,
        queue_share=0.5,
        busy=busy,
        sizes=outcome.sizes,
    )


def trial(
    candidate: Candidate,
    stage: str,
    load: str,
    sla: LatencyTarget,
    *,
    number: int,
    requests: int = 700,
    scale: float = 1.0,
) -> Trial:
    """A synthetic trial on a machine with noise."""
    rng = np.random.default_rng(number)
    outcome = _outcome(candidate, load, requests, number, rng, scale)
    answers = sorted(outcome.answers, key=lambda answer: answer.request.at)
    network = rng.gamma(4, 0.05, requests).tolist()
    us = [float(answer.latency) / 1e3 + 1e3 * more for answer, more in zip(answers, network, strict=True)]
    late = sum(latency > sla.latency_ms * 1e3 for latency in us)
    seconds = float(outcome.makespan) / 1e9
    limit = (1 - sla.percent / 100) * requests
    passed = None if 0.4 * limit <= late <= 1.6 * limit else late < limit
    parts = _parts(outcome, network)
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
        passed=passed,
        latencies_us=tuple(us),
        due_s=tuple(float(answer.request.at) / 1e9 for answer in answers),
        stages_us={name: float(np.mean(values)) for name, values in parts.items()},
        counted=_counted(outcome, parts),
        cores_busy=0.6,
        load_average=1.0 + 0.1 * number,
        command=("python", "-m", "perf.tune", "ranker", "--p99-ms", f"{sla.latency_ms:g}", "--load", load),
    )


def _parts(outcome: SimulationResult, network: Sequence[float]) -> dict[str, list[float]]:
    started = {request.number: execution for execution in outcome.executions for request in execution.requests}
    queue, run = [], []
    for answer in sorted(outcome.answers, key=lambda answer: answer.request.at):
        execution = started[answer.request.number]
        queue.append(float(execution.start - answer.request.at) / 1e3)
        run.append(float(execution.end - execution.start) / 1e3)
    return {"client write": [20.0] * len(queue), "network": [1e3 * ms for ms in network], "queue": queue, "run": run}


def _counted(outcome: SimulationResult, parts: dict[str, list[float]]) -> Counters:
    spent: dict[int, int] = {}
    for execution in outcome.executions:
        spent[execution.rows] = spent.get(execution.rows, 0) + int(execution.end - execution.start)
    return replace(
        NOTHING,
        requests=len(outcome.answers),
        rows=len(outcome.answers),
        executions=len(outcome.executions),
        queue_ns=int(1e3 * sum(parts["queue"])),
        compute_infer_ns=int(1e3 * sum(parts["run"])),
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
    chosen = CHOSEN
    grid = [
        Candidate(max_batch_size=rows, delay_us=delay, instances=1)
        for rows in SPACE["max_batch_size"]
        for delay in SPACE["delay_us"]
    ]
    measured = DEFAULT if same else chosen
    others = [Candidate(max_batch_size=8, delay_us=1000), Candidate(max_batch_size=32, delay_us=4000)]
    pattern, _, size = load.partition(":")
    numbers = [float(size) * share for share in (0.5, 0.8, 1.2, 1.6, 2.2)]
    trials = [trial(candidate, HALVING, load, sla, number=n) for n, candidate in enumerate((*others, chosen), 1)]
    trials += [trial(measured, FINAL, f"{pattern}:{round(count)}", sla, number=n) for n, count in enumerate(numbers, 4)]
    for repeat in range(4):
        number = 10 + 3 * repeat
        pair = (measured, AGAINST, chosen), (DEFAULT, AGAINST, DEFAULT), (DEFAULT, NOISE, DEFAULT)
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
        chosen=chosen,
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
