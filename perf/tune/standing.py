"""Where a configuration stands after its measurements: all of its requests together."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perf.records.candidate import Candidate
from perf.records.study import Sla, Trial
from perf.records.traffic import Traffic
from perf.stats.percentile import percentile
from perf.stats.sla import judge


def p99_ms(trial: Trial) -> float:
    """99th percentile of one trial."""
    return float(percentile(trial.latencies_us, 99)) / 1e3


@dataclass(frozen=True, kw_only=True)
class Standing:
    """One configuration under one load, from all trials of it; `passed` is the binomial rule's verdict on them."""

    candidate: Candidate
    trials: tuple[Trial, ...]
    throughput_rows_per_s: float
    offered_rows_per_s: float | None
    p99_ms: float
    requests: int
    late: int
    passed: bool | None

    @classmethod
    def of(cls, trials: Sequence[Trial], sla: Sla, *, rows: int = 1) -> "Standing":
        """Put trials of one configuration, of requests of `rows` rows, together; raises `ValueError` for none."""
        if len({one.candidate for one in trials}) != 1:
            raise ValueError("trials of one configuration are needed")
        latencies = np.concatenate([np.asarray(one.latencies_us, dtype=np.float64) for one in trials])
        late = int(np.sum(latencies > sla.latency_ms * 1e3))
        seconds = sum(one.seconds for one in trials)
        traffic = Traffic.parse(trials[0].load)
        return cls(
            candidate=trials[0].candidate,
            trials=tuple(trials),
            throughput_rows_per_s=sum(one.throughput_rows_per_s * one.seconds for one in trials) / seconds,
            offered_rows_per_s=len(latencies) * rows / seconds if traffic.open else None,
            p99_ms=float(percentile(latencies, 99)) / 1e3,
            requests=len(latencies),
            late=late,
            passed=judge(len(latencies), late, sla.share) if len(latencies) else None,
        )

    @property
    def worst_p99_ms(self) -> float:
        """99th percentile of its worst trial."""
        return max(p99_ms(one) for one in self.trials)
