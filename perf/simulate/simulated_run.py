"""The requests and executions of a simulation that count, and their figures."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perf.records.candidate import Candidate
from perf.records.study import LatencyTarget, Prediction
from perf.simulate.batcher.request import US
from perf.simulate.batcher.simulation import SimulationResult
from perf.simulate.costs import Costs
from perf.stats.percentile import percentile

PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True, kw_only=True)
class SimulatedRun:
    """One simulation without its warm-up and its end: latencies and queue times of the requests in between.

    `answered` counts the answers after the first moment, so that `answered / seconds` is a rate. `sizes` maps rows to
    the number of executions, `computing_us` to their total computing time.
    """

    latencies_us: NDArray[np.float64]
    queues_us: NDArray[np.float64]
    answered: int
    refused: int
    seconds: float
    busy_s: float
    instances: int
    sizes: dict[int, int]
    computing_us: dict[int, float]

    @classmethod
    def pooled(cls, runs: Sequence["SimulatedRun"]) -> "SimulatedRun":
        """Pool several runs into one."""
        sizes: Counter[int] = Counter()
        computing_us: Counter[int] = Counter()
        for run in runs:
            sizes.update(run.sizes)
            computing_us.update(run.computing_us)
        return cls(
            latencies_us=np.concatenate([run.latencies_us for run in runs]),
            queues_us=np.concatenate([run.queues_us for run in runs]),
            answered=sum(run.answered for run in runs),
            refused=sum(run.refused for run in runs),
            seconds=sum(run.seconds for run in runs),
            busy_s=sum(run.busy_s for run in runs),
            instances=runs[0].instances,
            sizes=dict(sorted(sizes.items())),
            computing_us=dict(computing_us),
        )

    @property
    def throughput_per_s(self) -> float:
        """Requests answered per second."""
        return self.answered / self.seconds if self.seconds else 0.0

    @property
    def mean_us(self) -> float:
        """Mean latency."""
        return float(np.mean(self.latencies_us)) if len(self.latencies_us) else 0.0

    def prediction(self, candidate: Candidate, target: LatencyTarget, rows: int) -> Prediction:
        """Return the prediction, as studies store it."""
        served = len(self.latencies_us)
        late = int(np.sum(self.latencies_us > target.latency_ms * 1e3)) + self.refused
        executions = sum(self.sizes.values())
        return Prediction(
            candidate=candidate,
            requests=served + self.refused,
            throughput_rows_per_s=self.throughput_per_s * rows,
            percentiles_ms={percent: float(percentile(self.latencies_us, percent)) / 1e3 for percent in PERCENTILES},
            late=late / max(1, served + self.refused),
            rows_per_execution=sum(size * n for size, n in self.sizes.items()) / max(1, executions),
            queue_share=float(np.sum(self.queues_us) / np.sum(self.latencies_us)) if served else 0.0,
            busy=self.busy_s / (self.seconds * self.instances) if self.seconds else 0.0,
            sizes=self.sizes,
            computing_ms={rows: us / self.sizes[rows] / 1e3 for rows, us in sorted(self.computing_us.items())},
        )


def cut(
    outcome: SimulationResult, costs: Costs, extra_us: Mapping[int, float], *, warm_up: float, drain: int
) -> SimulatedRun:
    """Leave out the share `warm_up` at the start, and the end, where a closed loop's clients stop one by one."""
    answers = outcome.answers
    first, last = int(warm_up * len(answers)), max(1, len(answers) - drain)
    begin, end = answers[first].at, answers[last - 1].at
    started = {request.number: execution.start for execution in outcome.executions for request in execution.requests}
    inner = answers[first:last]
    served = [answer for answer in inner if not answer.error]
    latencies = np.array([float(answer.latency) / US + extra_us[answer.request.number] for answer in served])
    queues = np.array([float(started[answer.request.number] - answer.request.at) for answer in served]) / US
    starting = [execution for execution in outcome.executions if begin <= execution.start < end]
    computing: dict[int, float] = {}
    for execution in starting:
        us = float(execution.end - execution.start) / US
        computing[execution.rows] = computing.get(execution.rows, 0.0) + us
    return SimulatedRun(
        latencies_us=latencies,
        queues_us=queues,
        # Batches at both ends count entirely or not at all.
        answered=sum(begin < answer.at <= end and not answer.error for answer in answers[first:]),
        refused=len(inner) - len(served),
        seconds=float(end - begin) / 1e9,
        busy_s=sum(computing.values()) / 1e6 + sum(costs.output_us(execution.rows) for execution in starting) / 1e6,
        instances=costs.instances,
        sizes=dict(sorted(Counter(execution.rows for execution in starting).items())),
        computing_us=computing,
    )
