"""The check of a run against a latency target, at its end or during it."""

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from perf.load.timings import Timings
from perf.load.window import in_window, latencies_us
from perf.records.load_record import Sample
from perf.stats.latency_target import Judgement, LatencyTarget, TrialCount, judge_trials

# Requests and seconds that a run has at least, and the seconds of one that ends with a pass before its time.
LEAST, LEAST_S, LEAST_PASSED_S = 100, 1.0, 30.0

Latencies = NDArray[np.float64]


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

    The verdict is that of `perf.stats.latency_target.judge_trials`. A run that may stop has the rule for any number of
    looks, at its end as well. No run ends before one second and 100 requests of it are decided: the first few do not
    show how late requests come together. No run ends with a pass before 30 seconds: a shorter window may lie between
    two stalls, and nothing in it tells of them.
    """

    target: LatencyTarget
    stops: bool = True

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
        late = int(np.sum(latencies > self.target.latency_ms * 1e3))
        # The design effect takes longer to compute than the rest of a look, and makes no verdict more certain.
        passed = self._passed(TrialCount(requests=len(latencies), late=late, design_effect=1.0))
        if len(latencies) < LEAST or passed is None or (passed and last_ns - first_ns < LEAST_PASSED_S * 1e9):
            return False
        return self._passed(TrialCount.of(latencies, self.target)) is not None

    def judgement(self, sample: Sample, *, early: bool) -> Judgement:
        """The verdict on the whole window; `early` if the run ended before its time."""
        count = TrialCount.of(sample.latencies_us, self.target)
        return replace(judge_trials([count], self.target, looked=self.stops), early=early)

    def _passed(self, count: TrialCount) -> bool | None:
        return judge_trials([count], self.target, looked=True).passed


def _decided(run: Ongoing, first_ns: int, last_ns: int) -> Latencies:
    """The latencies of the requests that were due in [first, last), in order of due time; infinite in flight."""
    finished = in_window(run.timings, first_ns, last_ns)
    going = [due for due in run.going_ns if first_ns <= due < last_ns]
    due = np.concatenate([finished["due"], np.array(going, dtype=np.int64)])
    latencies = np.concatenate([latencies_us(finished), np.full(len(going), np.inf)])
    return np.asarray(latencies[np.argsort(due, kind="stable")], dtype=np.float64)
