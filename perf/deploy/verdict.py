"""Says whether a canary is worse than its control, from what both did in the same windows of time.

The control is a new replica of the old configuration with the same share of the requests. A comparison with the other
replicas would be unfair: they get more requests, so their batches and their queues differ.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import scipy.stats

from perf.stats import rounds
from perf.stats import verdict as one_rule
from perf.stats.interval import Interval

# How often chance alone may put a ratio outside of its interval, over all models, or call a canary failing.
SLOWER_CHANCE, FAILURE_CHANCE = 0.05, 0.01
LEAST_REQUESTS, LEAST_WINDOWS = 100, 5
# A canary is deployed unless it is surely worse: whether it is surely as good, the reason says.
WORSE, NOT_WORSE, CANNOT_TELL = "worse", "not worse", one_rule.CANNOT_TELL


@dataclass(frozen=True, kw_only=True)
class Served:
    """Requests that a server answered for a model, and their time in it, queue and execution, added up."""

    requests: int
    server_ns: int

    @property
    def mean_ns(self) -> float:
        """The mean time of a request in the server."""
        return self.server_ns / self.requests


@dataclass(frozen=True, kw_only=True)
class Window:
    """What one replica did in a window: requests that the door sent it, failed ones, and what it served by model."""

    requests: int
    failures: int
    models: Mapping[str, Served]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What came of a canary.

    ratios: its mean time in the server over the control's, for each model with enough requests.
    requests, failures: of the canary and of the control.
    """

    outcome: str
    reason: str
    ratios: Mapping[str, Interval]
    requests: tuple[int, int]
    failures: tuple[int, int]


def judge(canary: Sequence[Window], control: Sequence[Window], *, tolerance: float) -> Verdict:
    """Judge the windows of both, in pairs; `tolerance` is how much slower a canary may be, as a share."""
    sides = canary, control
    requests, failures = _totals(canary, control)
    models = sorted({model for window in (*canary, *control) for model in window.models})
    ratios = {model: ratio for model in models if (ratio := _ratio(*sides, model, len(models)))}
    if fails_more(canary, control):
        outcome = WORSE
        reason = (
            f"{failures[0]:,} of {requests[0]:,} requests failed, and {failures[1]:,} of {requests[1]:,} of the control"
        )
    elif not ratios:
        outcome = CANNOT_TELL
        reason = f"too few requests to compare, {requests[0]:,} and {requests[1]:,} of the control"
    else:
        outcome, reason = _compared(ratios, models, tolerance)
        if idle := sum(not min(new.requests, old.requests) for new, old in zip(*sides, strict=True)):
            reason = f"{reason}; {idle} of {len(canary)} windows are left out, without a request of one or both"
    return Verdict(outcome=outcome, reason=reason, ratios=ratios, requests=requests, failures=failures)


def fails_more(canary: Sequence[Window], control: Sequence[Window], *, looks: int = 1) -> bool:
    """Whether the canary surely fails more often (Fisher's exact test).

    The test at the end has half of the chance of an error, and the `looks` before it share the other half.
    """
    requests, failures = _totals(canary, control)
    failed = [min(failure, count) for failure, count in zip(failures, requests, strict=True)]
    table = [failed, [count - failure for failure, count in zip(failed, requests, strict=True)]]
    return bool(scipy.stats.fisher_exact(table, alternative="greater").pvalue < FAILURE_CHANCE / 2 / looks)


def _ratio(canary: Sequence[Window], control: Sequence[Window], model: str, models: int) -> Interval | None:
    """The ratio of the mean times of a model, None with too few requests; there is one for each of `models`."""
    none = Served(requests=0, server_ns=0)
    windows = [
        (new.models.get(model, none), old.models.get(model, none)) for new, old in zip(canary, control, strict=True)
    ]
    pairs = [(new, old) for new, old in windows if min(new.requests, old.requests, new.server_ns, old.server_ns) > 0]
    least = min(sum(pair[side].requests for pair in pairs) for side in (0, 1))
    if len(pairs) < LEAST_WINDOWS or least < LEAST_REQUESTS:
        return None
    means = [[pair[side].mean_ns for pair in pairs] for side in (0, 1)]
    return rounds.paired(*means, level=one_rule.level_of_each(models, 1 - SLOWER_CHANCE))


def _compared(ratios: Mapping[str, Interval], models: Sequence[str], tolerance: float) -> tuple[str, str]:
    """The outcome for the models, and a sentence with the slowest one first."""
    slowest = max(ratios, key=lambda model: ratios[model].low)
    ratio = ratios[slowest]
    word = one_rule.verdict(ratio, more_is_better=False, margin=tolerance).text("window")
    text = f"a request of {slowest} takes {ratio} times as long in the server as at the control: {word}"
    if ratio.low > 1 + tolerance:
        return WORSE, f"{text}, surely by more than the {tolerance:.0%} that are allowed"
    unknown = [model for model in models if model not in ratios]
    return NOT_WORSE, f"{text}; too few requests of {', '.join(unknown)}" if unknown else text


def _totals(canary: Sequence[Window], control: Sequence[Window]) -> tuple[tuple[int, int], tuple[int, int]]:
    """The requests of both, and their failures."""
    requests = sum(each.requests for each in canary), sum(each.requests for each in control)
    return requests, (sum(each.failures for each in canary), sum(each.failures for each in control))
