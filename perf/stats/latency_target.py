"""Whether a latency target is met: MLPerf's exact binomial rule for the end of a run, and a rule for looks during it.

Requests of one batch are late together, so both rules count as many requests as they are worth: n / design effect (see
`perf.stats.dependence`).
"""

import functools
import math
from dataclasses import dataclass

import scipy  # its `special` is loaded at the first verdict

from triton_batching.terminal import Mistake

CONFIDENCE = 0.99
# Share of the allowed error (1 - confidence) that the looks during a run may use; the verdict at its end has the rest.
LOOKS = 0.2


@dataclass(frozen=True, kw_only=True)
class LatencyTarget:
    """At least `percent` of all requests are answered within `latency_ms`.

    A request without an answer counts as late. Raises `Mistake` for values that are no target.
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
    """The verdict on a window in which `late` of `requests` were late.

    `passed` is None if the requests are too few to tell. `early`: the run ended as soon as the verdict was certain.
    `confidence` is that of this verdict: what the looks during the run used up is taken off. `design_effect` is that of
    the requests; it is 1 in records that were judged as if requests were independent.
    """

    sla: LatencyTarget
    requests: int
    late: int
    passed: bool | None
    early: bool
    confidence: float
    design_effect: float = 1.0

    @property
    def target(self) -> LatencyTarget:
        """The latency target, which is called `sla` in files."""
        return self.sla

    @property
    def worth(self) -> float:
        """The number of independent requests that tell as much."""
        return self.requests / self.design_effect

    @property
    def word(self) -> str:
        """The verdict as a word."""
        return {True: "pass", False: "fail", None: "cannot tell"}[self.passed]


def judge(
    requests: int, late: int, share: float, confidence: float = CONFIDENCE, *, design_effect: float = 1.0
) -> bool | None:
    """Whether the true share of late requests is below `share` (True), above it (False), or unknown (None).

    One-sided Clopper-Pearson bounds: it passes if, at a true share of `share`, so few late requests would be seen with
    a probability of at most 1 - `confidence`, and fails the same way. A p99 at confidence 0.99 takes 459 independent
    requests with none late, 662 with one and 2,010 with ten (MLPerf Inference, loadgen/early_stopping.cc). Both numbers
    are divided by the `design_effect` first. Whoever looks more than once must use `glance`.
    """
    error, count, over = 1 - confidence, requests / design_effect, late / design_effect
    # Incomplete beta functions are the binomial sums, and are defined between whole numbers as well.
    if over >= count or scipy.special.betainc(count - over, over + 1, 1 - share) > error:
        return False if late and scipy.special.betainc(over, count - over + 1, share) <= error else None
    return True


def glance(
    requests: int, late: int, share: float, confidence: float = CONFIDENCE, *, design_effect: float = 1.0
) -> bool | None:
    """As `judge`, but valid after any number of looks: the error of all looks together is at most 1 - `confidence`.

    The likelihood averaged over all shares below `share`, divided by the likelihood at `share`, is a martingale if
    `share` is the true one; the same holds for the shares above. By Ville's inequality neither ever reaches 1 / error
    with a probability above the error (Robbins, Annals of Mathematical Statistics 41, 1970). A p99 at confidence 0.99
    takes 644 requests with none late, where `judge` takes 459. With a `design_effect` this holds as far as the effect
    is known.
    """
    error = math.log(1 - confidence)
    count, over = requests / design_effect, late / design_effect
    a, b = over + 1, count - over + 1
    likelihood = over * math.log(share) + (count - over) * math.log1p(-share)
    # The likelihood's integral over the shares on one side of `share` is an incomplete beta function.
    ratio = scipy.special.betaln(a, b) - likelihood
    if ratio + _log(scipy.special.betainc(a, b, share)) - math.log(share) >= -error:
        return True
    return False if ratio + _log(scipy.special.betaincc(a, b, share)) - math.log1p(-share) >= -error else None


@functools.cache
def least(late: int, share: float, confidence: float = CONFIDENCE, *, design_effect: float = 1.0) -> int:
    """The smallest number of requests with which `judge` passes if `late` of them were late."""

    def passes(requests: int) -> bool:
        return judge(requests, late, share, confidence, design_effect=design_effect) is True

    low, high = late, 1
    while not passes(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if passes(middle) else (middle, high)
    return high


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf
