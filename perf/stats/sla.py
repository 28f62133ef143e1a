"""Whether a latency target is met: the exact binomial rule of MLPerf's load generator, and one for looks on the way."""

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from triton_batching.terminal import Mistake

CONFIDENCE = 0.99
# Of the error that the confidence leaves, what the looks on the way may use up; the verdict at the end has the rest.
LOOKS = 0.2


@dataclass(frozen=True, kw_only=True)
class Sla:
    """At least `percent` of all requests answered within `latency_ms`; those not answered at all count as late.

    Raises `Mistake` for what is no target.
    """

    latency_ms: float
    percent: float = 99.0

    def __post_init__(self) -> None:
        if not (self.latency_ms > 0 and 0 < self.percent < 100):
            raise Mistake(f"target {self}: the latency must be a number above 0, the percentile between 0 and 100.")

    @property
    def share(self) -> float:
        """Share of the requests that may be late."""
        return 1 - self.percent / 100

    @property
    def limit_ns(self) -> int:
        """The latency in nanoseconds."""
        return round(self.latency_ms * 1e6)

    def __str__(self) -> str:
        return f"p{self.percent:g} <= {self.latency_ms:g} ms"


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """Of `requests` that were due in the window `late` were late; `passed` None: too few to be sure of either.

    `early`: the run ended as soon as this was sure. With looks on the way `confidence` is what they left for the end.
    """

    sla: Sla
    requests: int
    late: int
    passed: bool | None
    early: bool
    confidence: float

    @property
    def word(self) -> str:
        """The verdict."""
        return {True: "pass", False: "fail", None: "cannot tell"}[self.passed]


def judge(requests: int, late: int, share: float, confidence: float = CONFIDENCE) -> bool | None:
    """Whether the true share of late requests is below `share` (True), above (False), or may be either (None).

    One-sided Clopper-Pearson bounds: it passes where so few late ones would be seen with a probability of at most
    1 - `confidence` if the share were `share`, and fails the same way. For p99 at 99 % that takes 459 requests with
    none late, 662 with one, 2,010 with ten (MLPerf Inference, loadgen/early_stopping.cc). The sample's size must not
    have been chosen by looking at it; `glance` is for that. Requests are taken as independent.
    """
    error = math.log(1 - confidence)
    logs = _logs(requests, share)
    if np.logaddexp.reduce(logs[: late + 1]) <= error:
        return True
    return False if np.logaddexp.reduce(logs[late:]) <= error else None


def glance(requests: int, late: int, share: float, confidence: float = CONFIDENCE) -> bool | None:
    """The same after any number of looks, at any time: the error over all of them together is 1 - `confidence`.

    The likelihood of the counts, averaged over all shares below `share` alike, over that at `share` is a martingale
    there, and so is the average over those above; neither ever reaches 1 / error with a greater probability than the
    error (Ville's inequality; Robbins, Annals of Mathematical Statistics 41, 1970). For p99 at 99 % none late of 644
    are sure, in place of 459.
    """
    error = math.log(1 - confidence)
    likelihood = late * math.log(share) + (requests - late) * math.log1p(-share)
    whole = math.lgamma(late + 1) + math.lgamma(requests - late + 1) - math.lgamma(requests + 2)
    # The integral of the likelihood over the shares on one side of `share` is a sum of binomial probabilities.
    logs = _logs(requests + 1, share)
    below, above = np.logaddexp.reduce(logs[late + 1 :]), np.logaddexp.reduce(logs[: late + 1])
    if whole + below - math.log(share) - likelihood >= -error:
        return True
    return False if whole + above - math.log1p(-share) - likelihood >= -error else None


@functools.cache
def least(late: int, share: float, confidence: float = CONFIDENCE) -> int:
    """How many requests it takes to pass when so many of them were late."""
    low, high = late, 1
    while judge(high, late, share, confidence) is not True:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if judge(middle, late, share, confidence) is True else (middle, high)
    return high


def _logs(of: int, share: float) -> NDArray[np.float64]:
    """Logarithms of the probabilities of 0 to `of` late ones of `of`."""
    before = np.arange(of)
    steps = np.log((of - before) / (before + 1)) + math.log(share) - math.log1p(-share)
    logs: NDArray[np.float64] = of * math.log1p(-share) + np.concatenate([[0.0], np.cumsum(steps)])
    return logs
