"""The highest rate of an open loop at which a configuration meets the target."""

import math
from collections.abc import Mapping, Sequence

from perf.records.candidate import Candidate
from perf.records.study import Trial
from perf.records.target_verdict import of_trials
from perf.records.traffic import Traffic
from perf.report.study.evidence import COMPARISON, Evidence
from perf.report.units import count, number
from perf.stats.latency_target import CONFIDENCE
from perf.stats.verdict import level_of_each

Rates = Mapping[float, Sequence[Trial]]


def sustained(evidence: Evidence) -> str:
    """What is known of the shown configuration as a sentence; empty without an open loop."""
    text = highest(evidence, evidence.shown)
    return text and f"{text[0].upper()}{text[1:]}."


def highest(evidence: Evidence, candidate: Candidate) -> str:
    """The highest rate that passes, below the lowest rate that fails, in words; empty without an open loop.

    The windows of a rate are judged together, and the verdicts on all rates hold together at 99 % (Bonferroni).
    """
    rates = _rates(evidence, candidate)
    tested = _tested(evidence, rates)
    each = level_of_each(tested, CONFIDENCE)
    passed = {
        offered: of_trials(trials, evidence.study.target, confidence=each).passed for offered, trials in rates.items()
    }
    limit = min((offered for offered, result in passed.items() if result is False), default=math.inf)
    top = max((offered for offered, result in passed.items() if result and offered < limit), default=None)
    if top is None:
        return "no measured rate surely meets the target" if rates else ""
    requests, windows = sum(trial.requests for trial in rates[top]), count(len(rates[top]), "window")
    several = f" for all {tested} verdicts on rates together" if tested > 1 else ""
    return (
        f"sustains {number(top)} requests/s within the target (n = {requests:,} requests in {windows}), "
        f"{_end(rates, top, limit)}, at {100 * CONFIDENCE:g} % confidence{several}"
    )


def _end(rates: Rates, top: float, limit: float) -> str:
    """What is known of higher rates than `top`."""
    if limit < math.inf:
        return f"and fails at {number(limit)}"
    return "the highest measured rate" if top == max(rates) else "and no measured rate surely fails"


def _rates(evidence: Evidence, candidate: Candidate) -> Rates:
    """The windows of a candidate by rate: those that were made after the choice, if the rate has any."""
    rates: dict[float, list[Trial]] = {}
    for trial in evidence.trials:
        if trial.candidate == candidate and trial.offered_per_s:
            rates.setdefault(_rate_of(trial), []).append(trial)
    return {offered: [trial for trial in trials if _is_later(trial)] or trials for offered, trials in rates.items()}


def _tested(evidence: Evidence, rates: Rates) -> int:
    """The number of verdicts that must hold together.

    If windows that led to the choice are among those of `rates`, the candidate is one of several that might have passed
    by chance, and the rates of all candidates count.
    """
    if all(_is_later(trial) for trials in rates.values() for trial in trials):
        return len(rates)
    return len({(trial.candidate, _rate_of(trial)) for trial in evidence.trials if trial.offered_per_s})


def _is_later(trial: Trial) -> bool:
    return trial.stage in COMPARISON


def _rate_of(trial: Trial) -> float:
    """The rate of the trial's load, which is the same in all its windows; else the offered rate."""
    traffic = Traffic.of_record(trial.load)
    constant = traffic.rate_per_s and not traffic.rate_to_per_s
    return traffic.rate_per_s if constant else trial.offered_per_s or 0.0
