"""The verdict of a study in one sentence: whether the target is met, with the measured percentile, and what to do."""

import math

from perf.records.candidate import Candidate
from perf.records.decision import UNSURE, USE, Decision
from perf.report.study.evidence import Evidence, pooled, quantile_of
from perf.report.study.gain import claim
from perf.report.units import ms, number
from perf.stats.percentile import percentile_ms
from perf.stats.quantile import Quantile

WORDS = {True: "met", False: "missed", None: "not proved"}


def headline(evidence: Evidence) -> str:
    """The sentence, which `perf.tune` prints first and which is the title of the page."""
    if evidence.unfinished:
        return "No verdict: the study is unfinished; the same command continues it"
    if evidence.decision is None:
        limits = " and ".join(evidence.study.limits.options.values())
        return f"{_refused(evidence)}, under {evidence.study.load}{limits and f' with {limits}'}"
    return f"{answer(evidence, advised(evidence))}: {_action(evidence, evidence.decision)}"


def advised(evidence: Evidence) -> Candidate:
    """The configuration to serve: the choice if it is surely better, else the current one."""
    use = evidence.decision is not None and evidence.decision.word == USE
    return evidence.shown if use else evidence.study.default


def answer(evidence: Evidence, candidate: Candidate) -> str:
    """Whether a configuration meets the target: `p99 <= 50 ms: met (p99 41.8 ms, 95 % interval 39.2 to 44.5 ms)`."""
    target, trials = evidence.study.target, evidence.of(candidate)
    if not sum(trial.requests for trial in trials):
        return f"{target}: not measured"
    return f"{target}: {WORDS[evidence.passed(trials)]} ({_measured(quantile_of(trials, target.percent))})"


def reason(evidence: Evidence) -> str:
    """Why the decision is as it is, in a sentence; empty without one."""
    decision = evidence.decision
    if decision is None:
        return ""
    said = claim(decision.gain) if decision.gain else ""
    return f"Because {decision.reason}{said and f': {said}'}."


def _action(evidence: Evidence, decision: Decision) -> str:
    """What to do: a gain is claimed only if the measurements show it."""
    study, gain = evidence.study, decision.gain
    if decision.word == USE:
        return f"use {study.chosen}" + (f", with {gain.name} x {gain.interval.value:.2f}" if gain else "")
    return f"keep {study.default}" + (" for now" if decision.word == UNSURE else "")


def _measured(q: Quantile) -> str:
    """The percentile with its interval: of these requests, so not of how the windows differ from each other."""
    name = f"p{q.percent:g}"
    if not math.isfinite(q.value_ms):
        return f"no {name}, since more than {100 - q.percent:g} % of the requests got no answer"
    if not q.low_ms and not math.isfinite(q.high_ms):
        return f"{name} {ms(q.value_ms)}, no interval"
    high = f"to {ms(q.high_ms)}" if math.isfinite(q.high_ms) else "ms or more"
    return f"{name} {ms(q.value_ms)}, 95 % interval {number(q.low_ms)} {high}"


def targets(evidence: Evidence) -> str:
    """A sentence on the targets that can be met: the lowest measured and the lowest simulated latency.

    Of configurations within the limits; what the simulated ones use is not known. Empty if there are none.
    """
    percent, limited = evidence.study.target.percent, bool(evidence.study.limits.options)
    measured = [(_percentile_ms(evidence, c), c) for c in evidence.candidates if not evidence.excess(c)]
    simulated = [] if limited else [(each.percentiles_ms[99], each.candidate) for each in evidence.study.predictions]
    texts = []
    for latencies, kind in ((measured, f"measured p{percent:g}"), (simulated, "simulated p99")):
        finite = [pair for pair in latencies if math.isfinite(pair[0])]
        if finite:
            lowest, candidate = min(finite, key=lambda pair: pair[0])
            texts.append(f"the lowest {kind} is {ms(lowest)} ({candidate})")
    end = "; a target below that needs a lighter load, another model or another machine."
    return f"Targets that can be met: {' and '.join(texts)}{end}" if texts else ""


def _refused(evidence: Evidence) -> str:
    if not evidence.of(evidence.shown):
        return f"{evidence.study.target}: not measured"
    over = evidence.excess(evidence.shown)
    of = f"by the closest configuration, {evidence.shown}"
    return f"{answer(evidence, evidence.shown)} {of}{over and f', which used {over}'}"


def _percentile_ms(evidence: Evidence, candidate: Candidate) -> float:
    return percentile_ms(pooled(evidence.of(candidate)), evidence.study.target.percent)
