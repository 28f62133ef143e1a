"""Part 1: which configuration to use and why, how sure that is, and what it gains over the current one."""

import math
from collections.abc import Sequence

from perf.records.candidate import Candidate
from perf.records.study import Trial
from perf.records.tuned_file import NAME
from perf.report.study.evidence import Evidence, pooled, rows_per_s, word
from perf.report.study.gain import Gain, gains
from perf.report.study.section import Grid, Section
from perf.report.study.sustained import sustained, throughput
from perf.report.study.units import count, ms, number, percent, plain_ms
from perf.stats.quantile import percentile_ms
from perf.stats.sla import glance, judge

TITLE = "Verdict"


def verdict(evidence: Evidence) -> Section:
    """The headline is the banner; it claims a gain only where the measurements are sure of it."""
    found = gains(evidence)
    trials = evidence.of(evidence.shown)
    missing = []
    if not trials:
        missing.append(f"{evidence.shown} was never measured, so nothing is verified.")
    elif not found and evidence.shown != evidence.study.default:
        missing.append("It was not measured in turn with the current configuration, so no gain is claimed.")
    said = [
        _verified(evidence, trials) if trials else "",
        sustained(evidence) if evidence.open else throughput(trials),
        *(f"Over the current configuration: {one}." for one in found),
        f"What limits it now: {_sentence(evidence.study.limit)}" if evidence.study.limit else "",
        _next(evidence, found),
        _needed(evidence) if evidence.study.chosen is None and not evidence.unfinished else "",
    ]
    return Section(
        name="verdict",
        title=headline(evidence, found),
        sentences=tuple(filter(None, said)),
        missing=tuple(missing),
        grids=(_grid(evidence),) if trials else (),
        data={
            "headline": headline(evidence, found),
            "chosen": str(evidence.study.chosen) if evidence.study.chosen else None,
            "current": str(evidence.study.default),
            "passes": passes(evidence, evidence.shown),
            "current_passes": passes(evidence, evidence.study.default),
            "gains": [_data(one) for one in found],
        },
    )


def headline(evidence: Evidence, found: Sequence[Gain]) -> str:
    """One sentence."""
    study = evidence.study
    goal = f"{study.sla.percent:g} % of requests within {plain_ms(study.sla.latency_ms)}"
    if evidence.unfinished:
        return "No verdict: the study was not brought to its end; the same command goes on with it"
    if study.chosen is None:
        return f"Nothing that was measured meets {goal} under {study.load}" + _closest(evidence)
    if study.chosen == study.default:
        return f"Keep {study.default}: nothing better than the current configuration was found for {goal}"
    ours, theirs = passes(evidence, study.chosen), passes(evidence, study.default)
    if ours is False:
        return f"Not verified: {study.chosen} was chosen, but all its measurements together miss {goal}"
    if ours is True and theirs is False:
        return f"Use {study.chosen}, because it meets {goal} and the current configuration does not"
    first = found[0] if found else None
    if first is not None and first.verdict == "gain":
        return f"Use {study.chosen}, because {first.claim} within the same target" + (
            "" if ours is True else f", but the measurements cannot tell whether it meets {goal}"
        )
    if first is not None and first.verdict == "loss":
        return f"Keep {study.default}: {study.chosen} is worse, {first.claim}"
    what = first.claim if first else "it was not compared"
    return f"Not significant: {study.chosen} is not shown to be better than the current configuration ({what})"


def passes(evidence: Evidence, candidate: Candidate) -> bool | None:
    """The binomial rule on all windows of a candidate together; None where they cannot tell.

    Where a window ended because it was sure, its length is no accident, and the rule for looks on the way is asked.
    """
    trials = evidence.of(candidate)
    requests, late = sum(one.requests for one in trials), sum(one.late for one in trials)
    rule = glance if any(one.early for one in trials) else judge
    return rule(requests, late, evidence.study.sla.share) if requests else None


