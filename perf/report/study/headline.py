"""The verdict of a study in one sentence: its decision, or why it chose nothing and what is closest to the target."""

import math

from perf.records.candidate import Candidate
from perf.records.decision import KEEP, USE, Decision
from perf.report.study.evidence import Evidence, pooled, quantile_of
from perf.report.study.gain import claim
from perf.report.study.tail import short
from perf.report.units import ms, plain_ms
from perf.stats.percentile import percentile_ms


def headline(evidence: Evidence) -> str:
    """The sentence; it claims a gain only if the measurements show it."""
    if evidence.unfinished:
        return "No verdict: the study is unfinished; the same command continues it"
    if evidence.decision is None:
        limits = " and ".join(evidence.study.limits.options.values())
        under = f"{evidence.study.load}{limits and f' with {limits}'}"
        return f"No measured configuration meets {_goal(evidence)} under {under}{_closest(evidence)}"
    return _decided(evidence, evidence.decision)


def _decided(evidence: Evidence, decision: Decision) -> str:
    study, said = evidence.study, claim(decision.gain) if decision.gain else ""
    if decision.word == USE:
        unsure = f", but the measurements cannot tell whether it meets {_goal(evidence)}"
        met = evidence.passed(evidence.of(evidence.shown))
        why = f"{said} within the same target" if said else decision.reason
        return f"Use {study.chosen}, because {why}{'' if met else unsure}"
    if decision.word == KEEP:
        return f"Keep {study.default}: {decision.reason}{said and f', {said}'}"
    if decision.gain is None:
        return f"Cannot tell: {decision.reason}"
    candidate = evidence.comparison.candidate
    return f"Cannot tell whether {candidate} is better than the current configuration ({said}: {decision.gain.verdict})"


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


def _closest(evidence: Evidence) -> str:
    trials = evidence.of(evidence.shown)
    if not trials:
        return "; nothing was measured"
    target = evidence.study.target
    q = quantile_of(trials, target.percent)
    latency = f"p{target.percent:g} {ms(q.value_ms)} ({short(q)})"
    if over := evidence.excess(evidence.shown):
        return f"; the closest, {evidence.shown}, used {over}, with {latency}"
    times = f", {q.value_ms / target.latency_ms:.2f} x the target" if math.isfinite(q.value_ms) else ""
    return f"; the closest is {evidence.shown} with {latency}{times}"


def _goal(evidence: Evidence) -> str:
    return f"{evidence.study.target.percent:g} % of requests within {plain_ms(evidence.study.target.latency_ms)}"


def _percentile_ms(evidence: Evidence, candidate: Candidate) -> float:
    return percentile_ms(pooled(evidence.of(candidate)), evidence.study.target.percent)
