"""The sustained rate: the windows of a rate are judged together, and the verdicts on several rates hold together."""

from dataclasses import replace

import numpy as np
from studies import CHOSEN, DEFAULT, study

from perf.records.study import FINAL, HALVING, Trial
from perf.report.study.evidence import Evidence
from perf.report.study.sustained import sustained


def window(rate: float, requests: int, late: int = 0, *, stage: str = FINAL) -> Trial:
    """A window of the chosen configuration in which `late` requests, far apart from each other, were late.

    What the record says of the single window is that it passed, if at most 1 % of its requests were late.
    """
    latencies = np.full(requests, 1e3)
    latencies[np.linspace(0, requests - 1, late + 2)[1:-1].astype(int)] = 50e3
    return replace(
        study().trials[2],
        load=f"poisson:{rate:g}",
        offered_per_s=rate,
        stage=stage,
        requests=requests,
        late=late,
        passed=late <= 0.01 * requests,
        latencies_us=tuple(latencies.tolist()),
    )


def said(*trials: Trial) -> str:
    return sustained(Evidence(study=replace(study(), trials=trials), name="study"))


def test_the_sustained_rate_lies_below_the_lowest_that_fails() -> None:
    good, bad = [window(rate, 1000) for rate in (100, 200, 400)], window(300, 1000, 100)
    assert said(*good, bad) == (
        "Sustains 200 requests/s within the target (n = 1,000 requests in 1 window), and fails at 300, at 99 % "
        "confidence for all 4 verdicts on rates together."
    )
    assert said(*good).startswith(
        "Sustains 400 requests/s within the target (n = 1,000 requests in 1 window), the highest"
    )
    assert "200 requests/s" in said(*good[:2], window(300, 1000, 10))
    assert "and no measured rate surely fails" in said(*good[:2], window(300, 1000, 10))
    assert said(bad) == "No measured rate surely meets the target."
    assert said() == ""


def test_the_windows_of_a_rate_are_judged_together() -> None:
    """Two windows of 322 pass together, and what a record says of its window alone decides nothing."""
    assert said(*[window(100, 322)] * 2) == (
        "Sustains 100 requests/s within the target (n = 644 requests in 2 windows), the highest measured rate, at 99 % "
        "confidence."
    )
    assert said(window(100, 322)).startswith("No measured rate")
    failing = window(100, 1000, 100)
    assert said(failing, window(100, 1000)).startswith("No measured rate")
    alone = replace(window(100, 300), passed=False)
    assert said(*[alone] * 4).startswith("Sustains 100 requests/s within the target (n = 1,200 requests in 4 windows)")


def test_each_of_several_rates_takes_more_requests() -> None:
    """None late of 644 is sure at 99 %; at 99.8 %, a fifth of the error for each of five rates, it takes 829."""
    assert said(window(100, 644)).startswith("Sustains 100 requests/s")
    rates = [100.0, 200.0, 300.0, 400.0, 500.0]
    # By hand: (1 - 0.99^830) / (830 x 0.01 x 0.99^829) is the first to reach 500.
    assert (1 - 0.99**830) / (830 * 0.01 * 0.99**829) >= 500 > (1 - 0.99**829) / (829 * 0.01 * 0.99**828)
    assert said(*[window(rate, 828) for rate in rates]) == "No measured rate surely meets the target."
    assert said(*[window(rate, 829) for rate in rates]).startswith("Sustains 500 requests/s")


def test_the_error_does_not_multiply_over_the_windows() -> None:
    """200 systems at their target exactly, each in twenty windows at five rates; each claim of a pass is wrong."""
    rng, wrong, by_window = np.random.default_rng(31), 0, 0
    for _ in range(200):
        trials = [window(100 * (number % 5 + 1), 700, rng.binomial(700, 0.01)) for number in range(20)]
        # What a single window of planned length says at 99 %: at most one late of 700.
        by_window += any(trial.late <= 1 for trial in trials)
        wrong += said(*trials).startswith("Sustains")
    assert wrong <= 0.02 * 200
    assert by_window > 0.1 * 200


def test_windows_that_led_to_the_choice_count_all_that_might_have_been_chosen() -> None:
    own = [window(100, 700, stage=HALVING)]
    others = [replace(own[0], candidate=replace(DEFAULT, max_batch_size=rows)) for rows in (1, 2, 32, 64)]
    assert said(*own).startswith("Sustains 100")
    assert CHOSEN not in [trial.candidate for trial in others]
    assert said(*own, *others) == "No measured rate surely meets the target."
    # Windows that were made after the choice need no correction, and those before it say nothing more.
    later = window(100, 644)
    assert said(*own, *others, later) == said(later)


def test_a_load_of_rising_rate_sustains_what_it_offered_on_the_mean() -> None:
    rising = replace(window(250, 700), load="ramp:100:400")
    assert said(rising).startswith("Sustains 250 requests/s")
