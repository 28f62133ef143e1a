"""Every measurement as one row of a table: what was offered, what came back, how late, and what the target says."""

from collections.abc import Iterable

from perf.records.study import Trial
from perf.report.study.evidence import Evidence, word
from perf.report.study.section import Grid
from perf.report.study.units import number, percent
from perf.stats.quantile import percentile_ms

TITLES = (
    "configuration",
    "measured for",
    "load",
    "round",
    "requests\nn",
    "offered\nrequests/s",
    "achieved\nrows/s",
    "p50\nms",
    "p95\nms",
    "p99\nms",
    "late\n%",
    "sent late\n%",
    "not sent\nn",
    "failed\nn",
    "target",
)


def grid(evidence: Evidence, trials: Iterable[Trial], summary: str = "") -> Grid:
    """The rows in the order of measurement; latencies of all requests that were due, answered or not."""
    return Grid(titles=TITLES, rows=tuple(_row(evidence, one) for one in trials), left=3, summary=summary)


def data(trial: Trial) -> dict[str, object]:
    """The same for the JSON file."""
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
