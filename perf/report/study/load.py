"""Part 3: latency against offered rate (open loop) or throughput (closed loop), and the table of all trials."""

from collections.abc import Iterable

from perf.records.study import Trial
from perf.report.study.evidence import Evidence, word
from perf.report.study.load_figures import candidates, completion, rates, throughput
from perf.report.study.section import Grid, Section
from perf.report.study.units import count, number, percent
from perf.stats.quantile import percentile_ms

TITLES = (
    *("configuration", "measured for", "load", "round", "requests\nn", "offered\nrequests/s", "achieved\nrows/s"),
    *("p50\nms", "p95\nms", "p99\nms", "late\n%", "sent late\n%", "not sent\nn", "failed\nn", "target"),
)


def load(evidence: Evidence) -> Section:
    """Latency against load; if all trials have the same rate, only by configuration."""
    trials = evidence.trials
    title = f"Latency against {'offered rate' if evidence.open else 'throughput'}"
    if not trials:
        return Section(name="load", title=title, missing=("No configuration was measured.",))
    pictures = [candidates(evidence)]
    if evidence.open and len({trial.load for trial in trials}) > 1:
        pictures = [rates(evidence), completion(evidence), *pictures]
    if not evidence.open:
        pictures = [throughput(evidence), *pictures]
    return Section(
        name="load",
        title=title,
        sentences=(_sentence(evidence),),
        pictures=tuple(pictures),
        grids=(grid(evidence, trials, f"All {count(len(trials), 'measurement')}"),),
        data={"trials": [data(trial) for trial in trials]},
    )


def _sentence(evidence: Evidence) -> str:
    trials = evidence.trials
    requests = sum(trial.requests for trial in trials)
    passed = [sum(trial.passed is value for trial in trials) for value in (True, False, None)]
    not_sent, failed = sum(trial.not_sent for trial in trials), sum(trial.failed for trial in trials)
    sent_late = percent(sum(trial.late_sends for trial in trials) / max(requests, 1))
    loop = "open loop: latency counts from the time at which a request was due" if evidence.open else "closed loop"
    return (
        f"{count(len(trials), 'measurement')} of {requests:,} requests in all ({loop}): {passed[0]} pass the target, "
        f"{passed[1]} fail it, {passed[2]} cannot tell. {not_sent:,} not sent, {failed:,} failed, {sent_late} sent "
        "more than 1 ms late."
    )


def grid(evidence: Evidence, trials: Iterable[Trial], summary: str = "") -> Grid:
    """A row per trial in the order of measurement; latencies are of all due requests, answered or not."""
    return Grid(titles=TITLES, rows=tuple(_row(evidence, trial) for trial in trials), left=3, summary=summary)


def data(trial: Trial) -> dict[str, object]:
    """The row of a trial for the JSON file."""
    return {
        "candidate": str(trial.candidate),
        "stage": trial.stage,
        "load": trial.load,
        "round": trial.round,
        "requests": trial.requests,
        "offered_per_s": trial.offered_per_s,
        "throughput_rows_per_s": trial.throughput_rows_per_s,
        **{f"p{q}_ms": percentile_ms(trial.latencies_us, q) for q in (50, 95, 99)},
        "late": trial.late,
        "late_sends": trial.late_sends,
        "not_sent": trial.not_sent,
        "failed": trial.failed,
        "target": word(trial.passed),
    }


def _row(evidence: Evidence, trial: Trial) -> tuple[str, ...]:
    requests = max(trial.requests, 1)
    return (
        evidence.label(trial.candidate),
        trial.stage,
        trial.load,
        str(trial.round),
        f"{trial.requests:,}",
        "" if trial.offered_per_s is None else number(trial.offered_per_s),
        number(trial.throughput_rows_per_s),
        *(number(percentile_ms(trial.latencies_us, q)) for q in (50, 95, 99)),
        percent(trial.late / requests)[:-2],
        percent(trial.late_sends / requests)[:-2],
        f"{trial.not_sent:,}",
        f"{trial.failed:,}",
        word(trial.passed),
    )
