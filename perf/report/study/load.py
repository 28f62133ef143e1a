"""Part 3: latency against load, with every measured point: the offered rate (open loop) or the throughput (closed)."""

from perf.report.study import trials
from perf.report.study.candidates import candidates
from perf.report.study.evidence import Evidence
from perf.report.study.rates import kept, rates
from perf.report.study.section import Section
from perf.report.study.throughput import throughput
from perf.report.study.units import count, percent


def load(evidence: Evidence) -> Section:
    """Latency against what the clients did; a load of one rate is drawn candidate by candidate instead."""
    found = evidence.trials
    title = f"Latency against {'offered rate' if evidence.open else 'throughput'}"
    if not found:
        return Section(name="load", title=title, missing=("No configuration was measured.",))
    drawn = [candidates(evidence)] if evidence.candidates else []
    if evidence.open and len({trial.load for trial in found}) > 1:
        drawn = [rates(evidence), kept(evidence), *drawn]
    if not evidence.open:
        drawn = [throughput(evidence), *drawn]
    return Section(
        name="load",
        title=title,
        sentences=(_sentence(evidence),),
        drawn=tuple(drawn),
        grids=(trials.grid(evidence, found, f"All {count(len(found), 'measurement')}"),),
        data={"trials": [trials.data(one) for one in found]},
    )


def _sentence(evidence: Evidence) -> str:
    found = evidence.trials
    requests = sum(one.requests for one in found)
    passed = [sum(one.passed is value for one in found) for value in (True, False, None)]
    lost = f"{sum(one.not_sent for one in found):,} not sent, {sum(one.failed for one in found):,} failed"
    sent_late = percent(sum(one.late_sends for one in found) / max(requests, 1))
    loop = "open loop: latency counts from when a request was due" if evidence.open else "closed loop"
    return (
        f"{count(len(found), 'measurement')} of {requests:,} requests in all ({loop}): {passed[0]} pass the target, "
        f"{passed[1]} fail it, {passed[2]} cannot tell. {lost}, {sent_late} sent more than 1 ms late."
    )
