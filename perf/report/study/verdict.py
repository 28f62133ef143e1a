"""The configuration to use, the reason, the confidence, and the gain over the current configuration."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from perf.records.candidate import Candidate
from perf.records.last_comparison import Gain, rows_per_s
from perf.records.resource_use import ResourceUse
from perf.records.study import Trial
from perf.records.target_verdict import of_trials
from perf.report.section import Grid, Section
from perf.report.study.evidence import Evidence, pooled, quantile_of, word
from perf.report.study.gain import gains, sentence
from perf.report.study.headline import headline, reason, targets
from perf.report.study.next_step import next_steps
from perf.report.study.tail import short
from perf.report.units import count, number, percent, rate
from perf.stats import rounds
from perf.stats.percentile import percentile_ms

TITLE = "Verdict"


def verdict(evidence: Evidence) -> Section:
    """The verdict; its title claims a gain only if the measurements show it."""
    all_gains = gains(evidence)
    trials = evidence.of(evidence.shown)
    missing = []
    if not trials:
        missing.append(f"{evidence.shown} was not measured, so nothing is verified.")
    elif not all_gains and evidence.shown != evidence.study.default:
        missing.append("It was not interleaved with the current configuration, so no gain is claimed.")
    sentences = [
        reason(evidence),
        _verified(evidence, trials) if trials else "",
        "" if evidence.open else throughput(trials),
        *(f"Over the current configuration: {sentence(gain, evidence)}." for gain in all_gains),
        *_rejected(evidence),
        _used_sentence(evidence),
        f"The bottleneck: {_sentence(evidence.study.limit)}" if evidence.study.limit else "",
        *next_steps(evidence),
        targets(evidence) if evidence.study.chosen is None and not evidence.unfinished else "",
    ]
    return Section(
        name="verdict",
        title=headline(evidence),
        sentences=tuple(filter(None, sentences)),
        missing=tuple(missing),
        grids=(_grid(evidence),) if trials else (),
        data={
            "headline": headline(evidence),
            "decision": evidence.decision and {"word": evidence.decision.word, "reason": evidence.decision.reason},
            "chosen": str(evidence.study.chosen) if evidence.study.chosen else None,
            "current": str(evidence.study.default),
            "passes": passes(evidence, evidence.shown),
            "current_passes": passes(evidence, evidence.study.default),
            "gains": [_data(gain, evidence) for gain in all_gains],
            "used": {label: asdict(use) for label, use in _used(evidence).items()},
        },
    )


def _rejected(evidence: Evidence) -> Iterator[str]:
    """Sentences on the candidate that was compared last, if another one is shown."""
    compared = evidence.comparison
    if compared.candidate not in (None, evidence.shown):
        for gain in compared.gains:
            text = sentence(gain, evidence)
            yield f"{compared.candidate}, which was compared last, over the current configuration: {text}."


def passes(evidence: Evidence, candidate: Candidate) -> bool | None:
    """Whether a candidate meets the target, by all its windows together; None if they cannot tell."""
    return evidence.passed(evidence.of(candidate))


def _verified(evidence: Evidence, trials: Sequence[Trial]) -> str:
    judged = of_trials(trials, evidence.study.target)
    result = {
        True: "the target is met, at 99 % confidence",
        False: "the target is missed, at 99 % confidence",
        None: "too few requests to be sure at 99 %",
    }[judged.passed]
    share, allowed = percent(judged.late / max(judged.requests, 1)), percent(judged.target.share)
    thinned = sum(trial.thinned for trial in trials)
    one = (
        f"; {count(thinned, 'window')} without the latency of every request on record, and so as good as one each"
        if thinned
        else ""
    )
    return (
        f"{evidence.label(evidence.shown)} under {evidence.loads[evidence.shown]}: {judged.late:,} of "
        f"{judged.requests:,} requests late ({share}, allowed {allowed}) in {count(len(trials), 'window')}, worth "
        f"{judged.worth:,.0f} independent requests{one}: {result}."
    )


def throughput(trials: Sequence[Trial]) -> str:
    """A sentence on the throughput of all windows, with the interval of the windows' mean."""
    if not trials:
        return ""
    interval = rounds.mean([trial.throughput_rows_per_s for trial in trials])
    windows = count(len(trials), "window")
    together = rate(rows_per_s(trials))
    if len(trials) < 2:
        return f"Throughput at the target's load: {together} (n = {windows}, so without an interval)."
    low, high = number(interval.low), number(interval.high)
    return (
        f"Throughput: {together} in all windows together, {interval.level_text} interval of a window's mean {low} to "
        f"{high} ({interval.method}, n = {windows})."
    )


def _used(evidence: Evidence) -> Mapping[str, ResourceUse]:
    """What the server used with the shown candidate and with the current configuration, if it is on record."""
    both = dict.fromkeys((evidence.shown, evidence.study.default))
    return {evidence.label(candidate): use for candidate in both if str(use := evidence.used(candidate))}


def _used_sentence(evidence: Evidence) -> str:
    texts = [f"{use} with {label}" for label, use in _used(evidence).items()]
    return f"The server used at most {'; '.join(texts)}." if texts else ""


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."


def _grid(evidence: Evidence) -> Grid:
    titles = (
        "",
        "load",
        "rows/s",
        "p50\nms",
        "p95\nms",
        "p99 ms\n(95 % interval)",
        "late\n%",
        "n\nrequests",
        "windows",
        "target",
    )
    order = dict.fromkeys((evidence.shown, evidence.study.default))
    rows = tuple(_row(evidence, candidate) for candidate in order if evidence.of(candidate))
    return Grid(titles=titles, rows=rows, left=2)


def _row(evidence: Evidence, candidate: Candidate) -> tuple[str, ...]:
    trials = evidence.of(candidate)
    latencies = pooled(trials)
    p99 = quantile_of(trials, 99)
    requests, late = sum(trial.requests for trial in trials), sum(trial.late for trial in trials)
    return (
        evidence.label(candidate),
        evidence.loads[candidate],
        number(rows_per_s(trials)),
        *(number(percentile_ms(latencies, q)) for q in (50, 95)),
        f"{number(p99.value_ms)} ({short(p99)})",
        percent(late / max(requests, 1))[:-2],
        f"{requests:,}",
        str(len(trials)),
        word(passes(evidence, candidate)),
    )


def _data(gain: Gain, evidence: Evidence) -> dict[str, object]:
    return {
        "what": gain.name,
        "ratio": gain.interval.value,
        "low": gain.interval.low,
        "high": gain.interval.high,
        "method": gain.interval.method,
        "rounds": gain.interval.count,
        "requests": evidence.comparison.requests,
        "level": gain.interval.level,
        "noise": None
        if gain.noise is None
        else {"ratio": gain.noise.value, "low": gain.noise.low, "high": gain.noise.high},
        "verdict": gain.verdict.word,
        "more_rounds": gain.verdict.more_rounds,
    }
