"""A latency target that a run is judged by, at its end or as soon as the requests that are decided leave no doubt."""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from perf.load.result import Sample, in_window
from perf.load.timings import RIGHT, Timings
from perf.stats.sla import CONFIDENCE, LOOKS, Judgement, Sla, glance, judge
from triton_batching.terminal import Mistake

LEAST, LEAST_S = 100, 1.0


class Seen(Protocol):
    """What is known of a run that goes on: `perf.load.crew.Crew`."""

    @property
    def timings(self) -> Timings:
        """Requests that are over."""

    @property
    def until_ns(self) -> int:
        """Until when everything that was due is over or in `going_ns`."""

    @property
    def going_ns(self) -> tuple[int, ...]:
        """When the requests were due that are on their way."""


@dataclass(frozen=True, kw_only=True)
class SlaCheck:
    """The target, and whether the run ends as soon as it is sure to be met or missed.

    A run is not ended before a second and a hundred requests of it are decided: late requests come together, in one
    batch or behind one stall, and the first few are no sample.

    Looking on the way is paid for: of the error of 1 - `confidence` the looks may use up a fifth, and the verdict at
    the end the rest, so that the two together keep to it however often one looks.
    """

    sla: Sla
    stops: bool = True
    confidence: float = CONFIDENCE

    def __post_init__(self) -> None:
        if math.isinf(self.sla.latency_ms):
            raise Mistake(f"target {self.sla}: every run meets it. Name a finite latency, or no target.")

    @property
    def at_looks(self) -> float:
        """Confidence of all looks on the way together."""
        return 1 - LOOKS * (1 - self.confidence)

    @property
    def at_end(self) -> float:
        """Confidence of the verdict at the end."""
        return 1 - (1 - LOOKS) * (1 - self.confidence) if self.stops else self.confidence

    def decided_ns(self, seen: Seen) -> int:
        """Every request that was due before has had the time that the target allows, so it met it or it did not.

        Those that were due after would be counted only if they were fast.
        """
        return seen.until_ns - self.sla.limit_ns

    def is_sure(self, seen: Seen, first_ns: int, last_ns: int) -> bool:
        """Whether the run may end: the decided requests of the window [first, last) leave no doubt."""
        last_ns = min(last_ns, self.decided_ns(seen))
        if not self.stops or last_ns - first_ns < LEAST_S * 1e9:
            return False
        over = in_window(seen.timings, first_ns, last_ns)
        going = sum(first_ns <= due < last_ns for due in seen.going_ns)
        in_time = int(np.sum((over["outcome"] == RIGHT) & (over["done"] - over["due"] <= self.sla.limit_ns)))
        requests = len(over) + going
        return requests >= LEAST and glance(requests, requests - in_time, self.sla.share, self.at_looks) is not None

    def judgement(self, sample: Sample, *, early: bool) -> Judgement:
        """Of the whole window, which ended `early` at the last decided request or when it was to."""
        requests, late = len(sample.latencies_us), sample.late(self.sla)
        confidence = self.at_looks if early else self.at_end
        rule = glance if early else judge
        passed = rule(requests, late, self.sla.share, confidence) if requests else None
        return Judgement(sla=self.sla, requests=requests, late=late, passed=passed, early=early, confidence=confidence)