def _verified(evidence: Evidence, trials: Sequence[Trial]) -> str:
    requests, late = sum(one.requests for one in trials), sum(one.late for one in trials)
    sure = {
        True: "the target is met, at 99 % confidence",
        False: "the target is missed, at 99 % confidence",
        None: "too few to be sure of either",
    }[passes(evidence, evidence.shown)]
    share, allowed = percent(late / max(requests, 1)), percent(evidence.study.sla.share)
    return (
        f"{evidence.label(evidence.shown)} under {evidence.loads[evidence.shown]}: {late:,} of {requests:,} requests "
        f"late ({share}, allowed {allowed}) in {count(len(trials), 'window')}: {sure}."
    )


def _closest(evidence: Evidence) -> str:
    trials = evidence.of(evidence.shown)
    if not trials:
        return "; nothing was measured"
    p99 = percentile_ms(pooled(trials), evidence.study.sla.percent)
    over = f", {p99 / evidence.study.sla.latency_ms:.2f} x the target" if math.isfinite(p99) else ""
    return f"; the closest is {evidence.shown} with p{evidence.study.sla.percent:g} {ms(p99)}{over}"


def _needed(evidence: Evidence) -> str:
    """What a target would have to be for the search to meet it: the lowest p99 that was measured, and simulated."""
    asked = evidence.study.sla
    measured = [(percentile_ms(pooled(evidence.of(one)), asked.percent), one) for one in evidence.candidates]
    simulated = [(one.percentiles_ms[99], one.candidate) for one in evidence.study.predictions]
    said = []
    for found, how in ((measured, f"measured p{asked.percent:g}"), (simulated, "simulated p99")):
        finite = [one for one in found if math.isfinite(one[0])]
        if finite:
            lowest, candidate = min(finite, key=lambda one: one[0])
            said.append(f"the lowest {how} is {ms(lowest)} ({candidate})")
    end = "; a target below that needs a lighter load, or another model or machine."
    return f"What would have to change: {' and '.join(said)}{end}" if said else ""


def _next(evidence: Evidence, found: Sequence[Gain]) -> str:
    """The command that serves what is recommended."""
    study = evidence.study
    if not study.after_pbtxt or not headline(evidence, found).startswith("Use "):
        return ""
    command = f"make serve MODEL={study.model} CONFIG={NAME}"
    if "--repository" in study.command[:-1]:
        repository = study.command[study.command.index("--repository") + 1]
        command += f' ARGS="--repository {repository}"'
    return f"To serve it, until another tuning takes its place: {command}."


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."


def _grid(evidence: Evidence) -> Grid:
    titles = ("", "load", "rows/s", "p50\nms", "p95\nms", "p99\nms", "late\n%", "n\nrequests", "windows", "target")
    order = [one for one in dict.fromkeys((evidence.shown, evidence.study.default)) if evidence.of(one)]
    return Grid(titles=titles, rows=tuple(_row(evidence, one) for one in order), left=2)


def _row(evidence: Evidence, candidate: Candidate) -> tuple[str, ...]:
    trials = evidence.of(candidate)
    latencies = pooled(trials)
    requests, late = sum(one.requests for one in trials), sum(one.late for one in trials)
    return (
        evidence.label(candidate),
        evidence.loads[candidate],
        number(rows_per_s(trials)),
        *(number(percentile_ms(latencies, q)) for q in (50, 95, 99)),
        percent(late / max(requests, 1))[:-2],
        f"{requests:,}",
        str(len(trials)),
        word(passes(evidence, candidate)),
    )


def _data(one: Gain) -> dict[str, object]:
    return {
        "what": one.what,
        "ratio": one.interval.value,
        "low": one.interval.low,
        "high": one.interval.high,
        "method": one.interval.method,
        "rounds": one.interval.count,
        "requests": one.n,
        "noise": one.noise,
        "verdict": one.verdict,
    }
