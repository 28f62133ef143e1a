"""The check of a run against a latency target, at its end or as soon as the verdict is certain."""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from perf.load.timings import RIGHT, Timings
from perf.load.window import in_window
from perf.records.load_record import Sample
from perf.stats.latency_target import CONFIDENCE, LOOKS, Judgement, LatencyTarget, glance, judge
from triton_batching.terminal import Mistake

# Requests and seconds that a run has at least.
LEAST, LEAST_S = 100, 1.0


class Ongoing(Protocol):
    """The state of a run in progress; `perf.load.crew.Crew` has it."""

    @property
    def timings(self) -> Timings:
        """The finished requests."""

    @property
    def until_ns(self) -> int:
        """Every request due before this moment is finished or in `going_ns`."""

    @property
    def going_ns(self) -> tuple[int, ...]:
        """When the requests in flight were due."""


@dataclass(frozen=True, kw_only=True)
class TargetCheck:
    """A target, and whether a run ends as soon as it certainly meets or misses the target (`stops`).

    No run ends before one second and 100 requests of it are decided: late requests come together, in one batch or
    behind one stall, so the first few are no sample. The looks during the run may use a fifth of the error
    1 - `confidence`, and the verdict at the end has the rest. Raises `Mistake` for an infinite target.
    """

    target: LatencyTarget
    stops: bool = True
    confidence: float = CONFIDENCE

    def __post_init__(self) -> None:
        if math.isinf(self.target.latency_ms):
            raise Mistake(f"target {self.target}: every run meets it. Give a finite latency, or no target.")

    @property
    def at_looks(self) -> float:
        """Confidence of all looks during the run together."""
        return 1 - LOOKS * (1 - self.confidence)

    @property
    def at_end(self) -> float:
        """Confidence of the verdict at the end."""
        return 1 - (1 - LOOKS) * (1 - self.confidence) if self.stops else self.confidence

    def decided_ns(self, run: Ongoing) -> int:
        """Every request due before this moment has met or missed the target by now.

        Of requests due later only the fast ones would be known.
        """
        return run.until_ns - self.target.limit_ns

    def is_sure(self, run: Ongoing, first_ns: int, last_ns: int) -> bool:
        """Whether the decided requests of the window [first, last) give a certain verdict, so that the run may end."""
        last_ns = min(last_ns, self.decided_ns(run))
        if not self.stops or last_ns - first_ns < LEAST_S * 1e9:
            return False
        finished = in_window(run.timings, first_ns, last_ns)
        going = sum(first_ns <= due < last_ns for due in run.going_ns)
        latencies = finished["done"] - finished["due"]
        in_time = int(np.sum((finished["outcome"] == RIGHT) & (latencies <= self.target.limit_ns)))
        requests = len(finished) + going
        return requests >= LEAST and glance(requests, requests - in_time, self.target.share, self.at_looks) is not None

    def judgement(self, sample: Sample, *, early: bool) -> Judgement:
        """The verdict on the whole window; `early` if the run ended before its time."""
        requests, late = len(sample.latencies_us), sample.late(self.target)
        confidence = self.at_looks if early else self.at_end
        rule = glance if early else judge
        passed = rule(requests, late, self.target.share, confidence) if requests else None
        return Judgement(
            sla=self.target, requests=requests, late=late, passed=passed, early=early, confidence=confidence
        )
