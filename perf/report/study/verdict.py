"""Part 1: the configuration to use, the reason, the confidence, and the gain over the current configuration."""

import math
from collections.abc import Iterator, Sequence

from perf.records.candidate import Candidate
from perf.records.last_comparison import Gain
from perf.records.study import TUNED, Trial
from perf.records.target_verdict import of_trials
from perf.report.study import use
from perf.report.study.evidence import Evidence, pooled, quantile_of, rows_per_s, word
from perf.report.study.gain import claim, gains, sentence
from perf.report.study.section import Grid, Section
from perf.report.study.sustained import sustained
from perf.report.study.tail import short
from perf.report.study.units import count, ms, number, percent, plain_ms, rate
from perf.stats import rounds
from perf.stats.percentile import percentile_ms
from perf.stats.verdict import CANNOT_TELL, FASTER, SAME, SLOWER

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
        _verified(evidence, trials) if trials else "",
        sustained(evidence) if evidence.open else throughput(trials),
        *(f"Over the current configuration: {sentence(gain, evidence)}." for gain in all_gains),
        *_rejected(evidence),
        use.sentence(evidence),
        f"The bottleneck: {_sentence(evidence.study.limit)}" if evidence.study.limit else "",
        _next(evidence, all_gains),
        _needed(evidence) if evidence.study.chosen is None and not evidence.unfinished else "",
    ]
    return Section(
        name="verdict",
        title=headline(evidence, all_gains),
        sentences=tuple(filter(None, sentences)),
        missing=tuple(missing),
        grids=(_grid(evidence),) if trials else (),
        data={
            "headline": headline(evidence, all_gains),
            "chosen": str(evidence.study.chosen) if evidence.study.chosen else None,
            "current": str(evidence.study.default),
            "passes": passes(evidence, evidence.shown),
            "current_passes": passes(evidence, evidence.study.default),
            "gains": [_data(gain, evidence) for gain in all_gains],
            "used": use.data(evidence),
        },
    )


def _rejected(evidence: Evidence) -> Iterator[str]:
    """Sentences on the candidate that was compared last, if another one is shown."""
    compared = evidence.comparison
    if compared.candidate not in (None, evidence.shown):
        for gain in compared.gains:
            text = sentence(gain, evidence)
            yield f"{compared.candidate}, which was compared last, over the current configuration: {text}."


def headline(evidence: Evidence, all_gains: Sequence[Gain]) -> str:
    """The verdict in one sentence."""
    study = evidence.study
    goal = f"{study.target.percent:g} % of requests within {plain_ms(study.target.latency_ms)}"
    if evidence.unfinished:
        return "No verdict: the study is unfinished; the same command continues it"
    if study.chosen is None:
        return f"No measured configuration meets {goal} under {study.load}" + _closest(evidence)
    if study.chosen == study.default:
        return f"Keep {study.default}: no better configuration was found for {goal}"
    new, current = passes(evidence, study.chosen), passes(evidence, study.default)
    if new is False:
        return f"Not verified: {study.chosen} was chosen, but all its measurements together miss {goal}"
    if new is True and current is False:
        return f"Use {study.chosen}, because it meets {goal} and the current configuration does not"
    if over := use.excess(evidence):
        return f"Use {study.chosen}, because the current configuration used {over}"
    first = all_gains[0] if all_gains else None
    better = first.verdict.word if first is not None else CANNOT_TELL
    if first is not None and better == FASTER:
        return f"Use {study.chosen}, because {claim(first)} within the same target" + (
            "" if new is True else f", but the measurements cannot tell whether it meets {goal}"
        )
    if first is not None and better in (SLOWER, SAME):
        how = "worse" if better == SLOWER else str(first.verdict)
        return f"Keep {study.default}: {study.chosen} is {how}, {claim(first)}"
    what = f"{claim(first)}: {first.verdict}" if first else "it was not compared"
    return f"Cannot tell whether {study.chosen} is better than the current configuration ({what})"


def passes(evidence: Evidence, candidate: Candidate) -> bool | None:
    """Whether a candidate meets the target, by all its windows together; None if they cannot tell."""
    return of_trials(evidence.of(candidate), evidence.study.target).passed


def _verified(evidence: Evidence, trials: Sequence[Trial]) -> str:
    judged = of_trials(trials, evidence.study.target)
    result = {
        True: "the target is met, at 99 % confidence",
        False: "the target is missed, at 99 % confidence",
        None: "too few requests to tell",
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


def _closest(evidence: Evidence) -> str:
    trials = evidence.of(evidence.shown)
    if not trials:
        return "; nothing was measured"
    target = evidence.study.target
    q = quantile_of(trials, target.percent)
    over = f", {q.value_ms / target.latency_ms:.2f} x the target" if math.isfinite(q.value_ms) else ""
    return f"; the closest is {evidence.shown} with p{target.percent:g} {ms(q.value_ms)} ({short(q)}){over}"


def _needed(evidence: Evidence) -> str:
    """A sentence on the targets that can be met: the lowest measured and the lowest simulated latency."""
    percent = evidence.study.target.percent
    measured = [(percentile_ms(pooled(evidence.of(c)), percent), c) for c in evidence.candidates]
    simulated = [(prediction.percentiles_ms[99], prediction.candidate) for prediction in evidence.study.predictions]
    texts = []
    for latencies, kind in ((measured, f"measured p{percent:g}"), (simulated, "simulated p99")):
        finite = [pair for pair in latencies if math.isfinite(pair[0])]
        if finite:
            lowest, candidate = min(finite, key=lambda pair: pair[0])
            texts.append(f"the lowest {kind} is {ms(lowest)} ({candidate})")
    end = "; a target below that needs a lighter load, another model or another machine."
    return f"Targets that can be met: {' and '.join(texts)}{end}" if texts else ""


def _next(evidence: Evidence, all_gains: Sequence[Gain]) -> str:
    """The command that serves the recommended configuration, or the one that measures until it is certain."""
    study = evidence.study
    if not study.after_pbtxt:
        return ""
    repository = _option(study.command, "--repository")
    if headline(evidence, all_gains).startswith("Use "):
        of_folder = f' ARGS="{repository.strip()}"' if repository else ""
        command = f"make serve MODEL={study.model} CONFIG={TUNED}{of_folder}"
        return f"To serve it (until the next tuning replaces it): {command}."
    first = all_gains[0] if all_gains else None
    if first is None or not first.verdict.more_rounds:
        return ""
    rounds_in_all = first.interval.count + first.verdict.more_rounds
    options = f"{_option(study.command, '--rows')}{repository} --most-rounds {rounds_in_all}"
    return (
        f"To be certain: python -m perf.compare.versus {study.model} {study.config_name} {TUNED} --load {study.load} "
        f"--p99-ms {study.target.latency_ms:g}{options}."
    )


def _option(command: Sequence[str], name: str) -> str:
    """An option of a command with its value and a space before it; empty if it is not given."""
    return f" {name} {command[command.index(name) + 1]}" if name in command[:-1] else ""


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
