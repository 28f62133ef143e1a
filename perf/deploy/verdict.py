"""Says whether a canary is worse than its control, from what both did in the same windows of time.

The control is a new replica of the old configuration with the same share of the requests. A comparison with the other
replicas would be unfair: they get more requests, so their batches and their queues differ.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import scipy.stats

from perf.stats import bootstrap
from perf.stats.bootstrap import Interval

# The canary is worse if it fails more often than chance explains once in a hundred deployments.
FAILURE_CHANCE = 0.01
LEAST_REQUESTS, LEAST_WINDOWS = 100, 5
WORSE, NOT_WORSE, CANNOT_TELL = "worse", "not worse", "cannot tell"


@dataclass(frozen=True, kw_only=True)
class Window:
    """What one replica did in a window: requests and failures at the front door, and its server's own time.

    answered: requests that the server counted. server_ns: their time in the server, queue and execution, added up.
    """

    requests: int
    failures: int
    answered: int
    server_ns: int

    @property
    def mean_ms(self) -> float:
        """The mean time of a request in the server."""
        return self.server_ns / self.answered / 1e6 if self.answered else 0.0


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What came of a canary. `ratio`: its mean time in the server over the control's, None with too few requests."""

    outcome: str
    reason: str
    ratio: Interval | None
    requests: tuple[int, int]
    failures: tuple[int, int]


def judge(canary: Sequence[Window], control: Sequence[Window], *, tolerance: float) -> Verdict:
    """Judge the windows of both, in pairs; `tolerance` is how much slower a canary may be, as a share."""
    requests = sum(each.requests for each in canary), sum(each.requests for each in control)
    failures = sum(each.failures for each in canary), sum(each.failures for each in control)
    pairs = [(new, old) for new, old in zip(canary, control, strict=True) if new.answered and old.answered]
    ratio = None
    if min(requests) < LEAST_REQUESTS or len(pairs) < LEAST_WINDOWS:
        outcome = CANNOT_TELL
        reason = f"too few requests: {requests[0]} and {requests[1]}, in {len(pairs)} windows with both"
    else:
        ratio = bootstrap.paired([new.mean_ms for new, _ in pairs], [old.mean_ms for _, old in pairs])
        outcome, reason = _compared(ratio, tolerance)
    if _fails_more(requests, failures):
        outcome = WORSE
        reason = f"{failures[0]:,} of {requests[0]:,} requests failed, and {failures[1]:,} of {requests[1]:,} before"
    return Verdict(outcome=outcome, reason=reason, ratio=ratio, requests=requests, failures=failures)


def _compared(ratio: Interval, tolerance: float) -> tuple[str, str]:
    text = f"a request takes x {ratio} of the time in the server"
    if ratio.low > 1 + tolerance:
        return WORSE, f"{text}, surely more than the {tolerance:.0%} that are allowed"
    return NOT_WORSE, text


def _fails_more(requests: tuple[int, int], failures: tuple[int, int]) -> bool:
    """Whether the canary fails more often, by Fisher's exact test."""
    failed = [min(failure, count) for failure, count in zip(failures, requests, strict=True)]
    table = [failed, [count - failure for failure, count in zip(failed, requests, strict=True)]]
    return bool(scipy.stats.fisher_exact(table, alternative="greater").pvalue < FAILURE_CHANCE) and failed[0] > 0
