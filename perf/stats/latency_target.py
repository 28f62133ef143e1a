"""Whether a latency target is met: the one rule on the requests of one trial or of several, `judge_trials`.

It asks MLPerf's exact binomial rule if the trials were planned, and a rule for any number of looks if what they showed
decided when they end. Requests of one batch are late together, so both count as many requests as they are worth: n /
design effect (see `perf.stats.dependence`).
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy  # its `special` is loaded at the first verdict
from numpy.typing import NDArray

from perf.stats.dependence import design_effect, inflation
from triton_batching.terminal import Mistake

CONFIDENCE = 0.99


@dataclass(frozen=True, kw_only=True)
class LatencyTarget:
    """At least `percent` of all requests are answered within `latency_ms`.

    A request without an answer counts as late. Raises `Mistake` for values that are no target.
    """

    latency_ms: float
    percent: float = 99.0

    def __post_init__(self) -> None:
        if not (0 < self.latency_ms < math.inf and 0 < self.percent < 100):
            raise Mistake(
                f"target {self}: the latency must be a finite number above 0, the percentile between 0 and 100."
            )

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
    """The verdict on the trials in which `late` of `requests` were late.

    `passed` is None if the requests are too few to tell. `early`: the run ended as soon as the verdict was certain.
    `looked`: the verdict is by the rule for any number of looks, `glance`. Older records do not say so, and have a
    `confidence` for the looks and another for the end. `design_effect` is that of the requests; it is 1 in records that
    were judged as if requests were independent.
    """

    sla: LatencyTarget
    requests: int
    late: int
    passed: bool | None
    early: bool
    confidence: float
    design_effect: float = 1.0
    looked: bool = False

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


@dataclass(frozen=True, kw_only=True)
class TrialCount:
    """What one trial tells of a latency target: its requests, the late ones, and their design effect."""

    requests: int
    late: int
    design_effect: float

    @classmethod
    def of(cls, latencies_us: "Sequence[float] | NDArray[np.float64]", target: LatencyTarget) -> "TrialCount":
        """Count all requests of a trial, in order of time; a latency is infinite without an answer.

        The design effect is that of the late requests or of the slowest, if it is larger. All late ones count as
        equally slow, since a look during the trial does not know how late those in flight will be.
        """
        latencies = np.asarray(latencies_us, dtype=np.float64)
        late = latencies > target.latency_ms * 1e3
        slowest = design_effect(np.where(late, np.inf, latencies), target.share)
        effect = max(slowest, inflation(late.astype(np.float64)))
        return cls(requests=len(latencies), late=int(np.sum(late)), design_effect=effect)

    @classmethod
    def without_latencies(cls, requests: int, late: int) -> "TrialCount":
        """Count a trial of which the record does not have every latency, so that no design effect can be estimated.

        It is taken as the largest possible one, the number of requests: the whole trial tells as much as one request.
        So only many such trials pass, and two fail if nearly all of their requests were late.
        """
        return cls(requests=requests, late=late, design_effect=float(max(requests, 1)))


def judge_trials(
    trials: Sequence[TrialCount], target: LatencyTarget, *, looked: bool, confidence: float = CONFIDENCE
) -> Judgement:
    """The verdict on all trials of one configuration under one load; None if there are too few requests to tell.

    `looked`: what the trials showed decided on their number or length. The rule is then `glance`, else `judge`.

    The design effect is estimated within each trial, because the last request of one and the first of the next are not
    neighbours. Its mean is weighted by requests, since the variances of the numbers of late requests add up. If the
    trials differ from each other by more than that, the effect is how much they differ, and what so few trials leave
    open of it (`_effect`). Likeness over more than a tenth of a trial is underestimated. The verdict is for conditions
    like those of these trials: what one trial in twenty would meet is not known after three.
    """
    requests, late = sum(trial.requests for trial in trials), sum(trial.late for trial in trials)
    effect = _effect([trial for trial in trials if trial.requests], confidence) if requests else 1.0
    rule = glance if looked else judge
    return Judgement(
        sla=target,
        requests=requests,
        late=late,
        passed=rule(requests, late, target.share, confidence, design_effect=effect) if requests else None,
        early=False,
        confidence=confidence,
        design_effect=effect,
        looked=looked,
    )


def _effect(trials: Sequence[TrialCount], confidence: float) -> float:
    """The design effect of trials that have requests.

    That of the differences between n trials has n - 1 degrees of freedom. So what it exceeds that within the trials by
    is enlarged by the square of Student's t over the normal quantile (Satterthwaite, Biometrics Bulletin 2, 1946: the
    part within has so many more that its own are left out). A trial tells at least as much as one request.
    """
    within, freedom = _within(trials), len(trials) - 1
    excess = _between(trials) - within
    if excess <= 0:
        return within
    wider = float(scipy.special.stdtrit(freedom, confidence) / scipy.special.ndtri(confidence))
    most = sum(trial.requests for trial in trials) / len(trials)
    return max(within, min(within + wider**2 * excess, most))


def _within(trials: Sequence[TrialCount]) -> float:
    return sum(trial.requests * trial.design_effect for trial in trials) / sum(trial.requests for trial in trials)


def _between(trials: Sequence[TrialCount]) -> float:
    """Pearson's chi-squared of the numbers of late requests over its degrees of freedom (McCullagh and Nelder, 4.5)."""
    share = sum(trial.late for trial in trials) / sum(trial.requests for trial in trials)
    if len(trials) < 2 or not 0 < share < 1:
        return 1.0
    squares = ((trial.late - trial.requests * share) ** 2 / trial.requests for trial in trials)
    return sum(squares) / (share * (1 - share)) / (len(trials) - 1)


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
def least(
    late: int, share: float, confidence: float = CONFIDENCE, *, design_effect: float = 1.0, looked: bool = False
) -> int:
    """The smallest number of requests with which `judge` passes, or `glance` if `looked`, if `late` were late."""
    rule = glance if looked else judge

    def passes(requests: int) -> bool:
        return rule(requests, late, share, confidence, design_effect=design_effect) is True

    low, high = late, 1
    while not passes(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if passes(middle) else (middle, high)
    return high


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf
