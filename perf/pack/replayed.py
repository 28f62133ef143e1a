"""How many requests of a model were late in the replays of a placement, and whether its target is shown to be met."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perf.stats.dependence import design_effect
from perf.stats.interval import LEVEL, Interval
from perf.stats.latency_target import CONFIDENCE, judge
from perf.stats.percentile import percentile
from perf.stats.share import share
from perf.stats.verdict import level_of_each

# The share of the requests that may be late, and the share of the replays in which more of them may be.
LATE_SHARE, LATE_REPLAYS = 0.01, 0.1
# In a replay with fewer requests of a model, one or two late ones are above 1 % and say nothing.
LEAST_REQUESTS = 1000
# The relative tolerance for rounding in comparisons of a latency with its target.
ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """One model on one device over several replays: its `requests`, the `late` ones, and the 99th percentile.

    In `late_replays` of the `replays` more than 1 % of its requests were late. The requests are worth `requests` /
    `design_effect` independent ones. `p99_ms` includes the overhead.
    """

    device: int
    model: str
    replays: int
    requests: int
    late: int
    late_replays: int
    design_effect: float
    p99_ms: float

    @property
    def share(self) -> Interval:
        """The share of late requests with its interval of 95 %."""
        return share(self.requests, self.late, design_effect=self.design_effect)

    @property
    def in_time(self) -> bool:
        """Whether at most 1 % of its requests were late, and at most every twentieth replay was; proves nothing."""
        few = 20 * self.late_replays <= self.replays or not self._counts_replays
        return self.late <= LATE_SHARE * self.requests and few

    def proven(self, placements: int = 1) -> bool:
        """Whether the replays show that 99 % of its requests are in time, if they were not used to choose anything.

        The share of late requests is below 1 % with 99 % confidence, and the share of replays with more late requests
        is below 10 % with 95 % confidence. Both confidences hold for as many `placements`, tried one after the other.
        """
        share_at, replays_at = (level_of_each(placements, level) for level in (CONFIDENCE, LEVEL))
        if not judge(self.requests, self.late, LATE_SHARE, share_at, design_effect=self.design_effect):
            return False
        return not self._counts_replays or bool(judge(self.replays, self.late_replays, LATE_REPLAYS, replays_at))

    @property
    def _counts_replays(self) -> bool:
        return self.requests >= LEAST_REQUESTS * self.replays


def summed(device: int, model: str, latencies: Sequence[NDArray[np.float64]], target_ms: float) -> Replayed:
    """The result of replays; `latencies` has those of each replay in ms, in order of arrival."""
    together = np.concatenate(latencies)
    late = [int(np.sum(each > target_ms * (1 + ROUNDING))) for each in latencies]
    return Replayed(
        device=device,
        model=model,
        replays=len(latencies),
        requests=len(together),
        late=sum(late),
        late_replays=sum(
            few > LATE_SHARE * len(each) * (1 + ROUNDING) for few, each in zip(late, latencies, strict=True)
        ),
        design_effect=design_effect(together, LATE_SHARE),
        p99_ms=float(percentile(together, 100 * (1 - LATE_SHARE))),
    )
