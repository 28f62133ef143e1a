"""When a canary is called worse than its control: cases by hand, and windows with noise from a seed."""

import random
from collections.abc import Sequence

import numpy as np
import pytest

from perf.deploy.verdict import CANNOT_TELL, NOT_WORSE, WORSE, Served, Window, fails_more, judge

TOLERANCE = 0.05
SEEDS = 200
WINDOWS = 20


def windows(
    means_ms: Sequence[float], *, requests: int = 100, failures: Sequence[int] = (), model: str = "m"
) -> list[Window]:
    """A window for each mean time, with this many requests of the model; each a few nanoseconds longer."""
    lost = [*failures, *[0] * (len(means_ms) - len(failures))]
    return [
        Window(
            requests=requests,
            failures=failed,
            models={model: Served(requests=requests, server_ns=round(mean * 1e6 * requests) + number)},
        )
        for number, (mean, failed) in enumerate(zip(means_ms, lost, strict=True))
    ]


def together(*parts: Sequence[Window]) -> list[Window]:
    """Windows with the models of several."""
    return [
        Window(
            requests=sum(each.requests for each in same),
            failures=sum(each.failures for each in same),
            models={model: served for each in same for model, served in each.models.items()},
        )
        for same in zip(*parts, strict=True)
    ]


def noisy(seed: int, factor: float) -> list[Window]:
    chance = random.Random(seed)
    return windows([20 * factor * chance.lognormvariate(0, 0.15) for _ in range(WINDOWS)])


STEADY = windows([20.0] * 10)
CASES = [
    ("the same", windows([20.0, 20.001] * 10), windows([20.0] * 20), NOT_WORSE, "at the control: the same within 5%"),
    ("alike", windows([20.0, 20.001] * 5), STEADY, NOT_WORSE, "at the control: cannot tell, measure 4 more windows"),
    ("equal", STEADY, STEADY, NOT_WORSE, "takes 1.000 (no interval) times as long"),
    ("faster", windows([10.0] * 10), STEADY, NOT_WORSE, "as at the control: faster"),
    ("slower within the tolerance", windows([20.8] * 10), STEADY, NOT_WORSE, "takes 1.040"),
    (
        "unknown",
        windows([20.0, 21.5] * 5),
        windows([21.5, 20.0] * 5),
        NOT_WORSE,
        "cannot tell, measure 4 more windows",
    ),
    ("slower", windows([60.0] * 10), STEADY, WORSE, "takes 3.000"),
    ("no request", windows([0.0] * 10, requests=0), STEADY, CANNOT_TELL, "too few requests to compare, 0 and 1,000"),
    ("99 requests", windows([20.0] * 9, requests=11), windows([20.0] * 9), CANNOT_TELL, "too few requests"),
    ("100 requests", windows([20.0] * 10, requests=10), STEADY, NOT_WORSE, "takes 1.000"),
    (
        "the load ends",
        windows([20.0, 20.001] * 7) + windows([0.0] * 4, requests=0),
        windows([20.0] * 15) + windows([0.0] * 3, requests=0),
        NOT_WORSE,
        "the same within 5%; 4 of 18 windows are left out, without a request of one or both",
    ),
    ("four windows", STEADY[:4], STEADY[:4], CANNOT_TELL, "too few requests"),
    # The chance that all of k failures are on one of two equal sides is 1 / 2 ** k: 0.8 % of seven, 0.4 % of eight.
    ("seven failures", windows([20.0] * 10, failures=[7]), STEADY, NOT_WORSE, "takes 1.000"),
    ("eight failures", windows([20.0] * 10, failures=[8]), STEADY, WORSE, "8 of 1,000 requests failed, and 0 of 1,000"),
    ("as many failures", windows([20.0] * 10, failures=[90]), windows([20.0] * 10, failures=[90]), NOT_WORSE, "takes"),
    ("only failures", windows([0.0] * 3, failures=[100, 100, 100]), STEADY[:3], WORSE, "300 of 300 requests failed"),
    (
        "one of two models is slower",
        together(windows([20.0] * 10, requests=900), windows([60.0] * 10, model="rare")),
        together(windows([20.0] * 10, requests=900), windows([20.0] * 10, model="rare")),
        WORSE,
        "a request of rare takes 3.000",
    ),
    (
        "one of two models has too few requests",
        together(STEADY, windows([20.0] * 10, requests=2, model="rare")),
        together(STEADY, windows([20.0] * 10, requests=2, model="rare")),
        NOT_WORSE,
        "too few requests of rare",
    ),
]


@pytest.mark.parametrize(
    ("canary", "control", "outcome", "words"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_verdict(canary: list[Window], control: list[Window], outcome: str, words: str) -> None:
    verdict = judge(canary, control, tolerance=TOLERANCE)
    assert verdict.outcome == outcome
    assert words in verdict.reason


def test_a_canary_that_fails_as_often_is_rarely_called_failing_by_all_looks_together() -> None:
    """1 % of 500 requests of each fail in each of 20 windows; a look after each of them, and one at the end."""
    chance = np.random.default_rng(3)
    alarms = 0
    for _ in range(300):
        failed = chance.binomial(500, 0.01, (2, 20))
        sides = [windows([20.0] * 20, requests=500, failures=side.tolist()) for side in failed]
        early = any(fails_more(sides[0][:end], sides[1][:end], looks=20) for end in range(1, 21))
        alarms += early or fails_more(*sides)
    # Three standard errors of 300 are 1.7 %.
    assert alarms <= (0.01 + 0.017) * 300


def test_an_identical_pair_is_rarely_called_worse_and_a_slower_canary_is() -> None:
    """Without any tolerance the lower end of a 95 % interval may be wrong in 2.5 % of the pairs."""

    def worse(factor: float) -> int:
        pairs = ((noisy(2 * seed, factor), noisy(2 * seed + 1, 1.0)) for seed in range(SEEDS))
        return sum(judge(canary, control, tolerance=0.0).outcome == WORSE for canary, control in pairs)

    assert worse(1.0) <= 0.05 * SEEDS
    assert worse(1.25) >= 0.95 * SEEDS
