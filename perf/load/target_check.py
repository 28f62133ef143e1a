"""The check of a run against a latency target, at its end or during it."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from perf.load.timings import Timings
from perf.load.window import in_window, latencies_us
from perf.records.load_record import Sample
from perf.stats.dependence import design_effect, inflation
from perf.stats.latency_target import CONFIDENCE, LOOKS, Judgement, LatencyTarget, glance, judge
from triton_batching.terminal import Mistake

# Requests and seconds that a run has at least, and the seconds of one that ends with a pass before its time.
LEAST, LEAST_S, LEAST_PASSED_S = 100, 1.0, 30.0

Latencies = NDArray[np.float64]
# `judge` or `glance`.
Rule = Callable[..., bool | None]


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

    Late requests come together, in one batch or behind one stall, so every verdict counts the requests as the number of
    independent ones that they are worth, by their design effect. No run ends before one second and 100 requests of it
    are decided: the first few do not show how they come together. No run ends with a pass before 30 seconds: a shorter
    window may lie between two stalls, and nothing in it tells of them. The looks during the run may use a fifth of the
    error 1 - `confidence`, and the verdict at the end has the rest. Raises `Mistake` for an infinite target.
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
        latencies = _decided(run, first_ns, last_ns)
        passed = self._passed(latencies, glance, self.at_looks, 1.0) if len(latencies) >= LEAST else None
        if passed is None or (passed and last_ns - first_ns < LEAST_PASSED_S * 1e9):
            return False
        # The effect takes longer to compute than the rest of a look, and makes no verdict more certain.
        return self._passed(latencies, glance, self.at_looks, self._effect(latencies)) is not None

    def judgement(self, sample: Sample, *, early: bool) -> Judgement:
        """The verdict on the whole window; `early` if the run ended before its time."""
        latencies = np.asarray(sample.latencies_us, dtype=np.float64)
        confidence, effect = self.at_looks if early else self.at_end, self._effect(latencies)
        return Judgement(
            sla=self.target,
            requests=len(latencies),
            late=sample.late(self.target),
            passed=self._passed(latencies, glance if early else judge, confidence, effect) if len(latencies) else None,
            early=early,
            confidence=confidence,
            design_effect=effect,
        )

    def _passed(self, latencies: Latencies, rule: Rule, confidence: float, effect: float) -> bool | None:
        late = int(np.sum(self._is_late(latencies)))
        return rule(len(latencies), late, self.target.share, confidence, design_effect=effect)

    def _effect(self, latencies: Latencies) -> float:
        """The design effect of latencies in order of time: that of the late ones or of the slowest, if it is larger.

        All late requests count as equally slow, since a look does not know how late those in flight will be; the
        verdict of a run that ended at a look is then the verdict of that look.
        """
        late = self._is_late(latencies)
        slowest = design_effect(np.where(late, np.inf, latencies), self.target.share)
        return max(slowest, inflation(late.astype(np.float64)))

    def _is_late(self, latencies: Latencies) -> NDArray[np.bool_]:
        return latencies > self.target.latency_ms * 1e3


def _decided(run: Ongoing, first_ns: int, last_ns: int) -> Latencies:
    """The latencies of the requests that were due in [first, last), in order of due time; infinite in flight."""
    finished = in_window(run.timings, first_ns, last_ns)
    going = [due for due in run.going_ns if first_ns <= due < last_ns]
    due = np.concatenate([finished["due"], np.array(going, dtype=np.int64)])
    latencies = np.concatenate([latencies_us(finished), np.full(len(going), np.inf)])
    return np.asarray(latencies[np.argsort(due, kind="stable")], dtype=np.float64)
